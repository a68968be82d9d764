"""How a code of the block map looks: its characters and its style."""

from __future__ import annotations

from rich.style import Style

from vtop.app.colours import OWNERS, Palette
from vtop.app.glyphs import Glyphs, glyphs, letter
from vtop.app.widgets import block_codes as bc

Look = tuple[str, Style]


class Looks:
    """Looks up codes, and keeps what it found: a few hundred codes make up any map."""

    def __init__(self, palette: Palette, ascii: bool, cell_width: int) -> None:
        self._palette = palette
        self.ascii = ascii
        self._glyphs: Glyphs = glyphs(ascii)
        self._width = cell_width
        self._known: dict[int, Look] = {}

    def __getitem__(self, code: int) -> Look:
        look = self._known.get(code)
        if look is None:
            look = self._known[code] = self._make(code)
        return look

    def _make(self, code: int) -> Look:
        palette, g = self._palette, self._glyphs
        kind, number, level = code & bc.KIND, code & bc.NUMBER, (code >> bc.LEVEL_SHIFT) & 0xF
        symbol, style = self._plain(kind, number, level)
        if code & bc.DIM and kind not in (bc.EMPTY, bc.OUTSIDE):
            style = palette.faint
        if code & bc.LIT:
            colour = number % OWNERS if kind == bc.OWNER and number != bc.MIXED else 0
            # Reversed bars would read as the opposite level, so an aggregate is lit by weight.
            style = palette.owners[colour] + Style(bold=True) if level else palette.lit[colour]
        text = symbol
        if level:
            second = letter(number) if kind == bc.OWNER and number != bc.MIXED else " "
            text = g.fill[level - 1] + (second if self._width > 1 else "")
        if code & bc.MARKED:
            style = palette.cursor
            text = text[0] + g.cursor if self._width > 1 else text
        if self._width == 3 and len(text) < 3 and kind not in (bc.EMPTY, bc.FREED, bc.OUTSIDE):
            text = f" {text}"
        return f"{text:<{self._width}}", style

    def _plain(self, kind: int, number: int, level: int) -> Look:
        palette, g = self._palette, self._glyphs
        if kind == bc.OUTSIDE:
            return " ", palette.base
        if kind == bc.EMPTY:
            return (f" {g.free}" if self._width == 3 else g.free), palette.faint
        if kind == bc.FREED:
            return (f" {g.freed}" if self._width == 3 else g.freed), palette.warn
        if kind == bc.OWNER:
            if number == bc.MIXED:
                return g.used, palette.muted
            return letter(number), palette.owner(number) if level else palette.tiles[number % OWNERS]
        if kind == bc.AGE:
            # An aggregate draws bars: they need the foreground, single blocks are tiles.
            return str(number), palette.ages[number]
        if kind == bc.REFS:
            style = palette.tiles[0] if number <= 1 else palette.tiles[1 if number < 4 else 7]
            return (str(number) if number < 10 else "+"), _plain(style, palette) if level else style
        if kind == bc.SHARED:
            return g.shared, palette.owners[4] if level else palette.tiles[4]
        if kind == bc.OPEN:
            return g.open, palette.tiles[2]
        return g.used, palette.owners[0] if level else palette.tiles[0]


def _plain(style: Style, palette: Palette) -> Style:
    """The same colour on the common background."""
    return Style(color=style.color, bgcolor=palette.base.bgcolor)
