"""Made-up prompts: what a burst is of, and what it may not be."""

from __future__ import annotations

import random

import pytest

from vtop.app.live.burst import MAX_BURST, Lengths, burst_prompts, draw_lengths
from vtop.engine.errors import BadValue


@pytest.mark.parametrize("lengths", list(Lengths))
def test_a_burst_follows_from_its_seed(lengths: Lengths) -> None:
    one = list(burst_prompts(lengths, 50, seed=3))
    assert one == list(burst_prompts(lengths, 50, seed=3)) != list(burst_prompts(lengths, 50, seed=4))
    assert len(one) == 50 and all(prompt.strip() for prompt in one)


def test_lengths_are_as_they_say() -> None:
    rng = random.Random(0)
    assert set(draw_lengths(Lengths.FIXED, 20, rng, 33)) == {33}
    assert all(1 <= n <= 80 for n in draw_lengths(Lengths.UNIFORM, 200, rng, 40))
    assert all(4 <= n <= 24 for n in draw_lengths(Lengths.SHORT, 200, rng))
    assert all(150 <= n <= 400 for n in draw_lengths(Lengths.LONG, 200, rng))
    drawn = draw_lengths(Lengths.LOGNORMAL, 4000, rng, 100)
    assert 90 < sum(drawn) / len(drawn) < 110 and max(drawn) > 400
    assert [len(p.split()) for p in burst_prompts(Lengths.FIXED, 3, 0, 300)] == [300] * 3


@pytest.mark.parametrize(("count", "mean"), [(0, 5), (MAX_BURST + 1, 5), (5, 0), (5, 10**9)])
def test_impossible_bursts_are_refused(count: int, mean: int) -> None:
    with pytest.raises(BadValue):
        draw_lengths(Lengths.FIXED, count, random.Random(0), mean)
