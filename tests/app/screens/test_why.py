"""The answer to *why*, as a screen."""

from __future__ import annotations

from vtop.app.screens.request import WhyScreen
from vtop_support.app_driver import running_app, screen_text, settle
from vtop_support.stub_feed import StubFeed, swapping_feed


def crowded() -> StubFeed:
    feed = StubFeed(10)
    feed.audited.add("short", 8, 3)
    feed.audited.add("long", 12, 30)
    feed.audited.add("big", 24, 4)
    feed.audited.add("behind", 4, 4)
    feed.run()
    return feed


async def test_why_names_the_need_who_is_ahead_and_who_must_end() -> None:
    feed = crowded()
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.select("behind")
        await pilot.press("w")
        await settle(pilot, app)
        assert isinstance(app.screen, WhyScreen)
        text = screen_text(app)
        for part in (
            "behind big: step 1: needs 6 blocks",
            "5 available, 1 short",
            "1: big",
            "for big: 6 blocks needed, 5 available now",
            "short",
            "at most 2 tok more",
            "frees 2 blk → 7 available",
        ):
            assert part in " ".join(text.split()), part
        await pilot.press("w")
        await pilot.pause()
        assert app.screen is app.overview


async def test_why_follows_the_engine_and_stands_still_when_frozen() -> None:
    feed = crowded()
    async with running_app(feed) as (app, pilot, _):
        app.select("big")
        await pilot.press("w")
        await settle(pilot, app)
        assert "5 available" in screen_text(app)
        await pilot.press("z")
        feed.audited.engine.abort_request("long")
        feed.run(2)
        assert "big" in feed.audited.state.running
        await settle(pilot, app)
        assert "must end first" in screen_text(app) and "5 available, 1 short" in screen_text(app)
        await pilot.press("z")
        await settle(pilot, app)
        text = screen_text(app)
        assert "must end first" not in text and "admit" in text


async def test_why_a_swapped_one_is_out() -> None:
    feed = swapping_feed()
    (out,) = feed.audited.state.swapped
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.select(out)
        await pilot.press("w")
        await settle(pilot, app)
        text = screen_text(app)
        assert "blocks on the host" in text and "needs" in text and "nobody" in text
        app.select("third")
        await settle(pilot, app)
        assert f"1: {out}" in screen_text(app) and f"{out} first, swapped out: step " in screen_text(app)


async def test_without_a_selection_it_says_so() -> None:
    async with running_app(crowded()) as (app, pilot, _):
        await pilot.press("w")
        await settle(pilot, app)
        assert "select a request first" in screen_text(app)
