"""Nothing alive is invisible: swapped requests on the screen, and what the log says about them."""

from __future__ import annotations

import pytest

from vtop.app.live.view import View
from vtop.app.widgets.map.map import HostMap
from vtop.app.widgets.queue_order import QueueOrder
from vtop.engine.audit import AuditError
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
        assert f"WAITING  1 {mark} 1 swapped " in text
        row = next(line for line in screen_lines(app) if f"{mark} needs" in line)
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


async def test_the_host_map_comes_with_the_first_swap_and_a_key_hides_it() -> None:
    feed = StubFeed(8, preemption_mode="swap", num_host_blocks_override=16)
    feed.audited.add("first", 12, 40)
    feed.audited.add("second", 12, 40)
    feed.run(3)
    async with running_app(feed, size=(120, 40)) as (app, pilot, _):
        await settle(pilot, app)
        assert "HOST POOL" not in screen_text(app)
        await pilot.press("7")
        await settle(pilot, app)
        assert "HOST POOL" not in screen_text(app) and "nothing was swapped out to it yet" in screen_text(app)
        while not feed.audited.state.swapped:
            feed.run()
        await settle(pilot, app)
        text = screen_text(app)
        assert f"HOST POOL  {feed.audited.state.host_used}/16" in text and text.count("↓ swapped out") == 2
        await pilot.press("7")
        await settle(pilot, app)
        assert "HOST POOL" not in screen_text(app)
        await pilot.press("7")
        feed.audited.engine.abort_request("first")
        feed.run()
        await settle(pilot, app)
        text = screen_text(app)
        assert "HOST POOL  0/16" in text and text.count("↑ swapped in") == 2


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_a_request_is_selected_by_its_host_block(size: tuple[int, int]) -> None:
    feed = swapping_feed()
    (out,) = feed.audited.state.swapped
    block = feed.audited.state.swapped[out].sequences[0].host_blocks[0]
    async with running_app(feed, size=size) as (app, pilot, _):
        await settle(pilot, app)
        widget = app.overview.panels["host"]
        assert isinstance(widget, HostMap) and widget.display
        grid = widget.grid
        where = (grid.gutter + block % grid.columns * grid.cell_width, 1 + grid.row_of(block))
        await pilot.click(widget, offset=where)
        await settle(pilot, app)
        assert app.view.selected == out and app.view.selected_block is None
        assert f"host block {block} ■ used" in screen_text(app)


async def test_a_resize_while_the_app_closes_is_no_error() -> None:
    async with running_app(swapping_feed()) as (app, pilot, _):
        await app.overview.query("#too-small").remove()
        await pilot.resize_terminal(90, 30)
        await pilot.pause()
        assert app.overview.size == (90, 30) and app.is_running


@pytest.mark.parametrize("array", ["host_owner", "host_ref_count"])
def test_the_audit_compares_the_host_pool(array: str) -> None:
    feed = swapping_feed()
    feed.audited.engine.audit(feed.audited.state)
    getattr(feed.audited.state, array)[-1] += 1
    with pytest.raises(AuditError, match="host"):
        feed.audited.engine.audit(feed.audited.state)
