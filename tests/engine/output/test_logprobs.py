"""Log-probabilities and ranks: those of the model, whatever is cached, preempted or chunked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vtop.engine import events as ev
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.model import load_model
from vtop.engine.outputs import RequestOutput
from vtop.kernels.registry import get_backend
from vtop_support.engines import AuditedEngine
from vtop_support.models import tiny_random

torch.set_num_threads(1)
PROMPT = [5 + 7 * i % 100 for i in range(21)]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_random("llama")


def engine_over(blocks: int = 60, **options: Any) -> AuditedEngine:
    """Over a model of its own, equal to the fixture; blocks of 4 tokens."""
    loaded = load_model(tiny_random("llama"), name="random", backend=get_backend("auto", torch.device("cpu")))
    executor = TorchExecutor(loaded, blocks, 4, num_host_blocks=options.get("num_host_blocks_override", 0))
    return AuditedEngine(blocks, executor=executor, **options)


def table(model: Any, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab]: log-probabilities of the next token behind each."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), dim=-1)


def assert_prompt(output: RequestOutput, known: torch.Tensor, prompt: list[int], most: int) -> None:
    """One entry per prompt token, None for the first only; the token itself and the `most` likeliest."""
    found = output.prompt_logprobs
    assert found is not None and [i for i, entry in enumerate(found) if entry is None] == [0]
    assert len(found) == len(prompt)
    for position, entry in enumerate(found[1:], start=1):
        assert entry is not None
        row, token = known[position - 1], prompt[position]
        assert entry[token].logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert entry[token].rank == 1 + int((row > row[token]).sum())
        assert set(row.topk(most).indices.tolist()) <= set(entry)


@pytest.mark.parametrize("preset", ["sensible", "vllm-v0", "vllm-v1"])
def test_a_cached_prompt_is_computed_again_for_its_log_probabilities(model: Any, preset: str) -> None:
    more: dict[str, Any] = {} if preset == "sensible" else {"preset": preset}
    if preset == "vllm-v0":
        more["batching"] = "prefill-first"
    engine = engine_over(enable_prefix_caching=True, **more)
    for name in ("first", "again"):
        engine.add(name, PROMPT, 4, prompt_logprobs=2, ignore_eos=True)
        engine.run()
    engine.add("plain", PROMPT, 4, ignore_eos=True)
    engine.run()
    known = table(model, PROMPT)
    for name in ("first", "again"):
        assert_prompt(engine.outputs[name], known, PROMPT, 2)
    assert [engine.state.find(name).hit_tokens for name in ("first", "again", "plain")] == [0, 0, 20]  # type: ignore[union-attr]
    assert engine.outputs["again"].outputs[0].token_ids == engine.outputs["plain"].outputs[0].token_ids
    assert {e.id for e in engine.events(ev.PrefixLookup)} == {"plain"}, "what is not looked up is no miss"


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("samples", [{}, {"n": 2, "temperature": 1.0, "seed": 3}, {"beam_width": 2}])
def test_through_chunks_hits_and_preemptions(model: Any, mode: str, samples: dict[str, Any]) -> None:
    """Six requests with one prompt, three tokens a step: preempted while their prompts are computed, and after."""

    def run(blocks: int) -> AuditedEngine:
        engine = engine_over(
            blocks, enable_prefix_caching=True, max_num_batched_tokens=6, admission="first-chunk",
            preemption_mode=mode, num_host_blocks_override=40,
        )  # fmt: skip
        for i in range(5):
            engine.add(f"r{i}", PROMPT, 9, prompt_logprobs=1, ignore_eos=True, **{**samples, "seed": i})
            engine.step()
        engine.run()
        return engine

    known = table(model, PROMPT)
    calm, tight = run(200), run(14)
    assert tight.state.totals.preemptions > 0
    for name, output in tight.outputs.items():
        assert_prompt(output, known, PROMPT, 1)
        assert [o.token_ids for o in output.outputs] == [o.token_ids for o in calm.outputs[name].outputs]


def test_the_rank_of_a_token_outside_the_best_counts_the_likelier_ones(model: Any) -> None:
    """Hot sampling: most tokens are far down; their rank is 1 + the number of likelier ones."""
    engine = engine_over()
    engine.add("a", PROMPT, 12, temperature=5.0, seed=4, logprobs=1, ignore_eos=True)
    engine.add("b", PROMPT, 12, temperature=5.0, n=2, seed=9, logprobs=0, ignore_eos=True)
    engine.run()
    ranks = []
    for output in (*engine.outputs["a"].outputs, *engine.outputs["b"].outputs):
        known = table(model, PROMPT + output.token_ids)[len(PROMPT) - 1 :]
        assert output.logprobs is not None
        for row, token, entry in zip(known, output.token_ids, output.logprobs, strict=False):
            ranks.append(1 + int((row > row[token]).sum()))
            assert entry[token].rank == ranks[-1]
            assert entry[token].logprob == pytest.approx(float(row[token]), abs=1e-4)
    assert max(ranks) > 10
