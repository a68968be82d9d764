"""BeamSearch against transformers' own, on small random models, and against every sequence there is."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from vtop.engine.beam import BeamSearch, EarlyStopping
from vtop_support.models import VOCAB, tiny_random

PROMPT = [5, 9, 11, 3, 40]


def search(model: Any, beams: BeamSearch) -> None:
    """Run a search with the model itself, without any cache."""
    while not beams.done:
        rows = torch.tensor([[*PROMPT, *output] for output in beams.outputs])
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(rows).logits[:, -1].float(), dim=-1)
        top = logprobs.topk(min(beams.looked_at, logprobs.shape[1]), dim=-1)
        beams.advance(
            [list(zip(t, v, strict=True)) for t, v in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
        )


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("ends", [frozenset(), frozenset({7}), frozenset(range(0, 128, 9))])
def test_equals_transformers(early: EarlyStopping, penalty: float, ends: frozenset[int]) -> None:
    model = tiny_random("llama")
    beams = BeamSearch(4, 8, ends, penalty, early)
    search(model, beams)
    ids = torch.tensor([PROMPT])
    expected = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=8,
        do_sample=False,
        length_penalty=penalty,
        early_stopping=early,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    theirs = [row[len(PROMPT) :].tolist() for row in expected.sequences]
    assert len(beams.best()) == 4
    for mine, other, score in zip(beams.best(), theirs, expected.sequences_scores.tolist(), strict=True):
        assert list(mine.tokens) == other[: len(mine.tokens)]
        assert mine.score == pytest.approx(score, abs=1e-4)


def test_a_search_wide_enough_finds_the_best_of_all() -> None:
    """A table of 4 tokens over 3 steps, width 16: nothing is pruned, so the best sequence of all 64 must come first."""
    generator = torch.Generator().manual_seed(1)
    table = {
        prefix: torch.log_softmax(torch.randn(4, generator=generator, dtype=torch.float64), dim=0).tolist()
        for length in range(3)
        for prefix in itertools.product(range(4), repeat=length)
    }
    beams = BeamSearch(16, 3, frozenset())
    while not beams.done:
        beams.advance([sorted(enumerate(table[output]), key=lambda e: -e[1]) for output in beams.outputs])
    scores = {
        tokens: sum(table[tokens[:i]][tokens[i]] for i in range(3)) for tokens in itertools.product(range(4), repeat=3)
    }
    best = max(scores, key=lambda tokens: scores[tokens])
    assert beams.best()[0].tokens == best and math.isclose(beams.best()[0].logprob, scores[best])
    assert VOCAB == 128


def test_a_search_that_is_stopped_ranks_its_running_beams_among_the_finished() -> None:
    """Two steps by hand: one hypothesis ended at 0.6, the beams that run stand at 0.35 and at 0.05 of two tokens."""
    beams = BeamSearch(2, 9, frozenset({0}))
    ln = math.log
    beams.advance([[(0, ln(0.6)), (1, ln(0.35)), (2, ln(0.05))]])
    assert [found.tokens for found in beams.best()] == [(0,), (1,)], "three of them, and two are returned"
    beams.advance([[(3, ln(0.9)), (4, ln(0.06))], [(3, ln(1.0)), (4, ln(1e-6))]])
    assert beams.outputs == [(1, 3), (2, 3)] and not beams.done
    best = beams.best()
    assert [(found.tokens, found.stop, found.cut) for found in best] == [((0,), 0, False), ((1, 3), None, True)]
    assert [found.score for found in best] == pytest.approx([ln(0.6), ln(0.35 * 0.9) / 2])
