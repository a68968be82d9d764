"""A request of several samples that lost its blocks returns: one sample computes the prompt, the others share it.

Blocks hold 4 tokens unless said. On the stub a block that nobody wrote, or somebody else wrote, is another token.
"""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine import EngineConfig, LLMEngine, SamplingParams
from vtop.engine import events as ev
from vtop_support.engines import AuditedEngine
from vtop_support.stub import expected_output

SAMPLES: dict[str, Any] = {"temperature": 1.0}


def prompt(count: int, start: int = 10) -> list[int]:
    return list(range(start, start + count))


def until(engine: AuditedEngine, name: str, tokens: int) -> None:
    """Step until the request has so many output tokens, over all its samples."""
    engine.check()
    while engine.state.requests[name].output_tokens < tokens:
        engine.step()


def shaken(engine: AuditedEngine, to: int) -> None:
    """Preempt whoever holds a block from `to` on, and forget what was cached of them."""
    before = engine.state.num_blocks
    engine.engine.resize_pool(to)
    engine.engine.resize_pool(before)
    engine.engine.reset_prefix_cache()
    engine.check()


def returning(budget: int, tokens: int, n: int, *, given: int = 2, **options: Any) -> AuditedEngine:
    """A group that has `given` tokens per sample and was preempted; it holds no block, and nobody else runs."""
    engine = AuditedEngine(60, max_num_batched_tokens=budget, **options)
    engine.add("first", 80, 8)  # so that the group holds high blocks
    until(engine, "first", 1)
    engine.add("g", prompt(tokens), 12, n=n, **SAMPLES)
    until(engine, "g", given * n)
    engine.engine.abort_request("first")
    shaken(engine, 20)
    assert engine.state.requests["g"].status == "waiting" and engine.state.used == 0
    return engine


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("budget", "tokens", "n"), [(8, 24, 2), (8, 26, 3), (3, 3, 3), (16, 40, 3), (5, 21, 2)])
def test_every_sample_goes_on_with_its_own_tokens(budget: int, tokens: int, n: int, caching: bool) -> None:
    engine = returning(budget, tokens, n, enable_prefix_caching=caching)
    engine.run()
    for index in range(n):
        assert engine.output("g", index) == expected_output(prompt(tokens), 12, index)
    assert not engine.events(ev.StepFailed)


def test_the_prompt_is_computed_once_and_shared_again() -> None:
    """24 prompt tokens of six blocks by the first sample, in three steps; then each computes its two outputs."""
    engine = returning(8, 24, 3)
    counted = engine.state.totals.tokens_computed
    for _ in range(3):
        engine.step()
    first, *others = engine.state.requests["g"].sequences
    assert first.num_computed == 24 and not any(seq.blocks or seq.num_computed for seq in others)
    engine.step()
    assert engine.state.requests["g"].output_tokens == 9
    assert engine.state.totals.tokens_computed - counted == 24 + 3 * 2
    tables = [list(seq.blocks) for seq in engine.state.requests["g"].sequences]
    assert tables[0][:6] == tables[1][:6] == tables[2][:6]
    assert all(engine.state.ref_count[block] == 3 for block in tables[0][:6])
    told = [e for e in engine.events(ev.Forked) if e.prompt_tokens is not None]
    assert [(e.parent, e.child, e.prompt_tokens, e.blocks) for e in told] == [
        (0, 1, 24, tables[0][:6]),
        (0, 2, 24, tables[0][:6]),
    ]
    copies = len(engine.events(ev.CopiedOnWrite))
    engine.run()
    assert len(engine.events(ev.CopiedOnWrite)) == copies, "what is shared are whole blocks of the prompt"


@pytest.mark.parametrize("n", [3, 9])
def test_more_samples_than_the_budget_return(n: int) -> None:
    """The prompt is a whole number of blocks, and every sample has one token more: it was preempted right after."""
    engine = returning(n - 1, 32, n, given=1, max_num_seqs=16)
    engine.run()
    for index in range(n):
        assert engine.output("g", index) == expected_output(prompt(32), 12, index)


