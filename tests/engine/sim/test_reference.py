"""Replays of recorded runs: the simulator against two real vLLM runs, and against its own recordings."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.commands.sim.reference import print_report, report_json, run_against, run_pair, run_reference
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.events.journal import Recorder
from vtop.engine.sim.cards import find_card, scaled
from vtop.engine.sim.reference import Line, Pair, Replay, Report, against_pair, check, reference_pair
from vtop.engine.sim.simulator import Simulation, build, simulate
from vtop.engine.state.records import RequestRecord
from vtop.engine.traces.read import read_trace
from vtop.engine.workload.jobs import Job, Workload


@pytest.fixture(scope="module")
def rtx4090() -> Iterator[Report]:
    yield check(reference_pair("rtx4090"))


@pytest.fixture(scope="module")
def rtxpro6000() -> Iterator[Report]:
    yield check(reference_pair("rtxpro6000"))


def _errors(lines: tuple[Line, ...], part: str = "mean") -> dict[str, float]:
    return {line.metric: line.error for line in lines if line.part == part}


def test_rtx4090_as_it_is(rtx4090: Report) -> None:
    """Its KV cache was full: 300 requests, 2,587 blocks, and the card's own step times."""
    assert all(abs(error) <= 0.08 for error in _errors(rtx4090.plain.lines).values())
    for part in ("p50", "p90", "p99"):
        assert all(abs(error) <= 0.10 for error in _errors(rtx4090.plain.lines, part).values())
    assert rtx4090.plain.requests == 300
    assert 150 <= rtx4090.plain.preemptions <= 250
    assert rtx4090.plain.recompute_tax == pytest.approx(0.195, abs=0.03)


@pytest.mark.parametrize("name", ["rtx4090", pytest.param("rtxpro6000", marks=pytest.mark.slow)])
def test_calibrated_on_even_requests(name: str, request: pytest.FixtureRequest) -> None:
    report: Report = request.getfixturevalue(name)
    assert report.fitted is not None and report.fitted.requests == 150
    errors = _errors(report.fitted.lines)
    assert set(errors) == {"ttft", "tpot", "e2e"}
    assert all(abs(error) <= 0.05 for error in errors.values()), errors
    assert 1.0 < report.scale < 1.12
    assert report.ok


def test_rtxpro6000_never_preempts(rtxpro6000: Report) -> None:
    assert rtxpro6000.plain.preemptions == 0
    assert rtxpro6000.plain.recompute_tax == 0.0


