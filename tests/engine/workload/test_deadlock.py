"""A step that computes nothing is no deadlock; that nothing can ever change again is, and it ends that run only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vtop.app.cli import main
from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.errors import Deadlock
from vtop.engine.executor import StepPlan
from vtop.engine.sched.scheduler import Scheduler
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.compare import Case, run_cases
from vtop.engine.sim.simulator import SimResult, Simulation, build, simulate
from vtop.engine.workload.engine import MOST_SECONDS, Idle
from vtop.engine.workload.jobs import Job, Workload

CARD = find_card("rtx4090")
SELF_PREEMPTING = {
    "preset": "vllm-v0",
    "batching": "chunked",
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks_override": 8,
    "block_size": 8,
}


def run(*jobs: Job, **options: Any) -> SimResult:
    return simulate(Simulation(Workload("jobs", jobs), EngineConfig(**options), CARD))


def test_a_step_that_only_preempts_is_followed_by_another_one() -> None:
    """Two samples of 40 prompt tokens share 5 of 8 blocks and take one more each for tokens 41 to 48. For the 49th each
    needs another: one is left, and nobody else can give way. As two sequences of 49 tokens it never fits again. So it
    ends by capacity, with the 9 tokens that 48 computed ones give each sample.
    """
    result = run(Job("a", 0.0, 40, 60, n=2), **SELF_PREEMPTING)
    assert result.ledger.totals.outcomes == {"capacity": 1}
    assert result.ledger.totals.output_tokens == 18
    assert not result.notes


def test_no_time_is_lost_to_a_step_that_only_preempts() -> None:
    """It ends after its tenth step, not when the next request arrives."""
    result = run(Job("a", 0.0, 40, 60, n=2), Job("later", 100.0, 8, 2), **SELF_PREEMPTING)
    first, later = result.ledger.records
    assert first.finish_reason == "capacity" and first.ended < 1.0
    assert later.arrival == pytest.approx(100.0) and later.finish_reason == "length"


@pytest.fixture
def nobody_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default scheduler loses sight of whoever has 99 prompt tokens."""
    plain = Scheduler.schedule

    def schedule(self: Scheduler, now: float) -> StepPlan:
        if any(request.prompt_len == 99 for request in self.waiting.ordered()):
            self._begin(now)
            return StepPlan()
        return plain(self, now)

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    yield


@pytest.mark.usefixtures("nobody_is_scheduled")
def test_a_deadlock_ends_the_run_with_one_line_and_keeps_what_was_measured() -> None:
    result = run(Job("fine", 0.0, 20, 5), Job("lost", 1.0, 99, 5), num_gpu_blocks_override=64)
    assert result.ledger.totals.outcomes == {"length": 1}
    [note] = result.notes
    assert note.level == "error"
    assert note.text == "deadlock: lost waits, nothing runs and nothing comes; no step would ever change that"


@pytest.mark.usefixtures("nobody_is_scheduled")
def test_what_will_still_happen_is_waited_for() -> None:
    """A time-out ends what waits in vain: nothing is stuck."""
    result = run(Job("lost", 0.0, 99, 5, timeout=50_000.0), Job("next", 60_000.0, 20, 5), num_gpu_blocks_override=64)
    assert result.ledger.totals.outcomes == {"timeout": 1, "length": 1}
    assert not result.notes


@pytest.mark.usefixtures("nobody_is_scheduled")
def test_the_other_runs_of_a_comparison_are_kept() -> None:
    config = EngineConfig(num_gpu_blocks_override=64)
    cases = [
        Case(name, None, 0, Simulation(Workload("one", (Job("a", 0.0, tokens, 5),)), config, CARD))
        for name, tokens in (("fine", 20), ("stuck", 99))
    ]
    fine, stuck = run_cases(cases)
    assert not fine.failed and fine.measures["completed"] == 1
    assert stuck.failed and stuck.measures["completed"] == 0


@pytest.mark.usefixtures("nobody_is_scheduled")
def test_the_command_line_says_it_in_one_line_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["sim", "--requests", "1", "--prompt-tokens", "99", "--num-gpu-blocks-override", "64"])
    told = capsys.readouterr()
    assert code == 1
    assert told.err.count("\n") == 1 and "deadlock: " in told.err and "Traceback" not in told.err
    assert "latency" in told.out


def test_moving_requests_in_a_circle_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that change queues and compute nothing, for ever."""

    def schedule(self: Scheduler, now: float) -> StepPlan:
        self._begin(now)
        self._events.append(ev.Demoted("a", 0.0, 1.0, (0.0,)))
        return StepPlan()

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    result = run(Job("a", 0.0, 20, 5), num_gpu_blocks_override=64)
    [note] = result.notes
    assert "deadlock: a waits, and 1,011 steps moved" in note.text


@pytest.mark.usefixtures("nobody_is_scheduled")
def test_whoever_steps_by_hand_gets_an_error_unless_the_engine_is_patient() -> None:
    simulation = Simulation(Workload("one", (Job("a", 0.0, 99, 5),)), EngineConfig(num_gpu_blocks_override=64), CARD)
    engine = build(simulation)
    with pytest.raises(Deadlock):
        for _ in range(200):
            engine.step()
    patient = build(simulation)
    patient.patient = True
    for _ in range(200):
        patient.step()
    assert patient.elapsed == 0.0


def test_a_million_seconds_are_tried_in_few_steps() -> None:
    idle, waited = Idle(), 0.0
    for _ in range(100):
        idle.passed([])
        if idle.settled:
            pause = idle.pause()
            if pause is None:
                break
            waited += pause
    assert MOST_SECONDS <= waited <= 2 * MOST_SECONDS + 1 and idle.steps < 50
