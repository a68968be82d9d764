"""Percentiles and the summary of a run, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.request import SamplingParams
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.state.fold import EngineState
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import measures, percentile, recompute_tax, spread, summarise
from vtop.engine.workload.jobs import Job, Workload
from vtop_support.stub_engine import StubEngine


def test_percentiles_interpolate() -> None:
    assert percentile([10, 20, 30, 40], 0.5) == 25
    assert percentile([3], 0.99) == 3
    assert percentile([1, 2], 0) == 1 and percentile([1, 2], 1) == 2
    assert math.isnan(percentile([], 0.5))
    values = [float(v) for v in np.random.default_rng(0).exponential(size=101)]
    for share in (0.1, 0.5, 0.9, 0.99):
        assert percentile(values, share) == pytest.approx(float(np.percentile(values, share * 100)))
    with pytest.raises(ValueError):
        percentile([1], 50)


def test_a_spread_of_nothing_is_none() -> None:
    assert spread([]) is None
    found = spread([1.0, 3.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.least, found.most) == (2, 2.0, 2.0, 1.0, 3.0)


def hand_made() -> EngineState:
    state = EngineState(StubEngine(10).meta)
    arrived = ev.Arrived("a", 0, (0.0,), 1.0, 4, 7, 3)
    state.apply(ev.Frame(0, 0, 1.0, False, [arrived]))
    first: list[ev.AnyEvent] = [
        ev.Admitted("a", 1, False, 1, 10),
        ev.BlocksTaken("a", [0]),
        ev.Scheduled(["a"], [4], 128, ev.Limit.NONE),
        ev.Tokens(["a"], [5], ["x"]),
    ]
    state.apply(ev.Frame(1, 1, 1.5, True, first))
    for step, now in ((2, 1.75), (3, 2.0)):
        last: list[ev.AnyEvent] = [ev.BlocksFreed("a", [0]), ev.Finished("a", "length", 3)] if step == 3 else []
        decode: list[ev.AnyEvent] = [ev.Scheduled(["a"], [1], 128, ev.Limit.NONE), ev.Tokens(["a"], [5], ["x"]), *last]
        state.apply(ev.Frame(step, step, now, True, decode))
    return state


def test_a_run_by_hand() -> None:
    summary = summarise(hand_made())
    assert (summary.seconds, summary.steps, summary.prompt_tokens, summary.output_tokens) == (1.0, 3, 4, 3)
    assert summary.ttft is not None and summary.ttft.p50 == 0.5
    assert summary.tpot is not None and summary.tpot.p50 == 0.25
    assert summary.e2e is not None and summary.e2e.p99 == 1.0
    assert summary.output_tokens_per_second == 3.0 and summary.computed_tokens == 6
    assert summary.outcomes == {"length": 1} and summary.peak_blocks == 1 and summary.peak_kv == 0.1


def test_an_empty_run_divides_by_nothing() -> None:
    summary = summarise(EngineState(StubEngine(10).meta))
    assert summary.ttft is None and summary.output_tokens_per_second == 0.0 and summary.recompute_tax == 0.0


def test_preemption_is_taxed_and_aborts_are_no_latency() -> None:
    engine = StubEngine(12)
    state = EngineState(engine.meta)
    engine.on_frame(state.apply)
    for number in range(4):
        engine.add_request(f"r{number}", "word " * 60, SamplingParams(max_tokens=40))
    for _ in range(5):
        engine.step()
    engine.abort_request("r3")
    while engine.has_unfinished_requests():
        engine.step()
    summary = summarise(state)
    assert summary.outcomes == {"abort": 1, "length": 3}
    assert summary.ttft is not None and summary.ttft.count == 3
    assert summary.preemptions > 0 and summary.preempted_requests > 0
    assert summary.tokens_lost == sum(r.tokens_lost for r in state.finished)
    assert summary.recompute_tax == recompute_tax(state.totals) == summary.tokens_lost / summary.computed_tokens


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("beam", [None, 4])
@pytest.mark.parametrize(
    "options",
    [{}, {"enable_prefix_caching": False}, {"preemption_mode": "hybrid", "num_host_blocks_override": 9}],
    ids=["cached", "plain", "hybrid"],
)
def test_the_summary_and_the_simulator_have_one_tax(n: int, beam: int | None, options: dict[str, object]) -> None:
    """Samples that return compute the last part of the prompt each, though their request lost it once."""
    jobs = tuple(Job(f"j{i}", 0.05 * i, 100, 50, n=n, beam_width=beam, prefix=((f"p{i % 2}", 70),)) for i in range(30))
    config = EngineConfig(num_gpu_blocks_override=60, **options)  # type: ignore[arg-type]
    engine = build(Simulation(Workload("w", jobs), config, find_card("rtx4090")))
    ledger, state = Ledger(engine.meta), engine.watch()
    engine.on_frame(ledger.apply)
    while engine.has_unfinished_requests():
        engine.step()
    engine.flush()
    found = summarise(state)
    assert found.preemptions > 0 and found.recompute_tax > 0
    assert found.recompute_tax == measures(ledger)["recompute_tax"]
