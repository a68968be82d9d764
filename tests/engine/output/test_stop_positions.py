"""Where a stop string ends an output, against transformers' StopStringCriteria, with real tokenizers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine.clock import ManualClock
from vtop.engine.executor import SampledToken
from vtop.engine.output.text import TextOutput
from vtop.engine.request import SamplingParams, new_request
from vtop_support.tokenizers import TOKENIZERS

PIECES = ["the", " fox", "\n", "\n\n", " ", "a", "ab", "世", "界", "🙂", "é", ".", " dog", "\t", "def", "b\n"]


@cache
def tiny() -> Any:
    from transformers import AutoTokenizer

    from vtop.engine.model.source import resolve

    return AutoTokenizer.from_pretrained(resolve("tiny").location)


KINDS = {**TOKENIZERS, "tiny": tiny}


@dataclass(frozen=True)
class Told:
    tokens: int
    text: str
    reason: str | None
    stop: str | int | None
    streamed: str


def told(tokenizer: Any, ids: list[int], prompt: list[int], **params: Any) -> Told:
    """What comes of these output tokens, one by one, with room for no more."""
    texts = TextOutput(tokenizer, frozenset(), ManualClock())
    options = SamplingParams(max_tokens=len(ids), **params)
    request = new_request("r", 0, list(prompt), options, arrival=0.0, limit=len(prompt) + len(ids), seed=0)
    texts.open(request)
    seq = request.sequences[0]
    streamed = ""
    for token in ids:
        seq.token_ids.append(token)
        accepted = texts.accept(seq, SampledToken(token))
        streamed += accepted.text
        if accepted.finish is not None:
            request.finish_reason, request.stop_reason = accepted.finish, accepted.stop_reason
            break
    streamed += texts.close(request)
    sample = texts.take_changed()[0].outputs[0]
    return Told(len(sample.token_ids), sample.text, sample.finish_reason, sample.stop_reason, streamed)


def first_stop(tokenizer: Any, ids: list[int], stop: list[str], least: int) -> int | None:
    """The number of tokens, at least `least`, after which transformers stops; None for never."""
    import torch
    from transformers.generation.stopping_criteria import StopStringCriteria

    try:
        criteria = StopStringCriteria(tokenizer, stop)
    except ValueError:  # no token ends in any of them
        return None
    for count in range(max(1, least), len(ids) + 1):
        if criteria(torch.tensor([ids[:count]]), None).item():
            return count
    return None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=14))
def test_an_output_stops_where_transformers_stops(kind: str, seed: int, pieces: list[str]) -> None:
    tokenizer, rng, text = KINDS[kind](), random.Random(seed), "".join(pieces)
    ids = tokenizer.encode(text, add_special_tokens=False)
    ids = ids[: rng.randint(1, len(ids))] if rng.random() < 0.3 else ids  # the limit comes inside a character
    at = rng.randrange(len(text))
    stop = [text[at : at + rng.randint(1, 5)], rng.choice(["\n", "xyz", " fox", "世", "b\n\n"])]
    least = rng.choice([0, 0, rng.randint(1, len(ids))])
    include = rng.random() < 0.5
    prompt = tokenizer.encode("the", add_special_tokens=False)
    got = told(
        tokenizer, ids, prompt, stop=tuple(dict.fromkeys(stop)), min_tokens=least, include_stop_str_in_output=include,
    )  # fmt: skip
    right = first_stop(tokenizer, ids, stop, least)
    assert (got.reason, got.tokens) == (("length", len(ids)) if right is None else ("stop", right))
    assert got.text == got.streamed, "what was streamed is the text"
    # the text: of all the tokens, up to the stop string that is complete in the last of them
    far = tokenizer.decode(prompt + ids[: got.tokens]).removeprefix(tokenizer.decode(prompt))
    if right is None:
        assert got.text == far
    elif include:
        assert far.startswith(got.text) and got.text.endswith(str(got.stop))
    else:
        assert far.startswith(got.text + str(got.stop))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_over_the_border_of_min_tokens_counts_and_one_before_it_does_not(kind: str) -> None:
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode("ab ab ab", add_special_tokens=False)
    assert len(ids) >= 3
    ends = [n for n in range(1, len(ids) + 1) if tokenizer.decode(ids[:n]).endswith("ab")]
    for least in range(1, len(ids) + 1):
        got = told(tokenizer, ids, [], stop=("ab",), min_tokens=least)
        right = next(n for n in ends if n >= least)
        assert (got.tokens, got.reason) == (right, "stop")
        assert got.text == tokenizer.decode(ids[:right]).removesuffix("ab"), "what came before the border is shown"


@pytest.mark.parametrize("rest", ["", "dog", "\n" * 100, "世\n"])
def test_a_stop_string_that_ends_in_a_byte_token_stops_with_it(rest: str) -> None:
    """<0x0A> is the new line of vocabularies that have none; it may be the last token that there is room for."""
    tokenizer = bytes_only()
    word = tokenizer.encode("dog", add_special_tokens=False)
    line = [tokenizer.convert_tokens_to_ids("<0x0A>")]
    more = tokenizer.encode(rest, add_special_tokens=False) if rest else []
    got = told(tokenizer, word + line + more, [], stop=("\n",))
    assert (got.tokens, got.text, got.reason, got.stop) == (len(word) + 1, "dog", "stop", "\n")
    kept = told(tokenizer, word + line + more, [], stop=("\n",), include_stop_str_in_output=True)
    assert (kept.tokens, kept.text) == (len(word) + 1, "dog\n")


def test_a_stop_string_that_ended_before_min_tokens_stays_passed_when_the_bytes_after_it_are_open() -> None:
    """<0x0A> at the border, then the three bytes of a character: what they say together is read again at each."""
    tokenizer = bytes_only()
    ids = [*tokenizer.encode("dog", add_special_tokens=False), tokenizer.convert_tokens_to_ids("<0x0A>")]
    border = len(ids)
    ids += [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "世".encode()]
    ids += tokenizer.encode("fox", add_special_tokens=False)
    got = told(tokenizer, ids, [], stop=("\n",), min_tokens=border + 1)
    assert (got.reason, got.tokens) == ("length", len(ids))
    assert got.text == tokenizer.decode(ids)


@cache
def bytes_only() -> Any:
    """Letters, and bytes for everything else."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz", *(f"<0x{byte:02X}>" for byte in range(256))]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