@pytest.mark.parametrize(("steps", "then"), [(0, 16), (1, 16), (3, 2 * 2 + 2), (4, 2 * 2)])
def test_when_the_first_sample_is_aborted_the_next_one_computes_the_prompt(steps: int, then: int) -> None:
    """While it waits, amid the prompt (8 of 24 tokens are done), at its end, and when the others have joined.

    `then` is what two further steps compute.
    """
    engine = returning(8, 24, 3)
    for _ in range(steps):
        engine.step()
    assert engine.engine.abort_sample("g", 0)
    engine.check()
    counted = engine.state.totals.tokens_computed
    engine.step()
    engine.step()
    assert engine.state.totals.tokens_computed - counted == then
    if steps == 1:
        assert engine.state.requests["g"].sequences[1].num_computed == 24, "8 tokens were taken over"
    engine.run()
    for index in (1, 2):
        assert engine.output("g", index) == expected_output(prompt(24), 12, index)


def test_when_the_first_sample_ends_with_its_prompt_the_next_one_has_it() -> None:
    """Its last token comes in the step that ends the prompt, before the others could share it."""
    engine = AuditedEngine(60, max_num_batched_tokens=64, enable_prefix_caching=False)
    stop = expected_output(prompt(24), 3)[2]
    engine.add("first", 80, 8)
    engine.step()
    engine.step()
    engine.add("g", prompt(24), 12, n=3, stop_token_ids=(stop,), **SAMPLES)
    until(engine, "g", 6)
    engine.engine.abort_request("first")
    shaken(engine, 20)
    counted = engine.state.totals.tokens_computed
    engine.run()
    assert engine.outputs["g"].outputs[0].stop_reason == stop
    for index in (1, 2):
        assert engine.output("g", index) == expected_output(prompt(24), 12, index)
    # 26 by the first sample, then 2 and 9 decodes by each of the others: the prompt was not computed a second time
    assert engine.state.totals.tokens_computed - counted == 26 + 2 * (2 + 9)


def test_nobody_takes_the_blocks_that_its_samples_will_need() -> None:
    """I5: others decode while the group computes its prompt, a token a step; it gives one before it gives way again."""
    returned = 0
    for blocks in range(30, 60):
        engine = AuditedEngine(blocks, max_num_batched_tokens=64, enable_prefix_caching=False)
        for number in range(3):
            engine.add(f"old{number}", 4, 100)
        engine.add("large", 60, 100)
        until(engine, "large", 1)
        engine.add("g", prompt(20), 24, n=3, **SAMPLES)
        engine.check()
        given: list[int] = []
        while "g" in engine.state.requests and len(engine.frames) < 150:
            before = engine.state.requests["g"].output_tokens
            events = engine.step().events
            if any(isinstance(event, ev.Preempted) and event.id == "g" for event in events):
                given.append(before)
                engine.engine.abort_request("large")
                engine.engine.set_option("max_num_batched_tokens", 4)
        assert len(set(given)) == len(given), f"{blocks} blocks: preempted twice without a token between"
        returned += len(given)
    assert returned > 10


def run_group(blocks: int, **params: Any) -> tuple[list[tuple[list[int], float | None]], int]:
    """What a group gives on the bundled model beside an older request, and how often somebody was preempted."""
    config = EngineConfig(
        model="tiny",
        attention_backend="torch",
        block_size=8,
        max_num_batched_tokens=8,
        enable_prefix_caching=False,
        num_gpu_blocks_override=blocks,
    )
    engine = LLMEngine.from_config(config)
    state = engine.watch()
    engine.add_request("old", [7] * 16, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    ids = [3 + i * 37 % 900 for i in range(24)]
    engine.add_request("g", ids, SamplingParams(max_tokens=24, ignore_eos=True, **params))
    given: list[tuple[list[int], float | None]] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished and output.request_id == "g":
                given = [(o.token_ids, o.cumulative_logprob) for o in output.outputs]
        engine.audit(state)
    engine.close()
    return given, state.totals.preemptions


@pytest.mark.parametrize("params", [{"n": 2, "temperature": 1.0, "seed": 1}, {"n": 2, "beam_width": 2}])
def test_on_a_model_a_small_pool_gives_the_same(params: dict[str, Any]) -> None:
    roomy, none = run_group(100, **params)
    tight, some = run_group(12, **params)
    assert none == 0 and some > 0
    assert [tokens for tokens, _ in tight] == [tokens for tokens, _ in roomy]
    for (_, here), (_, there) in zip(tight, roomy, strict=True):
        assert here == pytest.approx(there, abs=1e-3)
