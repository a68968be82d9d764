"""The feed of an engine in this process, and its recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from vtop.app.live.engine import LiveFeed
from vtop.engine import commands as cmd
from vtop.engine.clock import MonotonicClock
from vtop.engine.events.journal import Recording
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop.engine.thread import EngineThread, Progress, ThreadState
from vtop_support.stub_engine import StubEngine


def build(_progress: Progress) -> StubEngine:
    return StubEngine(40, clock=MonotonicClock())


def wait(what: Callable[[], object], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def live(record: Path | None = None) -> LiveFeed:
    feed = LiveFeed(EngineThread(build), record)
    assert feed.meta is None and feed.status.state is ThreadState.LOADING
    feed.start()
    return feed


def add(feed: LiveFeed, number: int) -> None:
    for n in range(number):
        feed.send(cmd.AddRequest(f"r{n}", "a b c", SamplingParams(max_tokens=20)))


def test_frames_come_in_order_and_the_fold_agrees() -> None:
    feed = live()
    add(feed, 5)
    wait(lambda: feed.meta is not None)
    assert feed.meta is not None
    state = EngineState(feed.meta)

    def fold() -> bool:
        for frame in feed.drain():
            state.apply(frame)
        return state.totals.finished["length"] == 5

    wait(fold)
    assert state.used == 0 and feed.close(2.0)
    assert feed.status.state is ThreadState.STOPPED


def test_a_recording_holds_what_the_screen_never_took(tmp_path: Path) -> None:
    path = tmp_path / "run.vtop"
    feed = live(path)
    add(feed, 5)
    wait(lambda: feed.status.state is ThreadState.IDLE and feed.pending >= 20)
    assert feed.close(2.0) and feed.problem == ""
    recording = Recording(path)
    state = EngineState(recording.meta)
    for frame in recording.frames():
        state.apply(frame)
    assert state.totals.finished["length"] == 5


def test_a_recording_that_cannot_be_written_stops_alone(tmp_path: Path) -> None:
    feed = live(tmp_path / "no" / "such" / "folder")
    add(feed, 2)
    wait(lambda: feed.problem)
    assert "recording to" in feed.problem
    wait(lambda: feed.status.state is ThreadState.IDLE)
    assert feed.close(2.0)


def test_closing_before_the_start_is_fine() -> None:
    assert LiveFeed(EngineThread(build)).close(1.0)
