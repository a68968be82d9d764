"""Builds one screen row, exactly as wide as it must be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from vtop.app.terminal import safe_text
from vtop.app.terminal.colours import Palette
from vtop.app.terminal.glyphs import glyphs
from vtop.app.terminal.safe_text import Align

Piece = tuple[str, Style]  # text of our own making, already printable


class Row:
    """Segments from left to right. What does not fit is cut; `done` pads the rest."""

    __slots__ = ("ascii", "left", "segments")

    def __init__(self, width: int, ascii: bool) -> None:
        self.segments: list[Segment] = []
        self.left = width
        self.ascii = ascii

    def put(self, text: str, style: Style) -> Row:
        """Text of our own making."""
        size = safe_text.cells(text)
        if size > self.left:
            text = safe_text.cut(text, self.left)
            size = safe_text.cells(text)
        if text:
            self.segments.append(Segment(text, style))
            self.left -= size
        return self

    def field(self, text: str, style: Style, width: int, align: Align = "left") -> Row:
        """Text from anywhere, in exactly `width` cells (or what is left)."""
        return self.put(safe_text.fit(text, min(width, self.left), ascii=self.ascii, align=align), style)

    def words(self, text: str, style: Style, most: int | None = None) -> Row:
        """Text from anywhere, as wide as it is, shortened to `most` or what is left."""
        width = self.left if most is None else min(most, self.left)
        return self.put(safe_text.shorten(text, width, ascii=self.ascii), style)

    def gap(self, style: Style, cells: int = 1) -> Row:
        return self.put(" " * cells, style)

    def done(self, style: Style) -> list[Segment]:
        if self.left > 0:
            self.segments.append(Segment(" " * self.left, style))
            self.left = 0
        return self.segments


def cells_of(pieces: Sequence[Piece]) -> int:
    return sum(safe_text.cells(text) for text, _ in pieces)


def heading(
    title: str,
    facts: Sequence[Piece],
    notes: Sequence[Piece],
    width: int,
    palette: Palette,
    focus: bool,
    ascii: bool,
) -> list[Segment]:
    """The first row of a panel: `─ TITLE facts ───────── notes ─`. Notes that do not fit are left out."""
    g = glyphs(ascii)
    row = Row(width, ascii)
    row.put((g.marker if focus else g.rule) + " ", palette.title_focus if focus else palette.faint)
    row.put(title, palette.title_focus if focus else palette.title)
    for text, style in facts:
        row.put(text, style)
    room = row.left - 4
    shown: list[Piece] = []
    for piece in notes:
        room -= safe_text.cells(piece[0])
        if room < 0:
            break
        shown.append(piece)
    row.put(" ", palette.base)
    ruler = row.left - cells_of(shown) - (3 if shown else 0)
    row.put(g.rule * max(0, ruler), palette.faint)
    if shown:
        row.put(" ", palette.base)
        for text, style in shown:
            row.put(text, style)
        row.put(" " + g.rule, palette.faint)
    return row.done(palette.base)


def join_fitting(pieces: Sequence[Sequence[Piece]], width: int, gap: Piece, row: Row) -> int:
    """Put whole groups of pieces while they fit; returns how many were put."""
    put = 0
    for group in pieces:
        need = cells_of(group) + (safe_text.cells(gap[0]) if put else 0)
        if need > min(row.left, width):
            break
        if put:
            row.put(*gap)
        for text, style in group:
            row.put(text, style)
        width -= need
        put += 1
    return put
