"""While nothing happens the screen follows the person all the same: each picture is what a full drawing would give."""

from __future__ import annotations

import random

import pytest
from textual.pilot import Pilot

from vtop.app.live.playing import Look, Playing
from vtop.app.main import VtopApp
from vtop.app.options import AppConfig
from vtop.app.screens.key_bar import KeyBar
from vtop.app.widgets.map.map import BlockMap
from vtop.app.widgets.panel import Panel
from vtop.engine.request import SamplingParams
from vtop_support.app_driver import running_app, screen_lines, settle
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine

SIZES = [(80, 24), (120, 40), (60, 16), (100, 30), (170, 50), (50, 12)]
KEYS = [
    *("tab", "tab", "tab", "shift+tab", "down", "down", "up", "pagedown", "home", "end", "enter", "escape", "escape"),
    *("m", "z", "t", "M", "L", "F", "w", "n", "1", "2", "3", "4", "5", "6", "p", "space", "left", "right"),
]

TITLES = ("KV", "RUNNING", "WAITING", "FINISHED", "EVENTS")


def paused_feed() -> FakeFeed:
    feed = FakeFeed(StubEngine(64))
    for number in range(1, 31):
        group = ("default", "beta")[number % 2]
        params = SamplingParams(max_tokens=8 + number)
        feed.engine.add_request(f"r{number}", "word " * (5 + 7 * number), params, group=group)
    feed.run(40)
    return feed


def picture(app: VtopApp) -> list[list[tuple[str, object]]]:
    """Rows of the screen as text and style of each cell."""
    strips = app.screen._compositor.render_strips()
    return [[(character, segment.style) for segment in strip for character in segment.text] for strip in strips]


async def drawn_anew(app: VtopApp, pilot: Pilot[None]) -> list[list[tuple[str, object]]]:
    """The picture when nothing that was drawn before is kept."""
    for screen in app.screen_stack:
        for bar in screen.query(KeyBar):
            bar._shown = ()
        for panel in screen.query(Panel):
            panel._rows, panel._palette = [], None
            if isinstance(panel, BlockMap):
                panel._looks = None
            panel.redraw()
        screen.refresh()
    app.touch()
    await pilot.pause()
    return picture(app)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
async def test_nothing_on_the_screen_is_stale(seed: int) -> None:
    rng = random.Random(seed)
    playing = Playing(look=Look("swap", "a title", "look at what is written here " * 4))
    config = AppConfig(ascii=bool(seed % 2), fps=60)
    async with running_app(paused_feed(), size=SIZES[seed % 4], config=config, playing=playing) as (app, pilot, feed):
        await settle(pilot, app)
        done = []
        for _ in range(12):
            if rng.random() < 0.15:
                size = rng.choice(SIZES)
                done.append(str(size))
                await pilot.resize_terminal(*size)
            elif rng.random() < 0.15:
                done.append("step")
                feed.run()
            elif rng.random() < 0.2:
                spot = (rng.randrange(app.size.width), rng.randrange(app.size.height - 1))
                done.append(f"click {spot}")
                await pilot.click(offset=spot)
            else:
                done.append(rng.choice(KEYS))
                await pilot.press(done[-1])
            app.clear_notifications()
            await pilot.pause(0.05)  # longer than a tick
            before, texts = picture(app), screen_lines(app)
            anew = await drawn_anew(app, pilot)
            odd = [number for number, (row, new) in enumerate(zip(before, anew, strict=True)) if row != new]
            assert not odd, (done, [(texts[y], screen_lines(app)[y]) for y in odd[:3]], _differ(before, anew, odd))


def _differ(before: list[list[tuple[str, object]]], now: list[list[tuple[str, object]]], odd: list[int]) -> object:
    y = odd[0]
    return next(((y, x, a, b) for x, (a, b) in enumerate(zip(before[y], now[y], strict=False)) if a != b), y)


async def test_one_mark_of_the_focus() -> None:
    async with running_app(paused_feed()) as (app, pilot, _):
        await settle(pilot, app)
        for _ in range(4):
            await pilot.press("tab")
            marks = sum(line.count("▌ " + title) for line in screen_lines(app) for title in TITLES)
            assert marks == sum(panel.has_focus for panel in app.overview.panels.values())
