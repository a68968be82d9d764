"""Tiles: cells of a small pool, large enough for the block's number and a bar of the tokens in it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from vtop.app.terminal.colours import Palette
from vtop.app.terminal.glyphs import glyphs, thin_bar
from vtop.app.widgets.map import codes as bc
from vtop.app.widgets.map.grid import Grid
from vtop.app.widgets.map.looks import Looks

_BOLD = Style(bold=True)
_BARE = (bc.EMPTY, bc.FREED, bc.CACHED, bc.OUTSIDE)


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
            quiet = palette.faint if kind in _BARE or code & bc.DIM else palette.muted
            number = str(first + column)
            mark = looks.mark(code)
            tight = size - 1 <= len(number)
            if tight and symbol[0].isdigit():  # an age or a count would run into the number
                number = ""
            elif tight and mark:  # no room for both: what just moved goes before the number
                mark, number = (mark, "") if code & bc.MOVE else ("", number)
            segments.append(Segment(symbol[0], style if kind in _BARE else style + _BOLD))
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
    if kind in _BARE:
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
