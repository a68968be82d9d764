"""Counts of requests, sequences and tokens: right whatever is kept, shared or skipped."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.executor import ExecutorRates
from vtop.engine.request import SamplingParams
from vtop.engine.sched.preemption import Hybrid, LeastComputed
from vtop.engine.state.fold import EngineState
from vtop.engine.state.measures import summarise
from vtop_support.engines import AuditedEngine


def test_a_summary_does_not_depend_on_how_many_are_kept() -> None:
    """One request and one token a second, for 300 seconds: 1 token/s, however few of them are remembered."""
    engine = AuditedEngine(64)
    few = EngineState(engine.engine.meta, keep_finished=10)
    engine.engine.on_frame(few.apply)
    for number in range(300):
        engine.engine.add_request(f"r{number}", [5, 6, 7], SamplingParams(max_tokens=1, temperature=0.0))
        engine.step()
    summary = summarise(few)
    assert summary.counted == 10
    assert (summary.seconds, summary.prompt_tokens, summary.output_tokens_per_second) == (300.0, 900, 1.0)


def test_requests_that_were_preempted_count_once_and_for_ever() -> None:
    engine = AuditedEngine(8, enable_prefix_caching=False, victim="most-blocks", admission="first-chunk")
    few = EngineState(engine.engine.meta, keep_finished=1)
    engine.engine.on_frame(few.apply)
    for name in "abcd":
        engine.add(name, 2, 24)
    engine.run()
    victims = Counter(e.id for e in engine.events(ev.Preempted))
    summary = summarise(few)
    assert summary.preempted_requests == len(victims) > 1 and summary.preemptions == victims.total()
    assert summary.preemptions > summary.preempted_requests  # somebody gave way twice
    full, part = summarise(engine.state), summary
    for name in full.__dataclass_fields__:
        if name not in ("counted", "ttft", "tpot", "e2e"):
            assert getattr(full, name) == getattr(part, name), name


@pytest.mark.parametrize("samples", [2, 4])
def test_a_shared_prompt_is_computed_again_once(samples: int) -> None:
    """A prompt of 200 and 3 tokens of each sample: what a recompute costs is not 200 tokens for each of them."""
    engine = AuditedEngine(400, max_num_batched_tokens=2048)
    engine.add("one", 300, 40)
    engine.add("several", 200, 40, n=samples, temperature=1.0)
    for _ in range(4):  # the prompt gives the first token, three decodes write three to the cache
        engine.step()
    scheduler = engine.engine._scheduler
    one, several = (next(r for r in scheduler.running if r.request_id == name) for name in ("one", "several"))
    lost = 200 + 3 * samples
    rates = ExecutorRates(swap_bytes_per_second=1e3, prefill_tokens_per_second=1000.0, bytes_per_block=1)
    assert Hybrid().choose(several, scheduler.blocks, rates).recompute_seconds == pytest.approx(lost / 1000)
    assert LeastComputed().choose([one, several], one) is several  # 303 against 206 or 212
    view = engine.state.requests["several"]
    assert view.computed == lost and view.known == lost + samples
    engine.engine.resize_pool(100)  # so that it is preempted; what is told is what was estimated
    engine.check()
    assert [e.tokens_lost for e in engine.events(ev.Preempted, "several")] == [lost]


def test_a_skipped_request_was_given_nothing() -> None:
    engine = AuditedEngine(64, max_num_batched_tokens=30)
    for name in "abcdef":
        engine.add(name, 2, 30)
    for _ in range(4):
        engine.step()
    engine.engine.set_option("max_num_batched_tokens", 3)
    for _ in range(3):
        frame = engine.step()
        assert engine.ran(frame) == {"a": 1, "b": 1, "c": 1}
        assert [v.scheduled_tokens for v in engine.state.running_order()] == [1, 1, 1, 0, 0, 0]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 10), st.sampled_from([1, 1, 2, 3])), max_size=8),
    budget=st.integers(3, 24),
    blocks=st.integers(12, 30),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_step_gave_is_what_it_scheduled(sizes: list[tuple[int, int, int]], budget: int, blocks: int) -> None:
    engine = AuditedEngine(blocks, max_num_batched_tokens=budget, max_model_len=64)
    for number, (prompt, output, samples) in enumerate(sizes):
        if (prompt + output) * samples <= blocks * 4 and samples <= budget:
            engine.add(f"r{number}", prompt, output, n=samples, temperature=float(samples > 1))
    for _ in range(300):
        if not engine.engine.has_unfinished_requests():
            break
        ran = engine.ran(engine.step())
        for view in engine.state.requests.values():
            assert view.scheduled_tokens == ran.get(view.id, 0), view.id
        alive = {r.request_id: [s for s in r.sequences if not s.ended] for r in engine.engine._scheduler.running}
        assert engine.state.running_sequences == sum(map(len, alive.values()))


def test_sequences_are_counted_beside_requests() -> None:
    engine = AuditedEngine(64)
    engine.add("one", 8, 4)
    engine.add("several", 8, 4, n=3, temperature=1.0)
    engine.add("beams", 8, 4, beam_width=5)
    engine.step()
    assert (len(engine.state.running), engine.state.running_sequences) == (3, 9)
    engine.run()
    summary = summarise(engine.state)
    assert (summary.arrived, summary.sequences, summary.peak_running, summary.peak_sequences) == (3, 9, 3, 9)
