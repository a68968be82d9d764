"""A number of a run is the same live, in its recording and in the simulator's tables: all keep the same records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.events.journal import Recorder, Recording
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.state.fold import EngineState
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import LATENCIES, completed, latencies, measures, part_of, summarise
from vtop.engine.state.records import RequestRecord, RunTotals
from vtop.engine.workload.distributions import Lognormal, Poisson
from vtop.engine.workload.generate import Prefixes, WorkloadSpec, generate
from vtop.engine.workload.jobs import Job, Workload

OPTIONS: dict[str, dict[str, Any]] = {
    "recompute": {},
    "hybrid": {"preemption_mode": "hybrid", "num_host_blocks_override": 100},
    "plain": {"enable_prefix_caching": False, "batching": "prefill-first", "max_num_batched_tokens": 1024},
    "vllm-v0": {"preset": "vllm-v0", "num_host_blocks_override": 200, "max_num_batched_tokens": 1024},
    "vllm-v1": {"preset": "vllm-v1"},
}
SPEC = WorkloadSpec(
    requests=40,
    arrivals=Poisson(8.0),
    prompt=Lognormal(60, 0.8, high=300),
    output=Lognormal(30, 0.8, high=120),
    groups=[("a", 0.6), ("b", 0.4)],
    deadlines=[(None, 0.5), (0.7, 0.5)],
    timeouts=[(None, 0.7), (3.0, 0.3)],
    prefixes=Prefixes(2, 40, 0.5),
)
SEVERAL: dict[str, Any] = {"samples": [(1, 0.7), (3, 0.3)], "beams": [(None, 0.8), (3, 0.2)]}


def engine_of(name: str, seed: int) -> LLMEngine:
    """On a virtual clock."""
    options = {"max_num_batched_tokens": 256} | OPTIONS[name]
    spec = SPEC if name == "vllm-v1" else replace(SPEC, **SEVERAL)
    config = EngineConfig(num_gpu_blocks_override=60, max_model_len=1024, **options)
    return build(Simulation(generate(spec, seed), config, find_card("rtx4090")))


def same(found: object, expected: object, kind: type) -> None:
    """The fields of `kind`, which both of them are."""
    for field in fields(kind):
        assert getattr(found, field.name) == getattr(expected, field.name), (field.name, found)


def by_number(records: Iterable[RequestRecord]) -> dict[int, RequestRecord]:
    return {record.number: record for record in records}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_live_recorded_and_simulated_numbers_are_the_same(name: str, seed: int, tmp_path: Path) -> None:
    engine = engine_of(name, seed)
    live, simulated = EngineState(engine.meta), Ledger(engine.meta)
    recorder = Recorder(tmp_path / "run.vtop", engine.meta)
    for take in (live.apply, simulated.apply, recorder.write):
        engine.on_frame(take)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
        if steps == 100:
            engine.abort_request(next(iter(live.requests)))
        records = by_number(simulated.records)
        for view in live.requests.values():  # while it runs too
            same(view, records[view.number], RequestRecord)
    engine.flush()
    recorder.close()

    recording = Recording(tmp_path / "run.vtop")
    replayed, read = EngineState(recording.meta), Ledger(recording.meta)
    for frame in recording.frames():
        replayed.apply(frame)
        read.apply(frame)
    for fold in (live, replayed):
        same(fold.totals, simulated.totals, RunTotals)
        records = by_number(simulated.records)
        assert by_number(fold.finished).keys() == records.keys()
        for view in fold.finished:
            same(view, records[view.number], RequestRecord)
    assert summarise(replayed) == summarise(live)
    assert repr(measures(read)) == repr(measures(simulated))  # NaN is not equal to itself

    summary, found = summarise(live), measures(simulated)
    shared = {
        "seconds": "seconds", "sequences": "sequences", "output_tokens_per_second": "tokens_per_second",
        "computed_tokens_per_second": "computed_per_second", "requests_per_second": "requests_per_second",
        "preemptions": "preemptions", "preempted_requests": "preempted_requests", "tokens_lost": "lost_tokens",
        "recompute_tax": "recompute_tax", "mean_kv": "kv_use", "peak_kv": "kv_peak", "steps": "steps",
    }  # fmt: skip
    for ours, theirs in shared.items():
        assert getattr(summary, ours) == found[theirs], ours
    for latency in ("ttft", "tpot", "e2e"):
        spread = getattr(summary, latency)
        told = [found[f"{latency}_{part}"] for part in ("mean", "p50", "p90", "p99", "max")]
        assert [spread.mean, spread.p50, spread.p90, spread.p99, spread.most] == told
    for latency in LATENCIES:
        values = latencies(completed(live.finished), latency)
        assert part_of(values, "p90") == found[f"{latency}_p90"]
    assert live.totals.preemptions > 0 and live.totals.deadline_misses > 0
    assert set(live.totals.outcomes) >= {"length", "abort"}


def test_the_last_round_of_a_beam_search_is_a_token_too() -> None:
    """Its tokens are told with the result only. Three rounds take two gaps, whoever counts."""
    job = Job("beam", 0.0, 20, 3, beam_width=2)
    engine = build(Simulation(Workload("w", (job,)), EngineConfig(num_gpu_blocks_override=60), find_card("rtx4090")))
    live, ledger = engine.watch(), Ledger(engine.meta, keep_gaps=True)
    times: list[float] = []
    engine.on_frame(ledger.apply)
    engine.on_frame(lambda frame: times.append(frame.time) if frame.ran else None)
    while engine.has_unfinished_requests():
        engine.step()
    engine.flush()
    first, second, third = times
    (view,), (record,) = live.finished, ledger.records
    assert view.rounds == 3 and view.output_tokens == 4
    assert view.tpot == record.tpot == pytest.approx((third - first) / 2)
    assert ledger.gaps_of == {"beam": [second - first, third - second]} and ledger.gaps.count == 2


def test_a_deadline_missed_by_the_step_that_ends_the_request_is_missed() -> None:
    """Nobody tells it any more: it ends too late all the same."""
    job = Job("late", 0.0, 2000, 1, deadline=0.001)
    engine = build(Simulation(Workload("w", (job,)), EngineConfig(num_gpu_blocks_override=200), find_card("rtx4090")))
    live, ledger = engine.watch(), Ledger(engine.meta)
    engine.on_frame(ledger.apply)
    while engine.has_unfinished_requests():
        engine.step()
    engine.flush()
    assert live.finished[0].missed_deadline and ledger.records[0].missed_deadline
    assert live.totals.deadline_misses == ledger.totals.deadline_misses == measures(ledger)["deadline_misses"] == 1
