"""Priority under aging and slack before a deadline: in the tables, in the details, and gone when nobody has them."""

from __future__ import annotations

import pytest

from vtop.app.live.view import View
from vtop.app.widgets.charts import Charts
from vtop.app.widgets.queue_order import QueueKind
from vtop.app.widgets.queue_table import QueueTable
from vtop.app.widgets.request_detail import RequestDetail
from vtop.app.widgets.urgency import Slack, aging_of, slack_of, slack_text
from vtop.engine import events as ev
from vtop_support.stub_feed import StubFeed, swapping_feed
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import assert_exact, lines_of, mounted, strips_of

AGING = {"scheduling_policy": "priority", "priority_order": "high-first", "aging_rate": 0.5}


def waiting(**config: object) -> Frames:
    """`w` waits from the start on, with priority 5."""
    frames = Frames(64, config={**AGING, **config})
    frames.frame(frames.arrived("w", priority=5, group="[/]"), ran=False)
    frames.wait("w", ev.NeedsSeat(limit=1))
    return frames


def view_at(frames: Frames, now: float, ascii: bool = False) -> View:
    return View(state=frames.state, now=now, selected="w", ascii=ascii)


async def test_the_priority_that_counts_grows_while_time_passes() -> None:
    frames = waiting()
    view = view_at(frames, 4.41)
    async with mounted(QueueTable("waiting"), view, 120) as pilot:
        table = pilot.app.widget  # type: ignore[attr-defined]
        lines = assert_exact(table)
        assert "prio now" in lines[1] and "5→7.2" in lines[2]
        view.now = 6.01
        view.touch()
        table.show(view)
        assert "5→8.0" in lines_of(table)[2]
        frames.frame(ev.Switched("aging_rate", 0.5, 0.0), ran=False)  # switched off while it runs
        view.touch()
        table.show(view)
        lines = assert_exact(table)
        assert "prio now" not in lines[1] and "prio" in lines[1] and "→" not in lines[2]


async def test_low_numbers_first_and_ascii() -> None:
    view = view_at(waiting(priority_order="low-first"), 4.41, ascii=True)
    async with mounted(QueueTable("waiting"), view, 120) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert "5->2.8" in lines[2] and all(line.isascii() for line in lines)
    async with mounted(RequestDetail(), view, 120) as pilot:
        text = "\n".join(assert_exact(pilot.app.widget))  # type: ignore[attr-defined]
        assert "5 - 0.5 a second x 4.41s since it was queued = 2.8; low numbers go first" in text and text.isascii()


async def test_the_details_say_how_it_comes_about() -> None:
    view = view_at(waiting(), 4.41)
    async with mounted(RequestDetail(), view, 120) as pilot:
        text = "\n".join(assert_exact(pilot.app.widget))  # type: ignore[attr-defined]
        assert "priority    5→7.2" in text
        assert "counts as   5 + 0.5 a second × 4.41s since it was queued = 7.2; high numbers go first" in text
    async with mounted(RequestDetail(), view, 50) as pilot:
        text = "".join(line.strip() for line in assert_exact(pilot.app.widget))  # type: ignore[attr-defined]
        assert text.count("counts as") == 1 and "high numbers" in text, "wrapped, not cut"


@pytest.mark.parametrize(
    "config",
    [
        {"aging_rate": 0.0},
        {"scheduling_policy": "fcfs"},
        {"scheduling_policy": "./priority.py:Mine"},
        {"scheduling_policy": "of another version"},
        {"preset": "vllm-v1", "priority_order": "low-first"},
    ],
)
async def test_no_aging(config: dict[str, object]) -> None:
    frames = waiting(**config)
    assert aging_of(frames.state) is None
    async with mounted(QueueTable("waiting"), view_at(frames, 9.0), 120) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert "prio now" not in lines[1] and " 5 " in lines[2]
    async with mounted(RequestDetail(), view_at(frames, 9.0), 120) as pilot:
        assert "counts as" not in "".join(lines_of(pilot.app.widget))  # type: ignore[attr-defined]


def test_aging_in_a_stack_of_policies() -> None:
    assert aging_of(waiting(scheduling_policy="fair+priority").state) is not None


def test_what_counts_is_what_the_engine_orders_by() -> None:
    feed = StubFeed(64, scheduling_policy="priority", aging_rate=50.0, max_num_seqs=1)
    for number, priority in enumerate([3, 0, 1, 2, 0]):
        feed.audited.add(f"r{number}", 8, 30, priority=priority)
        feed.run(3)
    state = feed.audited.state
    aging = aging_of(state)
    assert aging is not None and len(state.waiting) == 4
    counting = [aging.effective(request, state.time) for request in state.waiting_order()]
    assert counting == sorted(counting, reverse=True) and max(counting) > 3


# --- slack --------------------------------------------------------------------------------------------------------


