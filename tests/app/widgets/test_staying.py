"""The selection: it stays on its request, and goes to the next one of the queue when that ends."""

from __future__ import annotations

import random

import pytest
from textual.pilot import Pilot

from vtop.app.main import VtopApp
from vtop.app.screens.request import RequestScreen
from vtop.engine.request import RequestStatus, SamplingParams
from vtop_support.app_driver import running_app, screen_lines, settle
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine


def feed_of(requests: int = 20, seats: int = 8) -> FakeFeed:
    feed = FakeFeed(StubEngine(64, max_num_seqs=seats))
    for number in range(1, requests + 1):
        feed.engine.add_request(f"r{number}", "word " * 12, SamplingParams(max_tokens=200))
    feed.run(4)
    return feed


async def abort(app: VtopApp, pilot: Pilot[None], feed: FakeFeed, *ids: str) -> None:
    for name in ids:
        feed.engine.abort_request(name)
    feed.engine.flush()
    await settle(pilot, app)


def marked(app: VtopApp) -> set[str]:
    """Ids of the rows with the mark of the selection."""
    rows = [line.split("▌")[-1].split() for line in screen_lines(app) if "▌" in line]
    return {next(word for word in row if word[0] == "r" and word[1:].isdigit()) for row in rows if row[0].isdigit()}


@pytest.mark.parametrize(("panel", "first", "last"), [("running", 1, 8), ("waiting", 9, 20)])
async def test_the_next_row_is_selected_when_the_selected_one_ends(panel: str, first: int, last: int) -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.overview.panels[panel].focus()
        await pilot.press("home", "down", "down")
        chosen = first + 2
        assert app.view.selected == f"r{chosen}"
        await abort(app, pilot, feed, f"r{chosen}")
        assert app.view.selected == f"r{chosen + 1}" and marked(app) == {f"r{chosen + 1}"}
        # several at once, the selected one among them: the first behind it that is left
        await abort(app, pilot, feed, *(f"r{n}" for n in (first, chosen + 1, chosen + 2)))
        assert app.view.selected == f"r{chosen + 3}"
        await pilot.press("up")
        assert app.view.selected == f"r{first + 1}"


@pytest.mark.parametrize(("panel", "last"), [("running", 8), ("waiting", 20)])
async def test_behind_the_last_row_is_the_one_before(panel: str, last: int) -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.overview.panels[panel].focus()
        await pilot.press("end")
        assert app.view.selected == f"r{last}"
        await abort(app, pilot, feed, f"r{last}")
        assert app.view.selected == f"r{last - 1}"


async def test_the_last_of_all_stays_selected_where_it_ended() -> None:
    feed = feed_of(1)
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.overview.panels["running"].focus()
        await pilot.press("down")
        await abort(app, pilot, feed, "r1")
        assert app.view.selected == "r1" and any("▌" in line and " r1 " in line for line in screen_lines(app))


async def test_one_that_is_admitted_stays_selected_and_the_keys_go_on_from_its_place() -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.overview.panels["waiting"].focus()
        await pilot.press("home", "down", "down")
        assert app.view.selected == "r11"
        await abort(app, pilot, feed, "r1", "r2", "r3")
        feed.run(1)
        await settle(pilot, app)
        assert app.pump.live is not None and app.pump.live.requests["r11"].status is RequestStatus.RUNNING
        assert app.view.selected == "r11" and marked(app) == {"r11"}
        await pilot.press("down")
        assert app.view.selected == "r14"  # the third row, as r11 was; not the first


async def test_what_is_read_on_its_own_screen_stays() -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.overview.panels["running"].focus()
        await pilot.press("home", "enter")
        assert isinstance(app.screen, RequestScreen)
        await abort(app, pilot, feed, "r1")
        assert app.view.selected == "r1"
        await pilot.press("escape")
        await settle(pilot, app)
        assert app.view.selected == "r1"


async def test_a_finished_row_that_is_no_longer_kept() -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await abort(app, pilot, feed, "r1", "r2", "r3")
        app.overview.panels["finished"].focus()
        await pilot.press("end")
        assert app.view.selected == "r1"
        assert app.pump.live is not None
        app.pump.live.finished.popleft()
        app.touch()
        await settle(pilot, app)
        assert app.view.selected == "r2"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_it_never_moves_by_itself_otherwise(seed: int) -> None:
    """Preemptions, admissions, resorted queues: while the selected one is alive it is the selected one."""
    rng = random.Random(seed)
    feed = FakeFeed(StubEngine(24, max_num_seqs=8))
    async with running_app(feed, size=(80, 24)) as (app, pilot, _):
        for number in range(60):
            if rng.random() < 0.5:
                prompt, params = "word " * rng.randint(5, 60), SamplingParams(max_tokens=rng.randint(2, 60))
                feed.engine.add_request(f"r{number}", prompt, params, priority=rng.randint(0, 2))
            feed.run(rng.randint(1, 4))
            if rng.random() < 0.05:
                feed.engine.set_option("scheduling_policy", rng.choice(["fcfs", "sjf", "priority"]))
            await settle(pilot, app)
            if rng.random() < 0.2:
                await pilot.press(rng.choice(["down", "up", "tab", "end"]))
            live, before = app.pump.live, app.view.selected
            assert live is not None
            lived, ran = before in live.requests, before in live.running
            feed.run(rng.randint(1, 4))
            await settle(pilot, app)
            if before is not None and before in live.requests:
                assert app.view.selected == before
            elif before is not None:
                others = live.running if ran else live.waiting | live.swapped
                assert app.view.selected in (others if others and lived else [before])
