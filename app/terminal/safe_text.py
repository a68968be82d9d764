"""Text from outside (prompts, ids, outputs), made fit for a terminal cell grid.

Nothing here is markup. Control characters become visible, bidirectional overrides too, and what terminals disagree
about is dropped (joiners, variation selectors) or written otherwise (spacing vowel signs: a cell to some, none to
others), so that a width measured here is the width on the screen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from rich.cells import cell_len, split_graphemes

Align = Literal["left", "right"]

# A grapheme rarely needs more code points than this; longer pieces are cut before they are looked at.
_POINTS_PER_CELL: Final = 4
_SPARE_POINTS: Final = 16

_BIDI: Final = {
    0x061C: "ALM", 0x200E: "LRM", 0x200F: "RLM", 0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO",
    0x202E: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
}  # fmt: skip


def _table() -> Mapping[int, str | None]:
    table: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x0A] = "␤"
    table[0x7F] = "␡"
    table.update({code: f"\\x{code:02x}" for code in range(0x80, 0xA0)})
    table.update({code: f"⟨{name}⟩" for code, name in _BIDI.items()})
    table[0x85] = table[0x2028] = table[0x2029] = "␤"
    # Joiners, variation selectors, skin tones, the keycap mark, tags: width depends on the terminal.
    for code in (0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x20E3, 0x00AD, 0x034F, 0x180E):
        table[code] = None
    for low, high in ((0xFE00, 0xFE0F), (0x1F3FB, 0x1F3FF), (0xE0000, 0xE01EF)):
        table.update(dict.fromkeys(range(low, high + 1), None))
    table.update({0x3164: "  ", 0xFFA0: " "})  # fillers, which some show and others do not
    table.update({code: f"({10 * (code - 0x3247)})" for code in range(0x3248, 0x3250)})  # one cell or two
    table.update(dict.fromkeys(range(0xD800, 0xE000), "�"))  # lone surrogates cannot be written out
    return MappingProxyType(table)


_VISIBLE: Final = _table()
_ASCII_CONTROLS: Final[Mapping[int, str]] = MappingProxyType(
    {code: f"^{chr(code ^ 0x40)}" for code in (*range(0x20), 0x7F)}
)
# Three marks on one letter are language, thirty are an attack on the lines above and below.
_MARKS: Final = r"[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]"
_FIRST_SPACING: Final = "\u0903"  # of the spacing combining marks (Mc)
_STACKED: Final = re.compile(rf"({_MARKS}{{3}}){_MARKS}+")


def clean(text: str, *, ascii: bool = False) -> str:
    """`text` with every character printable, on one line. With `ascii`, other letters become escapes (`\\u8bf7`)."""
    if text.isascii():
        if text.isprintable():
            return text
        return text.translate(_ASCII_CONTROLS if ascii else _VISIBLE)
    if ascii:
        return text.translate(_ASCII_CONTROLS).encode("ascii", "backslashreplace").decode("ascii")
    text = _STACKED.sub(r"\1", text.translate(_VISIBLE))
    if spacing := [c for c in set(text) if c >= _FIRST_SPACING and unicodedata.category(c) == "Mc"]:
        text = text.translate({ord(mark): _spelled(mark) for mark in spacing})
    if not text.isprintable():  # odd spaces, private use, characters newer than the tables
        text = "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)
    # A mark without a letter would land on whatever stands before it on the screen.
    return f" {text}" if text and cell_len(text[0]) == 0 else text


@cache
def _spelled(mark: str) -> str:
    """A spacing mark as a character of one cell: the letter of the same vowel, else the circle that stands for a mark.

    To libc's tables and most terminals such marks take a cell, to the ones that shape text they take none.
    """
    name = unicodedata.name(mark, "")
    if name.endswith("VISARGA"):
        return ":"
    try:
        letter = unicodedata.lookup(name.replace("VOWEL SIGN", "LETTER"))
    except KeyError:
        return "◌"
    return letter if letter != mark else "◌"


def cells(text: str) -> int:
    """Width of clean text in terminal cells."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int) -> str:
    """The longest start of clean text that fits `width` cells; a wide character is never halved."""
    if text.isascii():
        return text[: max(0, width)]
    used = 0
    spans, _ = split_graphemes(text[: max(0, width) * _POINTS_PER_CELL + _SPARE_POINTS])
    for start, _end, size in spans:
        if used + size > width:
            return text[:start]
        used += size
    return text[: spans[-1][1]] if spans else ""


def shorten(text: str, width: int, *, ascii: bool = False) -> str:
    """`text` cleaned and, when it is too wide, cut with an ellipsis. At most `width` cells."""
    if width <= 0:
        return ""
    limit = width * _POINTS_PER_CELL + _SPARE_POINTS
    head = clean(text[:limit], ascii=ascii)
    if len(text) <= limit and cells(head) <= width:
        return head
    ellipsis = ".." if ascii else "…"
    return cut(head, width - cells(ellipsis)) + ellipsis if width > cells(ellipsis) else cut(head, width)


def fit(text: str, width: int, *, ascii: bool = False, align: Align = "left") -> str:
    """`text` cleaned, cut with an ellipsis and padded to exactly `width` cells."""
    short = shorten(text, width, ascii=ascii)
    pad = " " * (max(0, width) - cells(short))
    return pad + short if align == "right" else short + pad


def wrap(text: str, width: int, *, ascii: bool = False) -> list[str]:
    """`text` in lines of at most `width` cells. A line end of the text is shown and ends the line.

    Breaks anywhere: prompts and outputs are tokens to look at, not prose to set.
    """
    width = max(2, width)
    mark = "^J" if ascii else "␤"
    lines: list[str] = []
    for part in text.replace("\r\n", "\n").split("\n"):
        rest = clean(part, ascii=ascii)
        while rest and cells(rest) > width:
            piece = cut(rest, width)
            lines.append(piece)
            rest = rest[len(piece) :]
        lines.append(rest)
        if cells(rest) + len(mark) <= width:
            lines[-1] += mark
    # The last part ends with the text, not with a line end.
    lines[-1] = lines[-1].removesuffix(mark)
    if lines[-1] == "" and len(lines) > 1:
        lines.pop()
    return lines


def tail(text: str, width: int, rows: int, *, ascii: bool = False) -> list[str]:
    """The last `rows` lines of `text` wrapped to `width`, without looking at more of it than that takes."""
    if rows <= 0:
        return []
    return wrap(text[-(rows * max(2, width)) :], width, ascii=ascii)[-rows:]
