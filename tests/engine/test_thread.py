"""EngineThread: commands, subscriptions, pausing, failures, and what it costs while nothing happens."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.executor import StepOutput, StepPlan
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop.engine.thread import EngineThread, Subscription, ThreadState
from vtop_support.stub import StubExecutor, expected_output

PROMPT = (5, 6, 7, 8)


class Running:
    """A thread over the stub, with a reader that folds."""

    def __init__(self, seconds: float = 0.0, num_blocks: int = 64, **more: object) -> None:
        self.executor = StubExecutor(num_blocks, 4, seconds=seconds)
        config = EngineConfig(num_gpu_blocks_override=num_blocks, block_size=4)
        self.thread = EngineThread(lambda progress: LLMEngine(self.executor, config), **more)  # type: ignore[arg-type]
        self.reader: Subscription = self.thread.subscribe("test")
        self.frames: list[ev.Frame] = []
        self.thread.start()
        assert self.thread.wait_ready(10)
        assert self.thread.meta is not None
        self.state = EngineState(self.thread.meta)

    def add(self, request_id: str, max_tokens: int = 8) -> None:
        self.thread.send(cmd.AddRequest(request_id, PROMPT, SamplingParams(temperature=0, max_tokens=max_tokens)))

    def read(self) -> None:
        for frame in self.reader.drain():
            self.frames.append(frame)
            self.state.apply(frame)

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not reached: {self.thread.status}"
            time.sleep(0.002)
            self.read()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(**more: object) -> Running:
        made.append(Running(**more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for running in made:
        running.thread.shutdown()


Start = Callable[..., Running]


def test_a_request_runs_to_its_end(start: Start) -> None:
    running = start()
    running.add("a")
    running.until(lambda: bool(running.state.finished))
    assert running.state.finished[0].sequences[0].output_tokens == expected_output(list(PROMPT), 8)
    running.until(lambda: running.thread.status.state is ThreadState.IDLE)


def test_steps_one_at_a_time_while_paused(start: Start) -> None:
    running = start(paused=True)
    running.add("a", 20)
    running.until(lambda: "a" in running.state.waiting)  # seen at once, although nothing runs
    assert running.state.paused and running.state.step == 0
    running.thread.send(cmd.Step(1))
    running.until(lambda: running.state.paused and running.state.step == 1)
    running.thread.send(cmd.Step(3))
    running.until(lambda: running.state.paused and running.state.step == 4)
    time.sleep(0.05)
    running.read()
    assert running.state.step == 4 and running.state.pause_reason == "step"
    running.thread.send(cmd.Resume())
    running.until(lambda: bool(running.state.finished))


def test_runs_until_an_event(start: Start) -> None:
    running = start(paused=True)
    running.add("a", 3)
    running.add("b", 6)
    running.thread.send(cmd.RunUntil(frozenset({"finished"})))
    running.until(lambda: running.state.paused and bool(running.state.finished))
    assert [v.id for v in running.state.finished] == ["a"] and running.state.pause_reason == "finished"


def test_speed_caps_steps(start: Start) -> None:
    running = start(steps_per_second=50.0)
    running.add("a", 11)
    running.until(lambda: bool(running.state.finished))
    times = [frame.time for frame in running.frames if frame.ran]
    assert len(times) == 11 and times[-1] - times[0] >= 0.19  # ten intervals of 20 ms; never less, at any load
    assert running.state.speed == 50.0


@pytest.mark.parametrize("paused", [False, True])
def test_idle_or_paused_takes_no_cpu(start: Start, paused: bool) -> None:
    """E118: it sleeps until a command comes, and does not look whether one did; the command wakes it."""
    running = start(paused=paused)
    if paused:
        running.add("a", 1000)
        running.until(lambda: "a" in running.state.waiting)
    asleep = ThreadState.PAUSED if paused else ThreadState.IDLE
    running.until(lambda: running.thread.status.state is asleep)
    looks = 0
    may_step = running.thread._may_step

    def look(engine: LLMEngine) -> bool:
        nonlocal looks
        looks += 1
        return may_step(engine)

    time.sleep(0.05)  # on its way into the sleep
    running.thread._may_step = look  # type: ignore[method-assign]
    time.sleep(0.3)
    assert looks == 0
    running.add("b", 1)
    running.until(lambda: "b" in running.state.waiting if paused else bool(running.state.finished))
    assert looks


def test_a_slow_reader_makes_the_engine_wait_and_loses_nothing(start: Start) -> None:
    running = start(max_behind=20)
    running.add("a", 200)
    time.sleep(0.3)
    assert 20 < running.reader.pending < 40
    running.until(lambda: bool(running.state.finished))
    assert [f.serial for f in running.frames] == list(range(len(running.frames)))
    assert any(isinstance(e, ev.SubscriberBehind) for f in running.frames for e in f.events)


def test_commands_are_answered_while_a_reader_is_behind(start: Start) -> None:
    running = start(max_behind=5)
    running.add("a", 500)
    time.sleep(0.1)
    running.thread.send(cmd.Pause())
    time.sleep(0.1)
    running.until(lambda: running.state.paused)


def test_two_readers_get_the_same_frames(start: Start) -> None:
    running = start(paused=True)
    other = running.thread.subscribe("other")
    running.add("a", 5)
    running.thread.send(cmd.Resume())
    running.until(lambda: bool(running.state.finished))
    tail = other.drain()
    assert tail and running.frames[-len(tail) :] == tail
    other.close()
    running.add("b", 5)
    running.until(lambda: len(running.state.finished) == 2)
    assert other.drain() == []


def test_an_executor_error_keeps_the_engine(start: Start) -> None:
    """I9."""
    running = start()
    running.executor.fail_at = {3}
    running.add("a")
    running.until(lambda: bool(running.state.finished))
    assert running.state.finished[0].finish_reason == "failed" and running.state.totals.failures == 1
    running.add("b")
    running.until(lambda: len(running.state.finished) == 2)
    assert running.state.finished[1].finish_reason == "length"


def test_a_broken_scheduler_pauses_the_engine_and_says_why(start: Start) -> None:
    """T005: never a silent death, and none at all: what was accepted goes on when it works again."""
    running = start()
    engine = running.thread._engine
    assert engine is not None
    works = engine._scheduler.schedule

    def broken(now: float) -> None:
        raise RuntimeError("no more")

    engine._scheduler.schedule = broken  # type: ignore[method-assign, assignment]
    running.add("a")

    def said() -> list[str]:
        notes = [e.text for frame in running.frames for e in frame.events if isinstance(e, ev.Note)]
        return [text for text in notes if "the engine pauses" in text and "RuntimeError: no more" in text]

    running.until(lambda: bool(said()) and running.thread.status.state is ThreadState.PAUSED)
    engine._scheduler.schedule = works  # type: ignore[method-assign]
    running.thread.send(cmd.Resume())
    running.until(lambda: "a" in {view.id for view in running.state.finished})


def test_a_failure_to_load_is_one_line() -> None:
    from vtop.engine.errors import BadValue

    def build(progress: object) -> LLMEngine:
        raise BadValue("model", "nope", "no such folder")

    thread = EngineThread(build)
    thread.start()
    assert thread.wait_ready(5)
    time.sleep(0.05)
    assert thread.status.state is ThreadState.FAILED
    assert thread.status.error == "model = 'nope': no such folder" and not thread.status.trace


def test_bad_requests_are_refused_and_the_engine_goes_on(start: Start) -> None:
    running = start()
    running.thread.send(cmd.AddRequest("long", tuple(range(3, 900))))
    running.thread.send(cmd.AddRequest("empty", ()))
    running.thread.send(cmd.ResizePool(0))
    running.thread.send(cmd.SetSpeed(-1.0))
    running.add("a")
    running.until(lambda: bool(running.state.finished))
    assert [r.id for r in running.state.refused] == ["long", "empty"]
    notes = [e.text for f in running.frames for e in f.events if isinstance(e, ev.Note)]
    assert [note.split(" = ")[0] for note in notes] == ["num_blocks", "speed"]


def test_abort_in_the_step_of_the_end_twice_and_of_the_unknown(start: Start) -> None:
    """E083: from another thread; each is at most a notice, and the engine lives."""
    running = start()
    for i in range(200):
        running.add(f"r{i}", 1 + i % 3)
        running.thread.send(cmd.AbortRequest(f"r{max(0, i - i % 5)}"))
        running.thread.send(cmd.AbortRequest(f"r{i // 2}"))
    running.thread.send(cmd.AbortRequest("nope"))
    running.until(lambda: sum(running.state.totals.finished.values()) == 200)
    assert set(running.state.totals.finished) <= {"abort", "length"}
    assert running.state.used == 0 and running.thread.status.state is not ThreadState.FAILED


def idle_after(running: Running, name: str) -> bool:
    return running.state.find(name) is not None and not running.state.requests


def test_salts_and_the_reset_of_the_cache_arrive(start: Start) -> None:
    running = start()
    params = SamplingParams(temperature=0, max_tokens=2)
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        running.thread.send(cmd.AddRequest(name, (*PROMPT, *PROMPT), params, cache_salt=salt))
        running.until(partial(idle_after, running, name))
    running.thread.send(cmd.ResetPrefixCache())
    running.thread.send(cmd.AddRequest("d", (*PROMPT, *PROMPT), params, cache_salt="x"))
    running.until(lambda: len(running.state.finished) == 4)
    found = {e.id: e.hit for f in running.frames for e in f.events if isinstance(e, ev.PrefixLookup)}
    assert found == {"a": 0, "b": 0, "c": 7, "d": 0}


def test_a_thousand_random_commands_at_full_speed(start: Start) -> None:
    """T008: never stuck."""
    running = start(num_blocks=12)
    rng = random.Random(7)
    for i in range(1000):
        several: list[cmd.Command] = [
            cmd.AddRequest(f"r{i}", PROMPT, SamplingParams(max_tokens=rng.randint(1, 20), temperature=0)),
            cmd.AbortRequest(f"r{rng.randint(0, i)}"),
            cmd.Pause(),
            cmd.Resume(),
            cmd.Step(2),
            cmd.ResizePool(rng.randint(4, 16)),
        ]
        running.thread.send(rng.choice(several))
        running.read()
    running.thread.send(cmd.Resume())
    running.until(lambda: not running.state.requests and not running.state.paused)
    assert running.thread.shutdown(5)
    assert running.thread.status.state is ThreadState.STOPPED


def test_shutdown_does_not_wait_for_a_long_step(start: Start) -> None:
    """T004."""
    running = start()
    entered, ended = threading.Event(), threading.Event()
    execute = running.executor.execute

    def long(plan: StepPlan) -> StepOutput:
        entered.set()
        ended.wait(60)
        return execute(plan)

    running.executor.execute = long  # type: ignore[method-assign]
    running.add("a")
    assert entered.wait(60)
    try:
        assert not running.thread.shutdown(0.05)  # it comes back although the step goes on
    finally:
        ended.set()
    assert running.thread.shutdown(60)