def with_deadlines() -> Frames:
    frames = Frames(64)
    for name, deadline in (("w", 4.0), ("soon", 2.4), ("missed", 1.6), ("free", None)):
        frames.frame(frames.arrived(name, deadline=deadline), ran=False)
    frames.run("r", deadline=2.1)
    return frames


def style_of(table: QueueTable, text: str) -> object:
    return next(s.style for strip in strips_of(table) for s in strip if s.text.strip() == text)


async def test_slack_in_the_tables() -> None:
    view = view_at(with_deadlines(), 2.0)
    async with mounted(QueueTable("waiting"), view, 120) as pilot:
        table = pilot.app.widget  # type: ignore[attr-defined]
        lines = assert_exact(table)
        assert "slack" in lines[1]
        rows = {line[9:19].strip(): line for line in lines[2:6]}
        assert "+2.0s" in rows["w"] and "!+2" not in rows["w"]
        assert "!+0.4s" in rows["soon"] and "-0.4s" in rows["missed"]
        assert "0.4s" not in rows["free"]
        styles = [style_of(table, text) for text in ("+2.0s", "!+0.4s", "-0.4s")]
        assert len({str(style) for style in styles}) == 3
    async with mounted(QueueTable("running"), view, 120) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert "slack" in lines[1] and "!+0.1s" in lines[2]
    async with mounted(QueueTable("finished"), view, 120) as pilot:
        assert "slack" not in lines_of(pilot.app.widget)[1]  # type: ignore[attr-defined]


async def test_without_deadlines_there_is_no_column() -> None:
    frames = waiting()
    async with mounted(QueueTable("waiting"), view_at(frames, 2.0), 160) as pilot:
        table = pilot.app.widget  # type: ignore[attr-defined]
        assert "slack" not in lines_of(table)[1]
        frames.frame(frames.arrived("late", deadline=9.0), ran=False)
        view = view_at(frames, 2.0)
        table.show(view)
        assert "slack" in assert_exact(table)[1]
        frames.finish("late", "timeout")
        view.touch()
        table.show(view)
        assert "slack" not in assert_exact(table)[1]


async def test_the_details_say_deadline_and_slack() -> None:
    frames = Frames(64)
    frames.frame(frames.arrived("w", deadline=1.5, expires=10.0), ran=False)
    async with mounted(RequestDetail(), view_at(frames, 2.0), 120) as pilot:
        text = "\n".join(assert_exact(pilot.app.widget))  # type: ignore[attr-defined]
        for part in ("deadline    after 1.50s", "slack       -0.5s", "timed out   after 10.0s"):
            assert part in text, text


@pytest.mark.parametrize("kind", ["waiting", "running"])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("ascii", [False, True])
async def test_rows_are_exact_with_both(kind: QueueKind, width: int, ascii: bool) -> None:
    frames = waiting()
    frames.frame(frames.arrived("late", priority=-10_000_000, deadline=9.0), ran=False)
    frames.run("r", deadline=1e9)
    async with mounted(QueueTable(kind), view_at(frames, 1e4, ascii), width) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert not ascii or all(line.isascii() for line in lines)
        assert ("slack" in lines[1]) == (width >= 100), "a small screen has no room for it"
        assert ("prio now" in lines[1]) == (width >= 100 and kind == "waiting")


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (0.0, "+0.0s"),
        (99.94, "+99.9s"),
        (99.95, "+1m40s"),
        (599.4, "+9m59s"),
        (599.5, "+10m"),
        (7200.0, "+2h"),
        (1e9, "+11574d"),
    ],
)
def test_slack_is_short(left: float, text: str) -> None:
    assert slack_text(left, Slack.ENOUGH) == text
    assert len(slack_text(left, Slack.SOON)) <= 8
    assert slack_text(-left, Slack.MISSED) == "-" + text[1:]


def test_slack_under_a_fifth_is_soon() -> None:
    frames = Frames(64)
    frames.frame(frames.arrived("w", deadline=10.0), ran=False)
    frames.frame(frames.arrived("never", deadline=float("inf")), ran=False)
    request = frames.state.requests["w"]
    assert [slack_of(request, now)[1] for now in (0.0, 7.9, 8.1, 10.0, 10.1)] == [  # type: ignore[index]
        Slack.ENOUGH,
        Slack.ENOUGH,
        Slack.SOON,
        Slack.SOON,
        Slack.MISSED,
    ]
    assert slack_of(frames.state.requests["never"], 1.0) is None


@pytest.mark.parametrize("ascii", [False, True])
async def test_the_chart_of_waiting_ones_says_how_many_are_swapped_out(ascii: bool) -> None:
    state = swapping_feed().audited.state
    async with mounted(Charts(), View(state=state, ascii=ascii), 160, 8) as pilot:
        first = assert_exact(pilot.app.widget)[0]  # type: ignore[attr-defined]
        assert f"waiting  {len(state.waiting)} {'S' if ascii else '⇄'} 1 swapped" in first
