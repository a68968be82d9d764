"""SamplingParams of several outputs: what is refused, and what is computed."""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.request import SamplingParams


@pytest.mark.parametrize(
    ("params", "field", "text"),
    [
        ({"n": 0}, "n", "at least 1"),
        ({"n": True}, "n", "at least 1"),
        ({"n": 1.5}, "n", "at least 1"),
        ({"best_of": 0}, "best_of", "at least n"),
        ({"n": 3, "best_of": 2}, "best_of", r"at least n \(3\)"),
        ({"n": 2, "temperature": 0.0}, "n", "greedy outputs are all the same"),
        ({"best_of": 2, "temperature": 0.0}, "best_of", "greedy outputs are all the same"),
    ],
)
def test_bad_numbers_of_outputs_are_refused_on_one_line(params: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(BadValue, match=text) as refusal:
        SamplingParams(**params)
    assert refusal.value.field == field and "\n" not in str(refusal.value)


def test_how_many_are_computed_and_when_that_needs_logprobs() -> None:
    assert (SamplingParams().num_samples, SamplingParams().needs_logprob) == (1, False)
    assert (SamplingParams(n=3).num_samples, SamplingParams(n=3).needs_logprob) == (3, False)
    best = SamplingParams(n=2, best_of=4)
    assert (best.num_samples, best.needs_logprob) == (4, True)
    assert SamplingParams(n=2, best_of=2).needs_logprob is False
    assert SamplingParams(logprobs=0).needs_logprob is True
    assert SamplingParams(n=1, best_of=1, temperature=0.0).num_samples == 1
