"""How a code of the block map looks: its characters and style, and as a tile where the pool is small."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from vtop.app.terminal.colours import OWNERS, Palette
from vtop.app.terminal.glyphs import Glyphs, glyphs, letter, thin_bar
from vtop.app.widgets.map import codes as bc
from vtop.app.widgets.map.grid import Grid

Look = tuple[str, Style]
_BY_STATE = (bc.USED, bc.OPEN, bc.SHARED)
_NOBODY = (bc.OUTSIDE, bc.EMPTY, bc.FREED, bc.CACHED)
_BOLD = Style(bold=True)


class Looks(dict[int, Look]):
    """Code to look, filled as codes come up: a few hundred make up any map. A dict, because every cell asks it."""

    def __init__(self, palette: Palette, ascii: bool, grid: Grid) -> None:
        super().__init__()
        self.tiles = grid.tiles
        self._palette = palette
        self.ascii = ascii
        self._glyphs: Glyphs = glyphs(ascii)
        self._width = 1 if grid.tiles else grid.cell_width
        self._aggregate = grid.per_cell > 1

    def __missing__(self, code: int) -> Look:
        look = self[code] = self._make(code)
        return look

    def _make(self, code: int) -> Look:
        palette, g = self._palette, self._glyphs
        kind, number, level = code & bc.KIND, code & bc.NUMBER, (code >> bc.LEVEL_SHIFT) & 0xF
        text, style = self._plain(kind, number)
        move = self._move(code)
        narrow = self._width == 1 and not self.tiles
        if move and kind in _NOBODY:
            text, style = (f" {move}" if self._width == 3 else move), palette.warn
        elif move and kind in _BY_STATE and not self._aggregate:
            text, style = move, palette.tiles[5]
        elif move and narrow and not self._aggregate:
            text = move  # the only place; whose it is remains to be seen by its colour
        if code & bc.DIM and kind not in (bc.EMPTY, bc.OUTSIDE):
            style = palette.faint
        if code & bc.LIT:
            colour = number % OWNERS if kind == bc.OWNER and number != bc.MIXED else 0
            # Reversed bars would read as the opposite level, so an aggregate is lit by weight.
            style = palette.owners[colour] + Style(bold=True) if self._aggregate else palette.lit[colour]
        if level and self._aggregate:
            second = letter(number) if kind == bc.OWNER and number != bc.MIXED else " "
            text = move if move and narrow else g.fill[level - 1] + ((move or second) if self._width > 1 else "")
        elif level and self._width > 1 and (not move or kind in _BY_STATE):
            text += g.fill[level - 1]
        elif self._width > 1:
            text += self.mark(code)
        if code & bc.MARKED:
            style = palette.cursor
            text = text[0] + g.cursor if self._width > 1 else text
        if self._width == 3 and len(text) < 3 and kind not in (bc.EMPTY, bc.FREED, bc.CACHED, bc.OUTSIDE):
            text = f" {text}"
        return f"{text:<{self._width}}", style

    def mark(self, code: int) -> str:
        """A second sign of a held block, where there is room for one; empty when it needs none.

        Tiles have room in every colouring, other cells only for what their colouring does not hide behind a letter.
        """
        g, kind = self._glyphs, code & bc.KIND
        if code & bc.MOVE and kind not in _BY_STATE and kind not in _NOBODY:
            return self._move(code)
        if code & bc.SEVERAL:
            return g.others
        if code & bc.KEPT and kind not in _NOBODY and (kind in _BY_STATE or self.tiles):
            return g.kept
        return ""

    def _move(self, code: int) -> str:
        """The sign of what just moved; empty when nothing did."""
        g, move = self._glyphs, code & bc.MOVE
        return {bc.COPIED: g.copied, bc.OUT: g.to_host, bc.IN: g.from_host}.get(move, "")

    def _plain(self, kind: int, number: int) -> Look:
        palette, g, aggregate = self._palette, self._glyphs, self._aggregate
        if kind == bc.OUTSIDE:
            return " ", palette.base
        if kind == bc.EMPTY:
            return (f" {g.free}" if self._width == 3 else g.free), palette.faint
        if kind == bc.FREED:
            return (f" {g.freed}" if self._width == 3 else g.freed), palette.warn
        if kind == bc.CACHED:
            return (f" {g.cached}" if self._width == 3 else g.cached), palette.muted
        if kind == bc.OWNER:
            if number == bc.MIXED:
                return g.used, palette.muted
            return letter(number), palette.owner(number) if aggregate else palette.tiles[number % OWNERS]
        if kind == bc.AGE:
            # An aggregate draws bars: they need the foreground, single blocks are tiles.
            return str(number), palette.ages[number]
        if kind == bc.REFS:
            style = palette.tiles[0] if number <= 1 else palette.tiles[1 if number < 4 else 7]
            return (str(number) if number < 10 else "+"), _plain(style, palette) if aggregate else style
        if kind == bc.SHARED:
            return g.shared, palette.owners[4] if aggregate else palette.tiles[4]
        if kind == bc.OPEN:
            return g.open, palette.tiles[2]
        return g.used, palette.owners[0] if aggregate else palette.tiles[0]


def _plain(style: Style, palette: Palette) -> Style:
    """The same colour on the common background."""
    return Style(color=style.color, bgcolor=palette.base.bgcolor)


def tile_line(codes: Sequence[int], row: int, line: int, grid: Grid, looks: Looks, palette: Palette) -> list[Segment]:
    """One screen row of a row of tiles: line 0 has symbols and numbers, line 1 the bars, line 2 is a gap."""
    size = grid.cell_width - 1
    segments = [Segment(" " * grid.gutter, palette.base)]
    first = row * grid.columns
    for column, code in enumerate(codes):
        kind = code & bc.KIND
        symbol, style = looks[code]
        if line > 1 or kind == bc.OUTSIDE:
            segments.append(Segment(" " * size, palette.base))
        elif line == 0:
            quiet = palette.faint if kind in _NOBODY or code & bc.DIM else palette.muted
            number = str(first + column)
            mark = looks.mark(code)
            tight = size - 1 <= len(number)
            if tight and symbol[0].isdigit():  # an age or a count would run into the number
                number = ""
            elif tight and mark:  # no room for both: what just moved goes before the number
                mark, number = (mark, "") if code & bc.MOVE else ("", number)
            segments.append(Segment(symbol[0], style if kind in _NOBODY else style + _BOLD))
            if mark:
                segments.append(Segment(mark, style if code & (bc.SEVERAL | bc.MOVE) else _on(quiet, style, code)))
            segments.append(Segment(f"{number:>{size - 1 - len(mark)}}", _on(quiet, style, code)))
        else:
            segments.extend(_bar(code, kind, size, style, looks, palette))
        segments.append(Segment(" ", palette.base))
    return segments


def _bar(code: int, kind: int, size: int, style: Style, looks: Looks, palette: Palette) -> list[Segment]:
    if kind == bc.CACHED:  # thinner than what somebody holds
        ground = palette.cursor if code & bc.MARKED else palette.faint
        return [Segment(glyphs(looks.ascii).rule * size, ground)]
    if kind in _NOBODY:
        return [Segment(" " * size, palette.cursor if code & bc.MARKED else palette.base)]
    level = (code >> bc.LEVEL_SHIFT) & 0xF
    done, rest = thin_bar((level or bc.LEVELS) / bc.LEVELS, size, looks.ascii)
    segments = [Segment(done, style)]
    if rest:
        segments.append(Segment(rest, _on(palette.faint, style, code)))
    return segments


def _on(style: Style, tile: Style, code: int) -> Style:
    """A quieter style on the ground of the tile; what is lit or marked stays as it is."""
    return tile if code & (bc.LIT | bc.MARKED) else style + Style(bgcolor=tile.bgcolor)
