"""The screen as it was approved. `pytest tests/app/test_snapshots.py --snapshot-update` approves a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from vtop.app.main import VtopApp
from vtop.app.options import AppConfig
from vtop.engine.request import SamplingParams
from vtop_support.app_driver import settle, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine

Compare = Callable[..., bool]


def app_of(theme: str = "vtop-dark", ascii: bool = False) -> VtopApp:
    """The same requests at the same step in every run: the engine's clock is made of steps."""
    feed = FakeFeed(StubEngine(60))
    for number in range(1, 25):
        prompt = " ".join(["tell", "me", "a", "story"] * (3 + number % 7))
        feed.engine.add_request(f"r{number}", prompt, SamplingParams(max_tokens=12 + number % 9))
    feed.run(34)
    return VtopApp(feed, AppConfig(theme=theme, ascii=ascii), model="stub")


def shown(*keys: str) -> Callable[[Pilot[None]], Any]:
    async def ready(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, VtopApp)
        await until(pilot, lambda: app.pump.live is not None and not app.feed.pending)
        await pilot.press(*keys)
        await settle(pilot, app)
        await pilot.pause(0.2)

    return ready


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_overview(size: tuple[int, int], snap_compare: Compare) -> None:
    assert snap_compare(app_of(), terminal_size=size, run_before=shown("down"))


@pytest.mark.parametrize("theme", ["vtop-light", "vtop-contrast", "vtop-colourblind", "terminal"])
def test_themes(theme: str, snap_compare: Compare) -> None:
    assert snap_compare(app_of(theme), terminal_size=(100, 30), run_before=shown())


def test_ascii(snap_compare: Compare) -> None:
    assert snap_compare(app_of(ascii=True), terminal_size=(100, 30), run_before=shown("down"))


@pytest.mark.parametrize("key", ["i", "I", "r", "question_mark", "q"])
def test_dialogs(key: str, snap_compare: Compare) -> None:
    assert snap_compare(app_of(), terminal_size=(100, 30), run_before=shown(key))


def test_request(snap_compare: Compare) -> None:
    assert snap_compare(app_of(), terminal_size=(100, 30), run_before=shown("down", "down", "enter"))


def test_too_small(snap_compare: Compare) -> None:
    assert snap_compare(app_of(), terminal_size=(50, 12), run_before=shown())
