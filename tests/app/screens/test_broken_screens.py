"""What breaks inside a screen on top closes that screen, is told and logged; the app goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.app import App
from textual.screen import Screen
from textual.widget import Widget

from vtop.app.main import VtopApp
from vtop.app.screens.key_bar import KeyBar
from vtop.app.screens.request import RequestScreen
from vtop.app.terminal.stray import StrayOutput
from vtop.engine import commands as cmd
from vtop.engine.request import SamplingParams
from vtop_support.app_driver import running_app, screen_text, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine

KEYS = {
    "palette": ("ctrl+p",),
    "help": ("question_mark",),
    "question": ("q",),
    "form": ("i",),
    "wide form": ("o",),
    "list of loads": ("I",),
    "scenario": ("I", "end", "enter"),
    "request": ("down", "enter"),
    "why": ("down", "w"),
}


def busy_feed() -> FakeFeed:
    feed = FakeFeed(StubEngine(64))
    for number in range(1, 6):
        feed.engine.add_request(f"r{number}", "word " * (5 + 7 * number), SamplingParams(max_tokens=30))
    feed.run(8)
    return feed


def broken(*_: object, **__: object) -> None:
    raise IndexError("out of [b]range")


def in_a_callback(app: App[None], widget: Widget) -> None:
    widget.call_later(broken)


def in_a_callback_of_the_screen(app: App[None], widget: Widget) -> None:
    widget.screen.call_later(broken)


def next_to_a_message(app: App[None], widget: Widget) -> None:
    widget.call_next(broken)


def in_a_timer(app: App[None], widget: Widget) -> None:
    widget.set_timer(0.01, broken)


def in_a_worker(app: App[None], widget: Widget) -> None:
    async def work() -> None:
        broken()

    widget.call_later(lambda: widget.run_worker(work()) and None)


def drawing(app: App[None], widget: Widget) -> None:
    widget.render_line = broken  # type: ignore[method-assign,assignment]
    widget.render_lines = broken  # type: ignore[method-assign,assignment]
    widget.refresh()


def acting(app: App[None], widget: Widget) -> None:
    widget.action_break = broken  # type: ignore[attr-defined]
    app.call_later(app.run_action, "break", widget)


WAYS = [in_a_callback, in_a_callback_of_the_screen, next_to_a_message, in_a_timer, in_a_worker, drawing, acting]


async def goes_on(app: VtopApp, pilot: object, feed: FakeFeed) -> None:
    """The overview is there again, says what happened, and takes keys."""
    for _ in range(500):  # the pilot would wait for the widget that broke
        await asyncio.sleep(0.01)
        if app.screen is app.overview and "IndexError: out of [b]range" in screen_text(app):
            break
    else:
        raise AssertionError(f"it was not told:\n{screen_text(app)}")
    await pilot.press("space")  # type: ignore[attr-defined]
    assert feed.sent in ([cmd.Pause()], [cmd.Resume()])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_widget_of_the_palette_breaks(way: Callable[[App[None], Widget], None]) -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press(*KEYS["palette"])
        assert app.screen is not app.overview
        way(app, app.screen.query("Input").first())
        await goes_on(app, pilot, feed)


@pytest.mark.parametrize("name", KEYS)
async def test_every_screen_may_break(name: str) -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        for way in (in_a_callback_of_the_screen, drawing):
            await pilot.press(*KEYS[name])
            await until(pilot, lambda: app.screen is not app.overview)
            await pilot.pause()
            way(app, [widget for widget in app.screen.query("*") if widget.region][-1])
            await goes_on(app, pilot, feed)
            feed.sent.clear()
            app.clear_notifications()
            await until(pilot, lambda: "IndexError" not in screen_text(app))


async def test_one_that_cannot_even_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from vtop.app.screens.help import HelpScreen

    for name in ("compose", "on_mount"):
        with monkeypatch.context() as patch:
            patch.setattr(HelpScreen, name, broken, raising=False)
            async with running_app(busy_feed()) as (app, pilot, feed):
                await pilot.press("question_mark")
                await goes_on(app, pilot, feed)


async def test_the_one_below_goes_too_when_it_is_what_broke() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press("down", "enter")
        request: Screen[object] = app.screen
        await pilot.press("question_mark")
        assert app.screen is not request
        request.call_later(broken)
        await goes_on(app, pilot, feed)


async def test_it_is_logged(tmp_path: Path) -> None:
    with StrayOutput(tmp_path / "log") as stray:
        stray.catch_streams = lambda: None  # type: ignore[method-assign]
        async with running_app(busy_feed(), stray=stray) as (app, pilot, feed):
            await pilot.press("question_mark")
            app.screen.call_later(broken)
            await goes_on(app, pilot, feed)
            assert any(str(stray.path) in notice.message for notice in app._notifications)
    log = (tmp_path / "log").read_text()
    assert "Traceback" in log and "in broken" in log


async def test_the_overview_is_needed() -> None:
    with pytest.raises(IndexError):
        async with running_app(busy_feed()) as (app, pilot, _):
            app.overview.header.call_later(broken)
            await until(pilot, lambda: app.crash)


async def test_a_screen_that_is_half_closed_is_drawn_without_harm() -> None:
    async with running_app(busy_feed()) as (app, pilot, _):
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, RequestScreen))
        await app.screen.query(KeyBar).remove()  # as while a screen goes: its widgets go first
        app.view.touch()
        app._draw()
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.overview)
