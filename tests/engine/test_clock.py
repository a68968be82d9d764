"""Engine time: what stops it and what does not, on clocks and machines that tests move."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.clock import SUSPENDED_AFTER, ManualClock, MonotonicClock
from vtop.engine.config import EngineConfig
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop.engine.state.measures import summarise
from vtop.engine.thread import EngineThread
from vtop.engine.workload.engine import WorkloadEngine
from vtop.engine.workload.jobs import Job, Workload
from vtop_support.stub import StubExecutor
from vtop_support.stub_engine import StubEngine

PROMPT = (5, 6, 7, 8)


class Machine:
    """Real seconds and processor seconds, moved by the test: `passes` while the process works or sleeps."""

    def __init__(self) -> None:
        self.real, self.processor = 1000.0, 3.0

    def passes(self, seconds: float, busy: float = 0.0) -> None:
        self.real += seconds
        self.processor += busy

    def clock(self) -> MonotonicClock:
        return MonotonicClock(lambda: self.real, lambda: self.processor)


class Rig:
    """An engine in its thread, on a machine of which each step takes a tenth of a second."""

    def __init__(self, **more: object) -> None:
        self.machine = Machine()
        self.engine = StubEngine(64, clock=self.machine.clock(), before_step=lambda n: self.machine.passes(0.1, 0.1))
        self.thread = EngineThread(lambda progress: self.engine, **more)  # type: ignore[arg-type]
        self.reader = self.thread.subscribe("test")
        self.frames: list[ev.Frame] = []
        self.thread.start()
        assert self.thread.wait_ready(10) and self.thread.meta is not None
        self.state = EngineState(self.thread.meta)

    def add(self, request_id: str, max_tokens: int, **more: float) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        self.thread.send(cmd.AddRequest(request_id, PROMPT, params, **more))  # type: ignore[arg-type]

    def until(self, condition: Callable[[EngineState], bool]) -> None:
        deadline = time.monotonic() + 60
        while True:
            for frame in self.reader.drain():
                self.frames.append(frame)
                self.state.apply(frame)
            if condition(self.state):
                return
            assert time.monotonic() < deadline, f"not reached: {self.thread.status}"
            time.sleep(0.002)


@contextmanager
def rig(**more: object) -> Iterator[Rig]:
    made = Rig(**more)
    try:
        yield made
    finally:
        made.thread.shutdown()


def test_a_pause_is_no_time() -> None:
    """Added before a pause of 20 s with a time-out of 5: its TTFT is its first step, its TPOT a step, no more."""
    with rig(paused=True) as run:
        run.add("a", 3, timeout=5.0, deadline=4.0)
        run.until(lambda s: "a" in s.waiting)
        run.machine.passes(20.0)
        run.thread.send(cmd.Step(1))
        run.until(lambda s: s.paused and s.step == 1)
        run.machine.passes(20.0)
        run.add("late", 1)
        run.until(lambda s: "late" in s.waiting)
        run.machine.passes(20.0)
        run.thread.send(cmd.Resume())
        run.until(lambda s: len(s.finished) == 2)
        views = {view.id: view for view in run.state.finished}
        assert [v.finish_reason for v in views.values()] == ["length", "length"] and not views["a"].missed_deadline
        assert views["a"].ttft == pytest.approx(0.1)
        assert views["a"].tpot == pytest.approx(0.1) and views["late"].ttft == pytest.approx(0.1)
        assert summarise(run.state).seconds == pytest.approx(0.3)


def test_a_breakpoint_is_a_pause() -> None:
    with rig(paused=True) as run:
        run.add("a", 2)
        run.add("b", 6, timeout=3.0)
        run.thread.send(cmd.RunUntil(frozenset({"finished"})))
        run.until(lambda s: s.paused and len(s.finished) == 1)
        run.machine.passes(60.0)
        run.thread.send(cmd.Resume())
        run.until(lambda s: len(s.finished) == 2)
        view = run.state.finished[1]
        assert view.finish_reason == "length" and view.tpot == pytest.approx(0.1)
        assert view.longest_gap == pytest.approx(0.1)


def test_waiting_for_a_subscriber_is_no_time() -> None:
    with rig() as run:
        slow = run.thread.subscribe("slow", max_behind=3)
        run.add("a", 40, timeout=30.0)
        deadline = time.monotonic() + 60
        while not slow.too_far_behind and time.monotonic() < deadline:
            time.sleep(0.002)
        behind = run.engine.clock.now()
        while run.machine.real < 1e5:  # the thread may be a moment from its sleep yet
            time.sleep(0.05)
            run.machine.passes(1e5)
        assert run.engine.clock.now() == behind
        run.add("b", 1)  # commands are answered meanwhile, at the time that stands still
        run.until(lambda s: "b" in s.waiting)
        assert run.state.waiting["b"].arrival == behind
        slow.close()
        run.until(lambda s: len(s.finished) == 2)
        assert {v.id: v.finish_reason for v in run.state.finished} == {"a": "length", "b": "length"}
        a = next(v for v in run.state.finished if v.id == "a")
        assert a.tpot == pytest.approx(0.1) and a.longest_gap == pytest.approx(0.1)


def test_a_capped_speed_is_time() -> None:
    """A cap makes the engine slower, not the clock: the gaps between tokens are those that are seen."""
    engine = StubEngine(64, clock=MonotonicClock())
    thread = EngineThread(lambda progress: engine, steps_per_second=20.0)
    reader = thread.subscribe("test")
    thread.send(cmd.AddRequest("a", PROMPT, SamplingParams(temperature=0, max_tokens=5)))
    thread.start()
    try:
        assert thread.wait_ready(10)
        state = EngineState(engine.meta)
        deadline = time.monotonic() + 60
        while not state.finished and time.monotonic() < deadline:
            for frame in reader.drain():
                state.apply(frame)
            time.sleep(0.005)
        tpot = state.finished[0].tpot
        assert tpot is not None and tpot > 0.045  # four gaps of 50 ms, or longer on a busy machine
    finally:
        thread.shutdown()


def test_frames_carry_the_wall_clock_and_older_ones_are_read() -> None:
    with rig() as run:
        before = time.time()
        run.add("a", 2)
        run.until(lambda s: len(s.finished) == 1)
        walls = [frame.unix_time for frame in run.frames]
        assert all(wall is not None and before - 60 < wall < time.time() + 60 for wall in walls)
    old = b'{"serial":0,"step":1,"time":5.5,"ran":true,"events":[],"began":5.25}'
    assert msgspec.json.decode(old, type=ev.Frame).unix_time is None
    virtual = StubEngine(8, clock=ManualClock())
    seen: list[ev.Frame] = []
    virtual.on_frame(seen.append)
    virtual.note(ev.Note("info", "x"))
    virtual.flush()
    assert seen[0].unix_time is None


def test_arrivals_wait_for_engine_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arrival due in 10 s, of which the engine stood still for 8 (a subscriber, Ctrl+Z): it comes at its time."""
    machine = Machine()
    monkeypatch.setattr("vtop.engine.workload.engine.time", SimpleNamespace(monotonic=lambda: machine.real))
    config = EngineConfig(num_gpu_blocks_override=16, block_size=4)
    workload = Workload("w", (Job("a", 0.0, 8, 1), Job("b", 10.0, 8, 1)))
    engine = WorkloadEngine(StubExecutor(16, 4), config, workload, clock=machine.clock())
    state = engine.watch()
    engine.step()
    engine.step()
    assert state.totals.finished["length"] == 1 and engine.not_before == machine.real + 10.0
    engine.clock.hold()
    machine.passes(8.0)
    engine.clock.go_on()
    machine.passes(2.0)
    engine.step()
    assert state.totals.arrived == 1 and engine.not_before == machine.real + 8.0
    machine.passes(8.0)
    engine.step()
    assert state.totals.arrived == 2 and [v.ttft for v in state.finished] == pytest.approx([0.0, 0.0])


