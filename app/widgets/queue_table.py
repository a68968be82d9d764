"""A queue as a table. However long the queue is, only the rows on the screen are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from vtop.app.live.view import View
from vtop.app.widgets.panel import ListPanel, Rows
from vtop.app.widgets.queue_columns import GAP, ROOMY, Context, layout
from vtop.app.widgets.queue_order import QueueKind, QueueOrder
from vtop.app.widgets.reasons import queue_head, swapped_head, why_waiting
from vtop.app.widgets.rows import Piece, Row, heading
from vtop.app.widgets.units import count
from vtop.app.widgets.urgency import aging_of, any_deadline
from vtop.engine.state.fold import EngineState, RequestView

MARK = 1  # column of the mark of the selected row
TITLES_FROM = 4  # rows: a lower table has no column titles
_EMPTY = {"waiting": "nobody waits", "running": "nothing runs", "finished": "nothing has finished yet"}


class QueueTable(ListPanel):
    """Waiting (swapped ones, then next first), running (policy order) or finished requests (latest first).

    The selection is a request id, `view.selected`: it stays on its request, and while the table has the focus it stays
    on its line of the screen too, so the list never moves under the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Details", show=False, id="queue.open"),
    ]

    class Selected(Message):
        """The cursor went to a request."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    class Opened(Message):
        """Enter, or a second click, on a request."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    def __init__(self, kind: QueueKind, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.kind: QueueKind = kind
        self._order: QueueOrder | None = None
        self._order_version: tuple[int, int] | None = None
        self._pending: str | None = None  # selected here, and the app has not said so yet
        self._line: int | None = None  # of the selected request, when it was on the screen
        self._seen: tuple[str, int] | None = None  # the request that was selected here, and its place in the queue
        self._top_id: str | None = None
        self._shown: Sequence[RequestView] = ()

    # --- drawing ---------------------------------------------------------------------------------------------

    def show(self, view: View) -> None:
        if view is not self._view or view.version != self._version:
            self._pending = None
        super().show(view)

    def _current_order(self, view: View, state: EngineState) -> QueueOrder:
        version = (id(state), view.version)
        if self._order is None or version != self._order_version:
            self._order, self._order_version = QueueOrder(state, self.kind), version
        return self._order

    def _chosen(self, view: View) -> str | None:
        return self._pending if self._pending is not None else view.selected

    def build(self, view: View, width: int, height: int) -> Rows:
        state = view.state
        palette = self.palette
        if state is None:
            return [heading(self.kind.upper(), [], [], width, palette, self.has_focus, view.ascii)]
        order = self._current_order(view, state)
        waiting = self.kind == "waiting"
        head, swapped = (queue_head(state), swapped_head(state)) if waiting else (None, None)
        titles = height >= TITLES_FROM
        self.page = max(1, height - 1 - titles)
        self.total = len(order)
        self._place(order, self._chosen(view))
        self._shown = order.window(self.top, self.page)
        self._top_id = self._shown[0].id if self._shown else None
        roomy = self.app.size.width >= ROOMY
        aging = aging_of(state) if waiting and roomy else None
        slack = roomy and self.kind != "finished" and any_deadline(state)
        columns = layout(self.kind, width - 1 - MARK, aging is not None, slack)
        rows: Rows = [self._heading(view, state, head, width)]
        if titles:
            row = Row(width, view.ascii).gap(palette.base, MARK)
            for column, size in columns:
                row.field(column.title, palette.muted, size, column.align).gap(palette.base, GAP)
            rows.append(row.done(palette.base))
        context = Context(palette, self.glyphs, view.ascii, view.now, head, state, swapped, aging)
        chosen = self._chosen(view)
        self._line = None
        for line, request in enumerate(self._shown):
            row = Row(width - 1, view.ascii)
            row.put(self.glyphs.marker if request.id == chosen else " ", palette.accent)
            for number, (column, size) in enumerate(columns):
                if number:
                    row.gap(palette.base, GAP)
                column.draw(row, request, size, self.top + line, context)
            row.put(" " * row.left, palette.base)
            if request.id == chosen:
                self._line = line
                self._seen = chosen, self.top + line
                row.segments = [Segment(s.text, s.style + palette.row_bg) for s in row.segments if s.style]
            rows.append(self.end_row(row, line))
        if not self._shown:
            rows.append(Row(width, view.ascii).put("  " + _EMPTY[self.kind], palette.faint).done(palette.base))
        while len(rows) < height:
            rows.append(Row(width, view.ascii).done(palette.base))
        return rows

    def _place(self, order: QueueOrder, chosen: str | None) -> None:
        """Choose `top` so that what the person looks at stays where it is."""
        if self.total > self.page:
            if self._line is not None and self.has_focus and chosen is not None:
                index = order.index(chosen)
                if index is not None:
                    self.top = index - min(self._line, self.page - 1)
            elif self.top and self._top_id is not None:
                index = order.index(self._top_id)
                if index is not None:
                    self.top = index
        self.top = max(0, min(self.top, self.total - self.page))

    def _heading(self, view: View, state: EngineState, head: RequestView | None, width: int) -> list[Segment]:
        palette = self.palette
        facts: list[Piece] = [(f"  {count(self._members(state))}", palette.base)]
        notes: list[Piece] = []
        if self.kind == "waiting" and state.swapped:
            facts.append((f" {self.glyphs.swap_out} {count(len(state.swapped))} swapped", palette.warn))
        if self.kind == "waiting" and head is not None and head.reason is not None and self.top:
            notes.append((why_waiting(head, head, state, view.ascii), palette.warn))
        elif self.kind == "running" and self.total:
            most = state.options.get("max_num_seqs", state.meta.max_num_seqs)
            notes.append((f"{count(state.seats)} of {count(most)} seats", palette.muted))
        elif self.kind == "finished" and state.totals.refused:
            facts.append((f" {self.glyphs.dot} {count(state.totals.refused)} refused", palette.warn))
        if self.total > self.page:
            last = min(self.top + self.page, self.total)
            facts.append((f" {self.glyphs.dot} {count(self.top + 1)}{self.glyphs.upto}{count(last)}", palette.muted))
        return heading(self.kind.upper(), facts, notes, width, palette, self.has_focus, view.ascii)

    def _members(self, state: EngineState) -> int:
        """As the header counts: swapped ones, which stand above the waiting, and finished ones no longer kept apart."""
        if self.kind == "waiting":
            return len(state.waiting)
        return sum(state.totals.finished.values()) if self.kind == "finished" else self.total

    # --- choosing --------------------------------------------------------------------------------------------

    def scrolled(self) -> None:
        self._line = None
        self._top_id = None

    def action_move(self, lines: int) -> None:
        view = self._view
        if view is None or view.state is None:
            return
        order = self._current_order(view, view.state)
        if not len(order):
            return
        chosen = self._chosen(view)
        index = order.index(chosen) if chosen is not None else None
        if index is None and self._seen is not None and self._seen[0] == chosen:
            index, lines = self._seen[1], lines - (lines > 0)  # it went to another queue: go on from where it was
        elif index is None:  # nothing chosen here: a first step takes the top row, a leap goes where it leads
            index, lines = self.top, lines if abs(lines) > 1 else 0
        target = max(0, min(index + lines, len(order) - 1))
        self.top = max(target - self.page + 1, min(self.top, target))
        self._top_id = None
        self._line = target - self.top
        self._select(order.window(target, 1)[0].id)

    def _select(self, request_id: str) -> None:
        self._pending = request_id
        self.post_message(self.Selected(request_id))
        self.redraw()

    def action_open(self) -> None:
        chosen = self._chosen(self._view) if self._view is not None else None
        if chosen is not None:
            self.post_message(self.Opened(chosen))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        line = offset.y - (2 if self.size.height >= TITLES_FROM else 1)
        if 0 <= line < len(self._shown):
            request_id = self._shown[line].id
            if event.chain == 2:
                self.post_message(self.Opened(request_id))
            else:
                self._line = line
                self._select(request_id)
