"""Nothing alive is invisible: swapped requests on the screen, and what the log says about them."""

from __future__ import annotations

import pytest

from vtop.app.view import View
from vtop.app.widgets.queue_order import QueueOrder
from vtop.engine.request import RequestStatus
from vtop_support.app_driver import running_app, screen_lines, screen_text, settle
from vtop_support.stub_feed import StubFeed, swapping_feed


@pytest.mark.parametrize("ascii", [False, True])
async def test_a_swapped_request_is_on_every_screen(ascii: bool) -> None:
    from vtop.app.options import AppConfig

    feed = swapping_feed()
    (out,) = feed.audited.state.swapped
    async with running_app(feed, size=(200, 60), config=AppConfig(ascii=ascii)) as (app, pilot, _):
        await settle(pilot, app)
        mark, used = "S" if ascii else "⇄", feed.audited.state.host_used
        text = screen_text(app)
        assert f"{mark} swapped 1" in screen_lines(app)[1] and f"host {used}/16" in screen_lines(app)[1]
        assert f"{mark} 1 swapped out" in text
        row = next(line for line in screen_lines(app) if f"{mark} swapped out, needs" in line)
        assert out in row
        assert f"{mark} SWAPOUT" in text and f"{used} blk to host" in text
        assert "returns first" in text  # what the waiting one waits for
        app.select(out)
        await pilot.press("enter")
        await settle(pilot, app)
        text = screen_text(app)
        assert f"{mark} swapped" in text and f"{used} on host" in text and f"host, {used} blocks" in text


async def test_coming_back_is_told() -> None:
    feed = swapping_feed()
    (out,) = feed.audited.state.swapped
    feed.audited.engine.abort_request("first")
    feed.run(1)
    assert out in feed.audited.state.running
    async with running_app(feed, size=(200, 60)) as (app, pilot, _):
        await settle(pilot, app)
        assert "⇆ swapin  second  4 blocks back" in screen_text(app)
        assert "swapped 1" not in screen_text(app)
        assert "host 0/16" in screen_text(app)


def test_swapped_ones_come_before_waiting_ones() -> None:
    feed = swapping_feed()
    state = feed.audited.state
    order = QueueOrder(state, "waiting")
    found = order.window(0, 10)
    assert [r.status for r in found] == [RequestStatus.SWAPPED, RequestStatus.WAITING]
    assert len(order) == 2 and [order.index(r.id) for r in found] == [0, 1]


def test_the_order_follows_the_counters_of_groups() -> None:
    feed = StubFeed(64, scheduling_policy="fair", max_num_seqs=1)
    for number in range(6):
        feed.audited.add(f"a{number}", 8, 8, group="a")
    feed.audited.add("b0", 8, 8, group="b")
    feed.run(3)
    state = feed.audited.state
    order = QueueOrder(state, "waiting")
    expected = state.waiting_order()
    assert [r.id for r in order.window(0, 10)] == [r.id for r in expected]
    assert [order.index(r.id) for r in expected] == list(range(len(expected)))
    assert View(state=state).state is state


async def test_the_log_does_not_repeat_two_heads() -> None:
    feed = swapping_feed()
    feed.run(10)
    async with running_app(feed, size=(200, 60)) as (app, pilot, _):
        await settle(pilot, app)
        assert sum("returns first" in line and "wait " in line for line in screen_lines(app)) <= 2


async def test_the_header_shows_options_as_they_are_now() -> None:
    feed = StubFeed(64, scheduling_policy="priority", preset="vllm-v0")
    feed.audited.add("a", 8, 8)
    feed.run()
    async with running_app(feed, size=(200, 60)) as (app, pilot, _):
        await settle(pilot, app)
        first = screen_lines(app)[0]
        assert "preset vllm-v0" in first and "policy priority (low first)" in first and "watermark 1%" in first
        assert "seats 64" in first
        feed.audited.engine.set_option("max_num_seqs", 5)
        feed.audited.engine.set_option("request_timeout", 90.0)
        feed.audited.engine.flush()
        await settle(pilot, app)
        first = screen_lines(app)[0]
        assert "seats 5" in first
        assert "max_num_seqs: 64 → 5" in screen_text(app)