# --- suspension ----------------------------------------------------------------------------------------------------


def test_a_suspended_process_is_no_time() -> None:
    machine = Machine()
    clock = machine.clock()
    with clock.watched():
        start = clock.now()
        machine.passes(3600.0, busy=0.01)  # stopped by Ctrl+Z, and then a moment of waking up
        assert clock.now() == start
        machine.passes(0.5)
        assert clock.now() == pytest.approx(start + 0.5)
    machine.passes(3600.0)
    assert clock.now() == pytest.approx(start + 3600.5)  # unwatched, a long wait is a long wait


def test_a_busy_process_is_not_suspended() -> None:
    machine = Machine()
    clock = machine.clock()
    with clock.watched():
        start = clock.now()
        machine.passes(5.0, busy=4.0)  # C code kept the interpreter; nobody could give a sign of life
        assert clock.now() == pytest.approx(start + 5.0)


def test_suspended_while_paused_counts_once() -> None:
    machine = Machine()
    clock = machine.clock()
    with clock.watched():
        start = clock.now()
        machine.passes(0.25)
        clock.hold()
        clock.hold()
        machine.passes(100.0)
        assert clock.now() == pytest.approx(start + 0.25)
        clock.go_on()
        clock.go_on()
        assert clock.now() == pytest.approx(start + 0.25)
        machine.passes(0.25)
        assert clock.now() == pytest.approx(start + 0.5)


def test_a_long_wait_with_signs_of_life_is_time() -> None:
    """A step that waits for a GPU takes no processor time; others of the process still get their turn meanwhile."""
    machine = Machine()
    beats: list[str] = []

    def processor() -> float:
        beats.append(threading.current_thread().name)
        return machine.processor

    clock = MonotonicClock(lambda: machine.real, processor)
    with clock.watched():
        start = clock.now()
        for _ in range(4):  # two seconds of a step, as seen by the thread that watches
            machine.passes(SUSPENDED_AFTER / 2)
            beats.clear()
            deadline = time.monotonic() + 60
            while "vtop-clock" not in beats and time.monotonic() < deadline:
                time.sleep(0.01)
        assert clock.now() == pytest.approx(start + 2 * SUSPENDED_AFTER)
