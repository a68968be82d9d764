"""The engine's thread wakes whenever a reader no longer holds it up, and no subscriber is lost: every interleaving.

A reader's and the engine's steps are put in the order that loses a wake-up; then all of it is done at random, with
switches between threads as often as the interpreter allows.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.request import SamplingParams
from vtop.engine.thread import EngineThread, Subscription
from vtop_support.stub import StubExecutor

SECONDS = 60.0  # until a test gives up; what it waits for takes milliseconds


def _thread(**options: Any) -> EngineThread:
    config = EngineConfig(num_gpu_blocks_override=64, block_size=4)
    return EngineThread(lambda progress: LLMEngine(StubExecutor(64, 4), config), **options)


def _add(thread: EngineThread, max_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    thread.send(cmd.AddRequest("a", (5, 6, 7), params))


def _wait(until: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def _read_to_the_end(reader: Subscription) -> list[ev.Frame]:
    """As a reader does that only looks when there is something."""
    frames: list[ev.Frame] = []

    def ended() -> bool:
        frames.extend(reader.drain() if reader.pending else [])
        return any(isinstance(event, ev.Finished) for frame in frames for event in frame.events)

    _wait(ended, f"asleep after {len(frames)} frames, {reader.pending} pending")
    return frames


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[EngineThread, Subscription]]]:
    threads = []

    def start(max_behind: int, **options: Any) -> tuple[EngineThread, Subscription]:
        thread = _thread(**options)
        reader = thread.subscribe("reader", max_behind)
        threads.append(thread)
        thread.start()
        assert thread.wait_ready(SECONDS)
        return thread, reader

    yield start
    for thread in threads:
        thread.shutdown()


Start = Callable[..., tuple[EngineThread, Subscription]]


def test_a_raised_bound_wakes_the_engine(started: Start) -> None:
    thread, reader = started(3)
    _add(thread, 80)
    _wait(lambda: reader.pending > 3, "never behind")
    reader.max_behind = 100
    _wait(lambda: reader.pending > 50, f"asleep with {reader.pending} pending of 100 allowed")
    _read_to_the_end(reader)


def test_the_engine_falls_behind_while_the_reader_drains(started: Start) -> None:
    """When the reader begins it is not behind; while it takes Frames the engine publishes more, and goes to sleep."""
    thread, reader = started(2)

    class Interrupted(deque[ev.Frame]):
        """After the first Frame is taken, the reader is not scheduled until the engine waits for it."""

        done = False

        def popleft(self) -> ev.Frame:
            frame = super().popleft()
            if not self.done:
                self.done = True
                thread.send(cmd.Resume())
                _wait(lambda: reader.too_far_behind, "never behind")
                time.sleep(0.05)  # into its sleep; with less, the test passes for nothing, it does not fail
            return frame

    thread.send(cmd.Pause())
    _wait(lambda: reader.pending == 1, "not paused")
    _add(thread, 40)
    _wait(lambda: reader.pending == 2, "not added")
    reader._frames = Interrupted(reader._frames)
    _read_to_the_end(reader)


def test_waiting_for_a_reader_is_one_event_however_often_it_takes_a_little(started: Start) -> None:
    thread, reader = started(3, paused=True)
    _add(thread, 30)
    _wait(lambda: reader.pending >= 2, "not there")
    thread.send(cmd.Resume())
    _wait(lambda: reader.too_far_behind, "never behind")
    reader.max_behind = 1  # so that taking one leaves it behind
    frames = []
    for _ in range(2):
        time.sleep(0.02)
        frames += reader.drain(1)
    reader.max_behind = 1000
    frames += _read_to_the_end(reader)
    behind = [event for frame in frames for event in frame.events if isinstance(event, ev.SubscriberBehind)]
    assert len(behind) == 1


def test_who_subscribes_while_a_frame_is_published_is_not_lost(started: Start) -> None:
    """Another thread subscribes between the engine's look at who is still there and the end of that look."""
    thread, reader = started(100_000)
    late: list[Subscription] = []
    asked, subscribed = threading.Event(), threading.Event()

    class Slow(list[Subscription]):
        def __iter__(self) -> Iterator[Subscription]:
            yield from super().__iter__()
            if not asked.is_set() and late == []:
                asked.set()
                subscribed.wait(0.3)  # one that waits for the engine's lock comes when this Frame is out

    def subscribe() -> None:
        asked.wait(SECONDS)
        late.append(thread.subscribe("late"))
        subscribed.set()

    other = threading.Thread(target=subscribe)
    other.start()
    thread._subscriptions = Slow(thread._subscriptions)
    thread.send(cmd.Pause())  # an engine that has nothing to do looks at its subscribers to publish only
    other.join(SECONDS)
    thread.send(cmd.Resume())
    _add(thread, 20)
    _wait(lambda: late and late[0].pending > 10, "the late subscriber gets nothing")
    assert reader.pending


@pytest.mark.parametrize("seed", range(2))
def test_no_interleaving_leaves_the_engine_asleep(started: Start, seed: int) -> None:
    """Bounds, holds, readers that come and go, all at random from four threads; the request ends all the same."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread, reader = started(2)

        def meddle(number: int) -> None:
            draw = random.Random(seed * 10 + number)
            for _ in range(20):
                other = thread.subscribe(f"other {number}", draw.randint(0, 3))
                for _ in range(draw.randint(0, 20)):
                    time.sleep(draw.random() / 3000)  # about as long as a step of the stub
                    match draw.randrange(3):
                        case 0:
                            other.max_behind = draw.randint(0, 50)
                        case 1:
                            other.hold(draw.random() < 0.5)
                        case _:
                            other.drain(draw.choice((None, 1, 3)))
                other.hold(False)
                other.max_behind = 1_000_000  # it stays, and holds nobody up any more

        others = [threading.Thread(target=meddle, args=(number,)) for number in range(3)]
        for other in others:
            other.start()
        try:
            _add(thread, 1500)
            frames = _read_to_the_end(reader)
        finally:
            for other in others:
                other.join()
        assert [frame.serial for frame in frames] == list(range(frames[0].serial, frames[0].serial + len(frames)))
    finally:
        sys.setswitchinterval(before)
