"""Incremental text and stop strings, with real tokenizers."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine.output.detokenizer import REPLACEMENT, Detokenizer, StopStrings
from vtop_support.tokenizers import TOKENIZERS, byte_level, metaspace

SAMPLES = [
    "ok 👋🏽 семь 世界 👩\u200d👩\u200d👧",
    " leading and  double  spaces ",
    "the fox\n\n\tand the dog",
    "日本語のテキスト 🙂🙂",
    "don't stop . now , please !",
    "a",
    "",
]


def whole(tokenizer: Any, ids: list[int], skip: bool = True) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def stream(tokenizer: Any, ids: list[int], skip: bool = True, tail: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip, tail or ())
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_text_token_by_token_is_the_text_and_never_half_a_character(kind: str, text: str) -> None:
    """Field case E100."""
    tokenizer = TOKENIZERS[kind]()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert whole(tokenizer, ids) == text, "the test's tokenizer loses text"
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)
    if text.isascii() and kind == "byte-level":
        assert "".join(pieces[:-1]) == text, "plain text is not held back"


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), skip=st.booleans(), length=st.integers(0, 40))
def test_any_ids_give_what_decoding_them_at_once_gives(kind: str, seed: int, skip: bool, length: int) -> None:
    """Ids that no text encodes to: stray bytes, special tokens, spaces; field case E102."""
    tokenizer = TOKENIZERS[kind]()
    rng = random.Random(seed)
    odd = [0, 1, *range(len(tokenizer) - 40, len(tokenizer))]
    ids = [rng.choice(odd) if rng.random() < 0.5 else rng.randrange(len(tokenizer)) for _ in range(length)]
    assert "".join(stream(tokenizer, ids, skip)) == whole(tokenizer, ids, skip)


def test_half_a_character_then_a_space_loses_nothing() -> None:
    """Field case E102."""
    tokenizer = byte_level()
    emoji = tokenizer.encode("🙂", add_special_tokens=False)
    assert len(emoji) == 4
    dog, a = (tokenizer.encode(text, add_special_tokens=False) for text in ("the dog", " a"))
    ids = dog + emoji[:2] + a
    assert "".join(stream(tokenizer, ids)) == f"the dog{REPLACEMENT} a"
    pieces = stream(tokenizer, emoji + emoji[:3])
    assert "".join(pieces) == f"🙂{REPLACEMENT}" and pieces[-1] == REPLACEMENT


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_endless_bytes_do_not_pile_up(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    if kind == "byte-level":
        odd = tokenizer.encode("🙂", add_special_tokens=False)[1]
    else:
        odd = tokenizer.convert_tokens_to_ids("<0x9F>")
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.push(odd) for _ in range(500))
    assert len(text) > 350
    assert len(detokenizer._ids) < 150
    assert (text + detokenizer.flush()).strip(REPLACEMENT) == ""


def test_a_long_run_of_special_tokens_costs_nothing_and_shows_nothing() -> None:
    tokenizer = metaspace()
    end = tokenizer.eos_token_id
    word = tokenizer.encode("the", add_special_tokens=False)
    ids = word + [end] * 300 + word
    assert "".join(stream(tokenizer, ids)) == whole(tokenizer, word + word)
    detokenizer = Detokenizer(tokenizer)
    for token in ids:
        detokenizer.push(token)
    assert len(detokenizer._ids) < 10


def test_with_the_prompt_as_context_a_first_space_stays() -> None:
    tokenizer = metaspace()
    prompt = tokenizer.encode("the dog", add_special_tokens=False)
    answer = tokenizer.encode("and the fox", add_special_tokens=False)
    assert "".join(stream(tokenizer, answer)) == "and the fox"
    assert "".join(stream(tokenizer, answer, tail=prompt[-4:])) == " and the fox"


def test_a_character_begun_in_the_prompt_is_completed() -> None:
    tokenizer = byte_level()
    emoji = tokenizer.encode("🙂", add_special_tokens=False)
    assert "".join(stream(tokenizer, emoji[2:], tail=emoji[:2])) == "🙂"


@pytest.mark.parametrize("character", ["世", "é", "🙂"])
def test_a_long_run_of_byte_tokens_is_shown_as_it_says(character: str) -> None:
    """240 characters that the vocabulary does not have: the run is cut between characters, wherever it is cut."""
    tokenizer = metaspace()
    ids = tokenizer.encode(character * 240, add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == character * 240 == whole(tokenizer, ids)
    assert max(map(len, pieces)) < 70, "not kept to the end"


@pytest.mark.parametrize("tail", range(1, 14))
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_prompt_tail_that_begins_inside_a_character_adds_nothing(kind: str, tail: int) -> None:
    tokenizer = TOKENIZERS[kind]()
    prompt = tokenizer.encode("🙂世🙂", add_special_tokens=False)
    for text in ("the fox", "世🙂 a"):
        answer = tokenizer.encode(text, add_special_tokens=False)
        right = whole(tokenizer, prompt + answer).removeprefix("🙂世🙂")
        got = "".join(stream(tokenizer, answer, tail=prompt[-tail:]))
        assert REPLACEMENT not in got
        if tail >= 4:  # it holds a whole character
            assert got == right


def test_a_prompt_that_ends_inside_a_character_keeps_its_half_to_itself() -> None:
    tokenizer = byte_level()
    emoji = tokenizer.encode("🙂", add_special_tokens=False)
    answer = tokenizer.encode(" a", add_special_tokens=False)
    assert "".join(stream(tokenizer, answer, tail=emoji[:2])) == " a"
    assert "".join(stream(tokenizer, [*emoji[2:], *answer], tail=emoji[:2])) == "🙂 a"


def test_the_cost_of_a_token_does_not_grow() -> None:
    class Counting:
        def __init__(self) -> None:
            self.longest = 0

        def decode(self, ids: list[int], **_: Any) -> str:
            self.longest = max(self.longest, len(ids))
            return "".join(chr(97 + i % 26) for i in ids)

    counting = Counting()
    assert len("".join(stream(counting, list(range(1000))))) == 1000
    assert counting.longest <= 4


# --- stop strings ----------------------------------------------------------------------------------------------------


def shown(stop: tuple[str, ...], pieces: list[str], include: bool = False) -> tuple[str, str | None, str]:
    """(text shown, stop string matched, longest text shown before the match)."""
    matcher, text = StopStrings(stop, include), ""
    for piece in pieces:
        new, matched = matcher.push(piece)
        if matched is not None:
            return text + new, matched, text
        text += new
    return text + matcher.flush(), None, text


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_over_several_tokens(include: bool) -> None:
    """Field case E103."""
    text, matched, before = shown(("QRSTUV",), ["x", "QR", "S", "TU", "Vw"], include)
    assert (text, matched, before) == ("xQRSTUV" if include else "x", "QRSTUV", "x")


def test_what_only_began_like_a_stop_string_is_shown() -> None:
    assert shown(("QRST",), ["xQ", "R", "Q", "RSx", "QR"]) == ("xQRQRSxQR", None, "xQRQRSx")


def test_without_search_text_passes_and_held_text_comes_out() -> None:
    matcher = StopStrings(("end",))
    assert matcher.push("the e") == ("the ", None)
    assert matcher.push("nd", search=False) == ("end", None)
    assert matcher.push("!") == ("!", None)


@settings(max_examples=300, deadline=None)
@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
    text=st.text("abc", max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=6),
    include=st.booleans(),
)
def test_how_the_text_is_cut_changes_nothing(stop: tuple[str, ...], text: str, cuts: list[int], include: bool) -> None:
    """The end is the first position at which any stop string is complete; nothing of it was shown before."""
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    got, matched, before = shown(stop, pieces, include)
    ends = [end for end in range(1, len(text) + 1) if any(text[:end].endswith(s) for s in stop)]
    if not ends:
        assert (got, matched) == (text, None)
        return
    longest = max((s for s in stop if text[: ends[0]].endswith(s)), key=len)
    assert matched == longest
    assert got == text[: ends[0] if include else ends[0] - len(longest)]
    assert text[: ends[0] - len(longest)].startswith(before), "a part of the stop string was shown"
