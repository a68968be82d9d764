"""Beam search through the engine: equal to transformers' own, alone and together, through preemptions and swaps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.model import load_model
from vtop.kernels.registry import get_backend
from vtop_support.engines import AuditedEngine
from vtop_support.models import tiny_random

PROMPTS = [[5, 9, 11, 3, 40], [8, 2, 1, 30, 31, 32, 33, 34]]
WIDTH, TOKENS = 4, 8


def reference(model: Any, prompt: list[int], ends: list[int]) -> list[tuple[list[int], float]]:
    """(output without padding, score) of transformers' beam search, best first."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=WIDTH,
        num_return_sequences=WIDTH,
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return [
        (row[len(prompt) :].tolist(), score)
        for row, score in zip(found.sequences, found.sequences_scores.tolist(), strict=True)
    ]


@pytest.mark.parametrize("ends", [[], [7, 16, 25, 34, 43, 52, 61, 70, 79, 88]], ids=["to the limit", "with ends"])
@pytest.mark.parametrize(("blocks", "mode"), [(64, "recompute"), (12, "recompute"), (12, "swap")])
def test_equals_transformers(blocks: int, mode: str, ends: list[int]) -> None:
    """E090: two requests together, in a pool so tight that somebody is preempted, and alone in a large one."""
    model = tiny_random("llama")
    expected = [reference(model, prompt, ends) for prompt in PROMPTS]
    loaded = load_model(model, name="random", backend=get_backend("auto", torch.device("cpu")))
    executor = TorchExecutor(loaded, blocks, 4, num_host_blocks=40)
    engine = AuditedEngine(blocks, executor=executor, preemption_mode=mode, num_host_blocks_override=40)
    for i, prompt in enumerate(PROMPTS):
        engine.add(f"r{i}", prompt, TOKENS, n=WIDTH, beam_width=WIDTH, stop_token_ids=tuple(ends), ignore_eos=True)
    engine.run()
    assert blocks == 64 or engine.state.totals.preemptions > 0
    assert engine.state.used == 0 and engine.state.host_used == 0
    for i in range(len(PROMPTS)):
        outputs = engine.outputs[f"r{i}"].outputs
        assert len(outputs) == WIDTH
        for mine, (tokens, score) in zip(outputs, expected[i], strict=True):
            assert mine.token_ids == tokens[: len(mine.token_ids)]
            assert mine.cumulative_logprob is not None
            assert mine.cumulative_logprob / len(mine.token_ids) == pytest.approx(score, abs=1e-4)


def test_beams_fork_and_are_dropped_with_their_blocks() -> None:
    engine = AuditedEngine(64)
    engine.add("a", [10, 11, 12, 13, 14, 15], 10, beam_width=3)
    engine.run()
    assert engine.events(ev.Forked) and engine.events(ev.CopiedOnWrite)
    [output] = engine.outputs["a"].outputs
    assert len(output.token_ids) == 10 or output.finish_reason == "stop"
    assert engine.state.used == 0


def test_beams_that_do_not_fit_end_with_a_reason() -> None:
    """E092: bs=4 gpu=5 beam=4 P=8 M=8: no step without work."""
    engine = AuditedEngine(5)
    engine.add("a", list(range(10, 18)), 8, beam_width=4)
    engine.run()
    assert engine.finish_reason("a") in ("capacity", "length")


def test_what_beam_search_does_not_have_is_refused() -> None:
    engine = AuditedEngine(16)
    with pytest.raises(BadValue, match="best_of"):
        engine.add("a", [5, 6], 8, beam_width=4, best_of=5)
