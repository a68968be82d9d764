"""Prompts, ids and outputs from anywhere are shown letter by letter, and every row keeps its width (T013, T014)."""

from __future__ import annotations

import msgspec
import pytest
from rich.cells import cell_len

from vtop.app.terminal.safe_text import clean
from vtop.engine.request import SamplingParams
from vtop_support.app_driver import running_app, screen_lines, screen_text, settle, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine

MARKUP = ["[/]", "[/", "x[/red] y", "<s>[INST] hi [/INST]", "[sys:A=B…]", "[@click=app.exit]x[/]", "\x1b[31mred\x1b[0m"]
WIDE = ["请求-1", "e\u0301te\u0301", "👩\u200d👩\u200d👧", "🇩🇪", "a\tb", "\u202eabc", "مرحبا", "\x9b31m"]


def feed_with(ids: list[str]) -> FakeFeed:
    feed = FakeFeed(StubEngine(64))
    for request_id in ids:
        feed.engine.add_request(request_id, f"{request_id} asks {request_id}", SamplingParams(max_tokens=20))
    feed.run(3)
    return feed


@pytest.mark.parametrize("text", MARKUP)
async def test_markup_is_only_text_everywhere(text: str) -> None:
    shown = clean(text)
    async with running_app(feed_with([text])) as (app, pilot, _):
        await settle(pilot, app)
        assert shown in screen_text(app)
        app.select(text)
        app.open_request()
        await pilot.pause()
        await settle(pilot, app)
        assert shown in screen_text(app)
        await pilot.press("escape", "x")
        await pilot.pause()
        assert shown in screen_text(app)  # in the question
        await pilot.press("n")
        app.say(text)
        await pilot.pause(0.1)
        assert shown in screen_text(app)
        await pilot.press("p")
        app.overview.prompt.input.value = text
        await pilot.press("enter")
        await settle(pilot, app)


@pytest.mark.parametrize("text", MARKUP)
async def test_why_attention_is_slow_is_told_once_and_is_only_text(text: str) -> None:
    feed = feed_with(["a"])
    feed.meta = msgspec.structs.replace(feed.engine.meta, backend_note=f"numba: {text}")
    said = clean(f"attention by torch: numba: {text}")
    async with running_app(feed, size=(320, 50)) as (app, pilot, _):
        await until(pilot, lambda: screen_text(app).count(said) == 2)  # in the event log, and as a notice
        app.clear_notifications()
        feed.run(2)
        await settle(pilot, app)
        await until(pilot, lambda: screen_text(app).count(said) == 1)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_wide_characters_keep_every_row_as_wide_as_the_screen(size: tuple[int, int]) -> None:
    async with running_app(feed_with([*WIDE, *MARKUP]), size=size) as (app, pilot, _):
        await settle(pilot, app)
        assert {cell_len(line) for line in screen_lines(app)} == {size[0]}
        for text in WIDE:
            app.select(text)
            app.open_request()
            await pilot.pause()
            await settle(pilot, app)
            assert {cell_len(line) for line in screen_lines(app)} == {size[0]}
            assert not any(c < " " or "\x7f" <= c < "\xa0" for line in screen_lines(app) for c in line)
            await pilot.press("escape")
