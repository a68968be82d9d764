"""Text from outside: nothing in it reaches the terminal as anything but visible letters of known width."""

from __future__ import annotations

import ctypes
import functools
import locale
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from vtop.app.terminal.safe_text import clean, cut, fit, shorten, tail, wrap

NASTY = [
    *("请求-1", "e\u0301te\u0301", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "ก็" * 9, "\u0301start", "Z" + "\u0335" * 400),
    *("[/]", "[/", "x[/red] y", "<s>[INST] hi [/INST]"),
    *("\t", "\x1b[31mred\x1b[0m", "\x9b31m", "\u202eabc", "a\r\nb", "\x00\x07\x7f", "\ud800"),
]


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("ascii", [False, True])
def test_clean_is_printable_on_one_line(text: str, ascii: bool) -> None:
    shown = clean(text, ascii=ascii)
    assert shown.isprintable()
    shown.encode("utf-8")
    assert not ascii or shown.isascii()
    assert not set(shown) & set("\u202e\u200d\ufe0f")


def test_markup_stays_letter_by_letter() -> None:
    assert clean("x[/red] y [INST]") == "x[/red] y [INST]"


def test_controls_are_visible() -> None:
    assert clean("\x1b[2J\n\t") == "␛[2J␤␉"
    assert clean("\x1b[2J\n\t", ascii=True) == "^[[2J^J^I"
    assert clean("a\u202eb") == "a⟨RLO⟩b"
    assert clean("\x9b1m") == "\\x9b1m"
    assert clean("请", ascii=True) == "\\u8bf7"


def test_a_pile_of_marks_is_cut() -> None:
    assert len(clean("Z" + "\u0335" * 400)) == 4


@given(st.text(), st.integers(0, 30), st.booleans(), st.sampled_from(["left", "right"]))
def test_fit_is_exact(text: str, width: int, ascii: bool, align: str) -> None:
    shown = fit(text, width, ascii=ascii, align=align)  # type: ignore[arg-type]
    assert cell_len(shown) == width
    assert not ascii or shown.isascii()


@given(st.text(), st.integers(0, 30))
def test_shorten_never_exceeds(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width


def test_a_wide_character_is_not_halved() -> None:
    assert cut("请求", 3) == "请"
    assert fit("请求-1", 4) == "请… "
    assert fit("请求-1", 6) == "请求-1"


@given(st.text(), st.integers(2, 30), st.booleans())
def test_wrap_fits_and_keeps_every_line_end(text: str, width: int, ascii: bool) -> None:
    for line in wrap(text, width, ascii=ascii):
        assert cell_len(line) <= width
        assert line.isprintable()


def test_wrap_shows_line_ends() -> None:
    assert wrap("one\ntwo\n", 20) == ["one␤", "two␤"]
    assert wrap("one\n\ntwo", 20) == ["one␤", "␤", "two"]
    assert wrap("abcdef", 3) == ["abc", "def"]
    assert wrap("", 10) == [""]


def test_long_text_is_cut_before_it_is_cleaned() -> None:
    text = "请\x1b" * 2_000_000
    tracemalloc.start()
    try:
        fit(text, 40)
        tail(text, 80, 20)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # bytes at most; all of it, cleaned, takes millions
    finally:
        tracemalloc.stop()


# --- terminals -------------------------------------------------------------------------------------------------------

INDIC = ["हिन्दी में नमस्ते", "বাংলা ভাষা", "தமிழ் மொழி", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "ಕನ್ನಡ ಭಾಷೆ", "සිංහල භාෂාව", "ꦧꦱꦗꦮ", "දුඃඛ"]


@functools.cache
def libc_width() -> Callable[[str], int]:
    """glibc's wcwidth, summed: what most terminals go by."""
    try:
        wcwidth = ctypes.CDLL("libc.so.6").wcwidth
    except (OSError, AttributeError):
        pytest.skip("no glibc here")
    wcwidth.argtypes = [ctypes.c_uint]
    before = locale.setlocale(locale.LC_CTYPE)
    widths: dict[str, int] = {}

    def width(text: str) -> int:
        unknown = {c for c in text if c not in widths}
        if unknown:
            try:
                locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
                widths.update({c: wcwidth(ord(c)) for c in unknown})
            except locale.Error:
                pytest.skip("no UTF-8 locale here")
            finally:
                locale.setlocale(locale.LC_CTYPE, before)
        return sum(max(0, widths[c]) for c in text)  # -1: newer than libc's table

    return width


@pytest.mark.parametrize("text", INDIC)
@pytest.mark.parametrize("width", [1, 2, 5, 10, 20])
def test_spacing_marks_take_no_more_cells_than_they_are_given(text: str, width: int) -> None:
    shown = fit(text, width)
    assert libc_width()(shown) == cell_len(shown) == width, shown
    for line in wrap(text, width):
        assert libc_width()(line) <= max(2, width)


def test_spacing_vowels_stay_readable() -> None:
    assert clean("हिन्दी") == "हइन्दई"
    assert clean("ខ្មែ") == "ខ្ម◌"
    assert clean("दुःख") == "दु:ख"


@settings(max_examples=400, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30), width=st.integers(0, 12))
def test_no_text_takes_more_cells_than_it_is_given(text: str, width: int) -> None:
    assert libc_width()(fit(text, width)) <= width
    assert libc_width()(shorten(text, width)) <= width


def test_no_character_takes_more_cells_than_it_is_counted_for() -> None:
    """All of Unicode but for the ideographs, each behind a letter."""
    width = libc_width()
    codes = [*range(0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x1FB00)]
    shown = {code: clean(f"a{chr(code)}") for code in codes}
    width("".join(shown.values()))  # to look all of them up at once
    assert not [f"{code:x}" for code, text in shown.items() if width(text) > cell_len(text)]