def test_the_table_says_what_counts_from_where(rtx4090: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(rtx4090, Console(width=80))
    text = " ".join(capsys.readouterr().out.split())
    for words in ("queued_ts", "null block", "mean TTFT", "fitted on the even requests", "within bounds", "…"):
        assert (words in text) == (words != "…"), words


def test_unknown_references_are_refused() -> None:
    with pytest.raises(BadValue, match="rtx4090, rtxpro6000"):
        run_reference("a100")


# --- a user's own pair ---------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"num_gpu_blocks_override": 120, "max_num_seqs": 8, "max_num_batched_tokens": 256}


def _workload(count: int = 40) -> Workload:
    rng = random.Random(2)
    at, jobs = 0.0, []
    for i in range(count):
        at += rng.expovariate(20.0)
        jobs.append(Job(f"r{i}", at, rng.randint(10, 400), rng.randint(1, 80)))
    return Workload("made", tuple(jobs))


def _recorded(path: Path, config: EngineConfig, scale: float = 1.0) -> Path:
    engine = build(Simulation(_workload(), config, scaled(find_card("rtx4090"), scale)))
    recorder = Recorder(path, engine.meta)
    engine.on_frame(recorder.write)
    while engine.has_unfinished_requests():
        engine.step()
    recorder.close()
    return path


@pytest.mark.parametrize("preset", ["sensible", "vllm-v1"])
def test_a_recording_against_itself_has_no_error(tmp_path: Path, preset: Any) -> None:
    """Arrivals, lengths and options all come from the file: a virtual run repeats to the last bit, or nearly."""
    path = _recorded(tmp_path / "r.vtop.jsonl.gz", EngineConfig(preset=preset, **OPTIONS))
    report = check(against_pair(read_trace(path), path, find_card("rtx4090"), EngineConfig()))
    assert report.plain.preemptions > 0
    assert all(abs(line.error) < 1e-6 for line in report.plain.lines)
    assert report.scale == 1.0 and report.ok
    assert report.pair.simulation.config.preset == preset


def test_a_slower_machine_is_found_by_the_scale(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "r.vtop.jsonl.gz", EngineConfig(**OPTIONS), scale=1.3)
    report = check(against_pair(read_trace(path), path, find_card("rtx4090"), EngineConfig()))
    assert not report.ok, "uncalibrated it is 30 % off"
    assert report.scale == pytest.approx(1.3, rel=0.01)
    assert report.fitted is not None and all(abs(line.error) < 0.03 for line in report.fitted.lines)


def test_options_that_were_given_win(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "r.vtop.jsonl.gz", EngineConfig(**OPTIONS))
    own = against_pair(read_trace(path), path, find_card("rtx4090"), EngineConfig(max_num_seqs=3)).simulation.config
    assert (own.max_num_seqs, own.num_gpu_blocks_override, own.max_num_batched_tokens) == (3, 120, 256)
    other = against_pair(read_trace(path), path, find_card("rtx4090"), EngineConfig(preset="vllm-v1"))
    config = other.simulation.config
    assert (config.preset, config.priority_order, config.max_num_seqs) == ("vllm-v1", "low-first", 8)


def _log(path: Path, workload: Workload, config: EngineConfig, ids: str = "") -> Path:
    """The simulated run as a request log of vLLM."""
    result = simulate(Simulation(workload, config, find_card("rtx4090")))
    rows = []
    for record in result.ledger.records:
        assert record.first_scheduled is not None and record.first_token is not None and record.last_token is not None
        rows.append(
            {
                "request_id": ids + record.id,
                "input_toks": record.prompt_tokens,
                "output_toks": record.output_tokens,
                "arrival_time": 1.7e9 + record.arrival,
                "queued_ts": 50.0 + record.arrival,
                "scheduled_ts": 50.0 + record.first_scheduled,
                "first_token_ts": 50.0 + record.first_token,
                "last_token_ts": 50.0 + record.last_token,
            }
        )
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_a_log_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = EngineConfig(preset="vllm-v1", **OPTIONS)
    log = _log(tmp_path / "log.jsonl", _workload(), config)
    arguments = SimArguments(trace=str(log), against=log)
    assert run_against(arguments, config, Console(width=100)) == 0
    assert "arrival_time" in capsys.readouterr().out
    assert run_against(arguments, replace(config, num_gpu_blocks_override=60), Console(width=100)) == 1
    assert "out of bounds" in capsys.readouterr().out
    with pytest.raises(BadValue, match="scale-time"):
        run_against(replace(arguments, scale_time=2.0), config)


def test_requests_are_matched_by_order_when_no_id_is_shared(tmp_path: Path) -> None:
    config = EngineConfig(preset="vllm-v1", **OPTIONS)
    log = _log(tmp_path / "log.jsonl", _workload(), config, ids="other-")
    pair = against_pair(_workload(), log, find_card("rtx4090"), config)
    assert set(pair.measured) == {job.id for job in _workload().jobs}
    assert "order" in pair.notes[0]
    with pytest.raises(BadValue, match="no request of trace"):
        against_pair(_workload(7), log, find_card("rtx4090"), config)


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    config = EngineConfig(preset="vllm-v1", **OPTIONS)
    log = _log(tmp_path / "log.jsonl", _workload(30), config)
    pair = against_pair(_workload(40), log, find_card("rtx4090"), config)
    assert len(pair.measured) == 30 and "10 of 40" in pair.notes[0]


def test_both_sides_are_of_the_same_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The simulation has one time-out in 20, of the slowest: leaving them out of one side only would be an error."""
    config = EngineConfig(preset="vllm-v1", **OPTIONS)
    log = _log(tmp_path / "log.jsonl", _workload(), config)
    whole = against_pair(_workload(), log, find_card("rtx4090"), config)
    assert check(whole).plain.left_out == {}
    slow = sorted(whole.measured, key=lambda i: whole.measured[i].e2e or 0.0)[-2:]
    measured = {i: replace(r, ended=(r.ended or 0.0) + 100) if i in slow else r for i, r in whole.measured.items()}
    jobs = tuple(replace(job, prompt_tokens=10**6) if job.id in slow else job for job in _workload().jobs)
    simulation = replace(whole.simulation, workload=Workload("made", jobs))
    pair = replace(whole, measured=measured, simulation=simulation, bound=0.3, calibrated_bound=0.3)
    report = check(pair)
    assert report.plain.left_out == {"refused": 2} and report.plain.requests == 38
    assert all(line.ok for line in report.plain.lines), "what was left out is on neither side"
    assert not report.ok, "2 of 40 are more than 1 %"
    assert run_pair(pair, Console(width=100)) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "2 of 40 measured requests have no end in the simulation (2 refused)" in out and "out of bounds" in out
    assert json.loads(report_json(report))["plain"]["left_out"] == {"refused": 2}


def test_a_few_may_be_left_out() -> None:
    replay = Replay((), 99, 1, 0, 0.0, {"timeout": 1})
    assert replay.ok and not replace(replay, left_out={"timeout": 2}).ok
    assert not replace(replay, left_out={}, troubles=("a policy failed",)).ok


def lasting(seconds: float) -> RequestRecord:
    """Measured: two tokens, or only one, that all came so many seconds after the request."""
    return RequestRecord(
        "r", 0, 0.0, 200, "default", 0, 1, first_token=seconds, last_token=seconds, ended=seconds,
        output_tokens=1 if seconds else 2,
    )  # fmt: skip


def test_a_metric_that_is_nowhere_has_no_line() -> None:
    """Outputs of one token have no TPOT; the scale is then fitted by e2e."""
    jobs = tuple(Job(f"r{i}", i * 0.5, 200, 1) for i in range(8))
    simulation = Simulation(Workload("ones", jobs), EngineConfig(**OPTIONS), find_card("rtx4090"))
    pair = Pair("ones", simulation, {job.id: lasting(0.05) for job in jobs}, "made up", bound=None)
    report = check(pair)
    assert {line.metric for line in report.plain.lines} == {"ttft", "e2e"}
    assert report.fitted is not None and abs(report.fitted.lines[0].error) < 0.01
    assert run_pair(pair, Console(width=80)) == 0
    assert run_pair(replace(pair, bound=0.4), Console(width=80)) == 1, "half of it uncalibrated"


def test_tokens_that_took_no_time_give_no_scale() -> None:
    workload = _workload(4)
    simulation = Simulation(workload, EngineConfig(**OPTIONS), find_card("rtx4090"))
    pair = Pair("zero", simulation, {job.id: lasting(0.0) for job in workload.jobs}, "made up")
    with pytest.raises(BadValue, match="give a run whose tokens take time"):
        check(pair)
