"""A run without a screen, on an engine without a model."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from vtop.app.commands.headless import drive
from vtop.app.commands.run import Work
from vtop.app.live.burst import Lengths
from vtop.app.options import AppConfig
from vtop.engine.clock import MonotonicClock
from vtop_support.stub_engine import StubEngine

CONFIG = AppConfig(max_tokens=12)


def test_prompts_and_burst_run_to_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    work = Work(["a b c", "", "d e"], burst=6, burst_lengths=Lengths.SHORT)
    assert drive(StubEngine(40), CONFIG, work, as_json=False) == 0
    captured = capsys.readouterr()
    assert "8 accepted: 8 length, 1 refused" in captured.out
    assert "TTFT" in captured.out and "KV peak" in captured.out and "recompute tax" in captured.out
    assert "request r2 refused" in captured.err


def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(StubEngine(12), CONFIG, Work(["word " * 60] * 4), as_json=True) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert captured.out.count("\n") == 1 and captured.err == ""
    assert data["outcomes"] == {"length": 4} and data["output_tokens"] == 48 and data["interrupted"] is False
    assert data["peak_blocks"] == 12 and data["ttft"]["count"] == 4 and data["model"] == "stub"
    assert 0 <= data["recompute_tax"] < 1


def test_a_fallback_of_the_attention_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        engine = StubEngine(40)
        engine.meta = msgspec.structs.replace(engine.meta, backend_note="no [b]numba[/b] \x1b[31mhere")
        drive(engine, CONFIG, Work(["a b c"]), as_json=as_json)
    table, _, line = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    assert "no [b]numba[/b] ␛[31mhere" in table
    assert json.loads(line)["backend_note"] == "no [b]numba[/b] \x1b[31mhere"


def test_a_run_in_which_all_were_refused_did_not_succeed(capsys: pytest.CaptureFixture[str]) -> None:
    assert drive(StubEngine(2), CONFIG, Work(["word " * 200]), as_json=True) == 1
    assert drive(StubEngine(2), CONFIG, Work(["word " * 200, "a b"]), as_json=True) == 0
    assert [json.loads(line)["outcomes"] for line in capsys.readouterr().out.splitlines()] == [
        {"refused": 1},
        {"refused": 1, "length": 1},
    ]


def test_duration_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    engine = StubEngine(40, before_step=lambda n: time.sleep(0.01))
    assert drive(engine, AppConfig(max_tokens=100_000), Work(["a b"], duration=0.2), as_json=False) == 0
    assert "1 unfinished" in capsys.readouterr().out


def test_sigint_gives_the_summary_so_far_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    engine = StubEngine(40, before_step=lambda n: time.sleep(0.005))
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    before = signal.getsignal(signal.SIGINT)
    try:
        assert drive(engine, AppConfig(max_tokens=100_000), Work(["a b"]), as_json=False) == 130
    finally:
        interrupt.cancel()  # it is meant for the run, not for the tests after it
    assert signal.getsignal(signal.SIGINT) is before
    assert "interrupted" in capsys.readouterr().out


def test_speed_is_a_cap() -> None:
    engine = StubEngine(40, clock=MonotonicClock())
    times: list[float] = []
    engine.on_frame(lambda frame: times.append(frame.time) if frame.ran else None)
    drive(engine, AppConfig(max_tokens=10, speed=50), Work(["a b"]), as_json=True)
    assert len(times) == 10 and times[-1] - times[0] >= 0.15  # nine intervals of 20 ms; more on a busy machine


def test_a_recording_holds_the_run(tmp_path: Path) -> None:
    from vtop.engine.events.journal import Recording
    from vtop.engine.state.fold import EngineState

    path = tmp_path / "run.vtop"
    drive(StubEngine(40), CONFIG, Work(["a b c"] * 3, record=path), as_json=True)
    recording = Recording(path)
    state = EngineState(recording.meta)
    for frame in recording.frames():
        state.apply(frame)
    assert state.totals.finished["length"] == 3


def test_a_broken_engine_gives_the_summary_so_far_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    def break_down(step: int) -> None:
        if step == 5:
            raise RuntimeError("no\nmemory")

    assert drive(StubEngine(40, before_step=break_down), CONFIG, Work(["a b c"]), as_json=True) == 1
    captured = capsys.readouterr()
    assert captured.err == "vtop: engine stopped: RuntimeError: no memory\n"
    assert json.loads(captured.out)["steps"] == 5


def test_requests_that_nobody_schedules_end_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of the scheduler must not become a program that never ends."""
    from vtop.app.commands import headless
    from vtop.engine.executor import StepPlan
    from vtop.engine.sched.scheduler import Scheduler

    steps = 0

    def nobody(self: Scheduler, now: float) -> StepPlan:
        nonlocal steps
        steps += 1
        assert steps < 1000, "stepped without a pause or an end"
        return StepPlan()

    monkeypatch.setattr(Scheduler, "schedule", nobody)
    monkeypatch.setattr(headless, "NOTHING_COMPUTED", 0.3, raising=False)
    assert drive(StubEngine(40), CONFIG, Work(["a b c"]), as_json=True) == 1
    told = capsys.readouterr()
    assert told.err == "vtop: engine stopped: deadlock: nothing was computed for 0.3 s, and nothing comes\n"
    assert json.loads(told.out)["unfinished"] == 1
