"""Text from outside: nothing in it reaches the terminal as anything but visible letters of known width."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vtop.app.safe_text import clean, cut, fit, shorten, tail, wrap

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
    start = time.perf_counter()
    fit(text, 40)
    tail(text, 80, 20)
    assert time.perf_counter() - start < 0.2  # cleaning all of it takes seconds
