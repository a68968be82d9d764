"""An app on a FakeFeed, and what its screen says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from vtop.app.main import VtopApp
from vtop.app.options import AppConfig
from vtop_support.fake_feed import FakeFeed


def screen_lines(app: VtopApp) -> list[str]:
    """The screen as text, one string per row."""
    height = app.size.height
    lines = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in lines][:height]


def screen_text(app: VtopApp) -> str:
    return "\n".join(screen_lines(app))


@asynccontextmanager
async def running_app(
    feed: FakeFeed | None = None,
    *,
    size: tuple[int, int] = (120, 40),
    config: AppConfig | None = None,
    **options: Any,
) -> AsyncIterator[tuple[VtopApp, Pilot[None], FakeFeed]]:
    """The app, painted and started."""
    feed = feed or FakeFeed()
    app = VtopApp(feed, config, model="stub", **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: feed.started)
        yield app, pilot, feed


async def until(pilot: Pilot[None], what: Any, seconds: float = 30.0) -> None:
    """Wait until `what()` is true. `seconds` are until a test gives up, not how long it may take."""
    for _ in range(int(seconds / 0.02)):
        await pilot.pause(0.02)
        if what():
            return
    raise AssertionError(f"{what} did not come true in {seconds} s:\n{screen_text(pilot.app)}")  # type: ignore[arg-type]


async def settle(pilot: Pilot[None], app: VtopApp) -> None:
    """Fold what the feed has, and draw."""
    app.pump.pull()
    app._draw()
    await pilot.pause()
