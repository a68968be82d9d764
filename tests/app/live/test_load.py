"""The app under load: floods, pastes, random keys, long runs (T006, T008, T025, T026, T028)."""

from __future__ import annotations

import asyncio
import functools
import random
import resource
import threading
import time
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from vtop.app.live.engine import LiveFeed
from vtop.app.live.inject import MAX_PROMPT
from vtop.app.live.pump import Pump
from vtop.app.live.view import View
from vtop.app.main import VtopApp
from vtop.app.options import AppConfig
from vtop.app.screens.overview import OverviewScreen
from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.clock import MonotonicClock
from vtop.engine.request import SamplingParams
from vtop.engine.thread import EngineThread
from vtop_support.app_driver import running_app, settle, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine


class Flood:
    """Frames of one running request, about `rate` a second, 20 events each, from a thread that never waits."""

    def __init__(self, feed: FakeFeed, rate: int) -> None:
        feed.engine.add_request("r1", "a b c", SamplingParams(max_tokens=10_000_000))
        feed.engine.step()
        self.feed = feed
        self.rate = rate
        self.ended = threading.Event()
        self.frames = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        last = self.feed.frames[-1]
        serial, step = last.serial, last.step
        began = time.perf_counter()
        while not self.ended.is_set():
            now = time.perf_counter() - began
            while self.frames < now * self.rate:
                self.frames += 1
                self.feed.frames.append(
                    ev.Frame(
                        serial + self.frames,
                        step + self.frames,
                        now,
                        True,
                        [
                            ev.Scheduled(["r1"], [1], 128, ev.Limit.NONE),
                            ev.Tokens(["r1"], [7], [" cat"]),
                            *(ev.Note("info", f"event {n}") for n in range(17)),
                            ev.StepTimes(0.0, 0.0, 0.0001, 0.0, 0.0),
                        ],
                    )
                )
            time.sleep(0.001)


async def test_a_flood_of_frames_leaves_keys_quick_and_counters_exact() -> None:
    """A key waits for the pull that runs and for at most one that was due before it; a pull ends in time."""
    feed = FakeFeed(StubEngine(64))
    async with running_app(feed) as (app, pilot, _):
        flood = Flood(feed, 5000)
        flood.thread.start()
        pull, colouring = app.pump.pull, app.handlers.colouring
        pulls, pressed = 0, 0
        waited: list[int] = []

        def counted() -> bool:
            nonlocal pulls
            pulls += 1
            return pull()

        def reaction() -> None:
            colouring()
            waited.append(pulls - pressed)

        app.pump.pull = counted  # type: ignore[method-assign]
        app.handlers.colouring = reaction  # type: ignore[method-assign]
        try:
            for number in range(10):
                await asyncio.sleep(0.1)
                pressed = pulls
                app.simulate_key("m")
                await until(pilot, lambda: len(waited) > number)  # noqa: B023  awaited in the loop
        finally:
            flood.ended.set()
        flood.thread.join()
        assert max(waited) <= 2, waited
        await until(pilot, lambda: not feed.pending)
        state = app.pump.live
        assert state is not None
        assert state.totals.steps == flood.frames + 1
        assert state.find("r1") is not None
        assert state.requests["r1"].output_tokens == flood.frames + 1


async def test_a_huge_paste_is_cut_with_a_notice() -> None:
    async with running_app() as (app, pilot, feed):
        await pilot.press("p")
        app.overview.prompt.input.post_message(events.Paste("x[/]\n" * 200_000))
        await until(pilot, lambda: app.overview.prompt.input.value != "")
        assert len(app.overview.prompt.input.value) <= MAX_PROMPT
        assert "\n" not in app.overview.prompt.input.value
        await pilot.press("a", "enter")
        assert isinstance(feed.sent[0], cmd.AddRequest)


