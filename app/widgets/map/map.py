"""The maps of the KV blocks, device pool and host pool: one cell per block while they fit, else one for several."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.strip import Strip

from vtop.app.live.view import View
from vtop.app.widgets.map import codes as bc
from vtop.app.widgets.map.grid import Grid, make_grid
from vtop.app.widgets.map.looks import Looks, tile_line
from vtop.app.widgets.map.pools import DEVICE, HOST, DevicePool, Index, Ints
from vtop.app.widgets.map.words import Present, cell_text, heading_pieces, legend_groups, to_content
from vtop.app.widgets.panel import Panel
from vtop.app.widgets.rows import Row, heading, join_fitting
from vtop.engine.state.fold import EngineState


class BlockMap(Panel, can_focus=True):
    """Blocks as cells. Rows whose codes are as before are not touched, and rows drawn before are kept as Strips."""

    POOL: ClassVar[DevicePool] = DEVICE
    LEGEND_FROM: ClassVar[int] = 5  # rows: a lower map has no legend

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1,0)", "Left", show=False, id="map.left"),
        Binding("right", "move(1,0)", "Right", show=False, id="map.right"),
        Binding("up,k", "move(0,-1)", "Up", show=False, id="map.up"),
        Binding("down,j", "move(0,1)", "Down", show=False, id="map.down"),
        Binding("home", "edge(0)", "First block", show=False, id="map.first"),
        Binding("end", "edge(1)", "Last block", show=False, id="map.last"),
        Binding("enter", "pick", "Pick block", show=False, id="map.pick"),
    ]

    class Hovered(Message):
        """The mouse or the cursor points at a block, or at none."""

        def __init__(self, block: int | None) -> None:
            super().__init__()
            self.block = block

    class Picked(Message):
        """A block was clicked, or Enter pressed on it."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    def __init__(self, *, legend: bool = True, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._wants_legend = legend
        self._watch = bc.Watch(self.POOL)
        self._grid = make_grid(1, 1, 1, False)
        self._aggregate: bc.Aggregate | None = None
        self._codes: Ints = np.zeros((0, 0), np.int32)
        self._looks: Looks | None = None
        self._strips: dict[int, Strip] = {}
        self._edges: tuple[list[Segment], list[Segment]] = ([], [])  # heading and legend
        self._cursor: int | None = None
        self._hovered: int | None = None

    # --- drawing ---------------------------------------------------------------------------------------------

    @property
    def grid(self) -> Grid:
        """Where the cells stand now."""
        return self._grid

    @property
    def _legend_shown(self) -> bool:
        return self._wants_legend and self.size.height >= self.LEGEND_FROM

    def redraw(self) -> None:
        view = self._view
        width, height = self.size
        if view is None or width <= 0 or height <= 0 or not self.is_attached:
            return
        state = view.state
        if state is None:
            if len(self._codes):
                self._codes, self._looks = self._codes[:0], None
                self.refresh()
            self._draw_edges(view, width)
            return
        changed = self._watch.look(state)
        blocks = len(self.POOL.owner(state))
        grid = make_grid(blocks, width, height - 1 - self._legend_shown, self.app.no_color)
        looks = self._looks
        fresh = grid != self._grid or looks is None or looks.ascii != view.ascii
        if fresh:
            self._grid = grid
            self._looks = Looks(self.palette, view.ascii, grid)
            self._aggregate = bc.Aggregate(blocks, grid.per_cell) if grid.per_cell > 1 else None
            self._strips.clear()
        codes = self._make_codes(view, state, None if fresh else changed)
        old, self._codes = self._codes, codes
        if fresh or old.shape != codes.shape:
            self._strips.clear()
            self._edges = ([], [])
            self._draw_edges(view, width)
            self.refresh()
            return
        high = grid.cell_height
        changed_rows = np.flatnonzero((codes != old).any(axis=1)).tolist()
        rows = [row * high + line for row in changed_rows for line in range(high)]
        for y in rows:
            self._strips.pop(y, None)
        edges = self._draw_edges(view, width)
        self.refresh_rows(sorted([y + 1 for y in rows] + edges))

    def _make_codes(self, view: View, state: EngineState, changed: Index | None) -> Ints:
        """Codes of all cells, as rows; cells behind the last block are OUTSIDE."""
        grid = self._grid
        if self._aggregate is None:
            codes = bc.single_codes(state, self._watch, view.colouring)
        else:
            self._aggregate.count(state, self._watch, changed)
            codes = self._aggregate.codes(state, view.colouring)
        bc.mark_moves(codes, state, self.POOL, grid.per_cell)
        selected = view.selected_request
        blocks = self.POOL.blocks_of(selected)
        if selected is not None and len(blocks):
            lit = blocks // grid.per_cell
            codes |= bc.DIM
            codes[lit] = codes[lit] & ~bc.DIM | bc.LIT
            if view.colouring == "owner":  # in a shared block or a mixed cell too
                codes[lit] = codes[lit] & ~bc.NUMBER | selected.number % bc.OWNER_CYCLE
        marked = self._marked(view)
        if marked is not None and 0 <= marked // grid.per_cell < len(codes):
            codes[marked // grid.per_cell] |= bc.MARKED
        out = np.full(grid.rows * grid.columns, bc.OUTSIDE, np.int32)
        out[: len(codes)] = codes
        return out.reshape(grid.rows, grid.columns)

    def _draw_edges(self, view: View, width: int) -> list[int]:
        """Heading and legend; returns the rows that differ from what is on the screen."""
        palette = self.palette
        facts, notes = heading_pieces(view, self._grid, palette, width, self.POOL)
        top = heading(self.POOL.title, facts, notes, width, palette, self.has_focus, view.ascii)
        bottom = self._bottom_row(view, width) if self._legend_shown else []
        old, self._edges = self._edges, (top, bottom)
        last = self.size.height - 1
        rows = [y for y, before, now in ((0, old[0], top), (last, old[1], bottom)) if before != now]
        if view.state is None:
            self.refresh_rows(rows)
        return rows

    def _bottom_row(self, view: View, width: int) -> list[Segment]:
        """What is in the block that is pointed at; the legend when none is."""
        palette = self.palette
        row = Row(width, view.ascii).put(" " * self._grid.gutter, palette.base)
        if view.state is None:
            return row.done(palette.base)
        block = self._hovered if self._hovered is not None else self._marked(view)
        if block is not None and block < self._grid.blocks:
            return row.words(cell_text(view, self._grid, block, self.POOL), palette.strong).done(palette.base)
        groups = legend_groups(view, self._grid, palette, self._present(), self.POOL)
        if join_fitting(groups, row.left, ("  ", palette.base), row) < len(groups) and row.left > 3:
            row.put("  " + self.glyphs.ellipsis, palette.faint)
        return row.done(palette.base)

    def _present(self) -> Present:
        """Which signs, other than those of every map, can be seen now."""
        codes, grid = self._codes, self._grid
        flags = int(np.bitwise_or.reduce(codes, axis=None)) if codes.size else 0
        by_state = self._view is not None and self._view.colouring == "state"
        second = grid.per_cell == 1 and (grid.tiles or grid.cell_width > 1)
        return Present(
            cached=bool((codes & bc.KIND == bc.CACHED).any()),
            kept=second and (by_state or grid.tiles) and bool(flags & bc.KEPT),
            several=second and bool(flags & bc.SEVERAL),
            copied=bool((codes & bc.MOVE == bc.COPIED).any()),
            moved_out=bool((codes & bc.MOVE == bc.OUT).any()),
            moved_in=bool((codes & bc.MOVE == bc.IN).any()),
        )

    def _marked(self, view: View) -> int | None:
        """The block under the cursor while the map has the focus, else the selected one."""
        return self._cursor if self.has_focus and self._cursor is not None else self.selected_block(view)

    def selected_block(self, view: View) -> int | None:
        """The block of this pool that is selected."""
        return view.selected_block

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0 and self._edges[0]:
            return Strip(self._edges[0], width)
        if self._legend_shown and y == self.size.height - 1 and self._edges[1]:
            return Strip(self._edges[1], width)
        row = y - 1
        if not 0 <= row < len(self._codes) * self._grid.cell_height or self._looks is None:
            return Strip([Segment(" " * width, self.palette.base)], width)
        strip = self._strips.get(row)
        if strip is None:
            strip = self._strips[row] = self._row_strip(row, width)
        return strip

    def _row_strip(self, row: int, width: int) -> Strip:
        grid, looks, palette = self._grid, self._looks, self.palette
        assert looks is not None
        if grid.tiles:
            row, line = divmod(row, grid.cell_height)
            tiles = tile_line(self._codes[row].tolist(), row, line, grid, looks, palette)
            return Strip([*tiles, Segment(" " * (width - sum(len(s.text) for s in tiles)), palette.base)], width)
        segments: list[Segment] = []
        if grid.gutter:
            first = row * grid.columns * grid.per_cell
            segments.append(Segment(f"{first:>{grid.gutter - 1}} ", palette.faint))
        # Neighbours of one style become one Segment: Segments are what drawing costs.
        codes = self._codes[row]
        starts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist()]
        ends = [*starts[1:], len(codes)]
        text, style = "", palette.base
        for code, start, end in zip(codes[starts].tolist(), starts, ends, strict=True):
            cell, cell_style = looks[code]
            if end - start > 1:
                cell *= end - start
            if cell_style is style:
                text += cell
                continue
            if text:
                segments.append(Segment(text, style))
            text, style = cell, cell_style
        segments.append(Segment(text, style))
        rest = width - grid.gutter - grid.columns * grid.cell_width
        if rest > 0:
            segments.append(Segment(" " * rest, palette.base))
        return Strip(segments, width)

    def colours_changed(self) -> None:
        self._looks = None
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        self._looks = None  # a Strip is as wide as the widget was
        self.redraw()

    # --- words -----------------------------------------------------------------------------------------------

    def describe(self, view: View, block: int) -> Content:
        """What is in a block, for a status line."""
        return Content(cell_text(view, self._grid, block, self.POOL))

    def legend(self, view: View) -> Content:
        """All of the legend, for a help or a status line."""
        return to_content(legend_groups(view, self._grid, self.palette, self._present(), self.POOL))

    # --- pointing --------------------------------------------------------------------------------------------

    def _block_at(self, event: events.MouseEvent) -> int | None:
        offset = event.get_content_offset(self)
        return None if offset is None else self._grid.block_at(offset.x, offset.y - 1)

    def _point(self, block: int | None) -> None:
        if block != self._hovered:
            self._hovered = block
            self.post_message(self.Hovered(block))
            self.redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._point(self._block_at(event))

    def on_leave(self, event: events.Leave) -> None:
        self._point(None)

    def on_click(self, event: events.Click) -> None:
        block = self._block_at(event)
        if block is not None:
            self._cursor = block
            self.post_message(self.Picked(block))
            self.redraw()

    def action_move(self, across: int, down: int) -> None:
        grid = self._grid
        step = (across + down * grid.columns) * grid.per_cell
        if self._cursor is None:
            marked = self.selected_block(self._view) if self._view is not None else None
            self._set_cursor(marked if marked is not None else 0)
        elif 0 <= self._cursor + step < grid.blocks:
            self._set_cursor(self._cursor + step)

    def action_edge(self, end: int) -> None:
        self._set_cursor(self._grid.blocks - 1 if end else 0)

    def action_pick(self) -> None:
        if self._cursor is not None:
            self.post_message(self.Picked(self._cursor))

    def _set_cursor(self, block: int) -> None:
        self._cursor = block
        if block == self._hovered:
            self.redraw()
        self._point(block)


class HostMap(BlockMap):
    """A BlockMap of the host pool. A selected block is one of the device, so only the cursor marks one here."""

    POOL: ClassVar[DevicePool] = HOST
    LEGEND_FROM: ClassVar[int] = 4

    class Hovered(BlockMap.Hovered):
        """The mouse or the cursor points at a host block, or at none."""

    class Picked(BlockMap.Picked):
        """A host block was clicked, or Enter pressed on it."""

    @staticmethod
    def has_content(view: View) -> bool:
        """A block of the host pool was used at some time; until then there is nothing to show."""
        state = view.state
        return state is not None and len(state.host_owner) > 0 and state.totals.swapped_out_blocks > 0

    def selected_block(self, view: View) -> int | None:
        return None