async def test_random_keys_at_full_speed_never_get_stuck() -> None:
    def build(_progress: object) -> StubEngine:
        return StubEngine(40, clock=MonotonicClock())

    feed = LiveFeed(EngineThread(build))
    app = VtopApp(feed, AppConfig(max_tokens=50), model="stub")
    rng = random.Random(7)
    keys = [
        "space",
        "full_stop",
        "greater_than_sign",
        "plus",
        "minus",
        "m",
        "z",
        "1",
        "5",
        "F",
        "down",
        "up",
        "tab",
        "t",
    ]
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.pump.live is not None)
        for number in range(150):
            match rng.randrange(4):
                case 0:
                    feed.send(app.injector.typed("word " * rng.randint(1, 200)))
                case 1:
                    feed.send(cmd.AbortRequest(f"r{rng.randint(1, number + 1)}"))
                case _:
                    await pilot.press(rng.choice(keys))
        if app.view.frozen:
            await pilot.press("z")
        feed.send(cmd.SetSpeed(None))
        feed.send(cmd.Resume())
        state = app.pump.live
        assert state is not None
        await until(pilot, lambda: not state.requests and not feed.pending)
        assert state.used == 0
    assert feed.close(2.0)


def test_a_long_run_keeps_its_memory() -> None:
    feed = FakeFeed(StubEngine(64))
    lines: list[ev.Frame] = []
    pump = Pump(feed, View(), lambda frame: None, budget=60)
    number = 0

    def more(requests: int) -> None:
        nonlocal number
        for _ in range(requests):
            number += 1
            feed.engine.add_request(f"r{number}", "a b c d", SamplingParams(max_tokens=2))
            if number % 16 == 0:
                while feed.engine.has_unfinished_requests():
                    feed.run(1)
                pump.pull()

    more(2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    more(8000)
    assert pump.live is not None
    assert len(pump.live.finished) <= 1000 and not lines
    assert len(pump.view.history.kv_used) <= pump.view.history.capacity
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


async def test_ten_thousand_waiting_requests_are_drawn_quickly() -> None:
    feed = FakeFeed(StubEngine(64))
    for number in range(10_000):
        feed.engine.add_request(f"r{number}", "a b c d", SamplingParams(max_tokens=5))
    feed.run(2)
    async with running_app(feed) as (app, pilot, _):
        await until(pilot, lambda: not feed.pending)
        times = []
        for _ in range(7):
            feed.run(1)
            app.pump.pull()
            began = time.process_time()
            app._draw()
            times.append(time.process_time() - began)
        assert sorted(times)[3] <= 0.05, times


@pytest.mark.parametrize("delay", [0.0, *(pytest.param(d, marks=pytest.mark.slow) for d in (0.01, 0.03, 0.06, 0.1))])
async def test_quitting_right_after_the_start(delay: float) -> None:
    for _ in range(4):
        app = VtopApp(FakeFeed(StubEngine(64)), model="stub")

        async def press(pilot: Pilot[Any]) -> None:
            await asyncio.sleep(delay)
            await pilot.press("q")

        async with asyncio.timeout(60):
            await app.run_async(headless=True, size=(100, 30), auto_pilot=press)
        assert app.return_code == 0


async def test_idle_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is folded, laid out, rendered or written while nothing happens."""
    feed = FakeFeed(StubEngine(64))
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        await pilot.pause(0.3)
        done: list[str] = []
        parts = [
            (Pump, "_take"),
            (OverviewScreen, "draw"),
            (Screen, "_refresh_layout"),
            (Widget, "render_lines"),
            (VtopApp, "_display"),
        ]
        for owner, name in parts:
            monkeypatch.setattr(owner, name, _noted(getattr(owner, name), done))
        await pilot.pause(1.0)
        assert done == []
        feed.run(1)
        await until(pilot, lambda: "_display" in done)


def _noted(function: Any, done: list[str]) -> Any:
    @functools.wraps(function)
    def noted(*given: Any, **more: Any) -> Any:
        done.append(function.__name__)
        return function(*given, **more)

    return noted
