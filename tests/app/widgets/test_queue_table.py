"""Queue tables: exact rows, columns by width, reasons, and a selection that stays where it is."""

from __future__ import annotations

import time

import pytest

from vtop.app.live.view import View
from vtop.app.widgets.queue_columns import GAP, layout
from vtop.app.widgets.queue_order import QueueKind, QueueOrder
from vtop.app.widgets.queue_table import QueueTable
from vtop.app.widgets.request_detail import RequestDetail
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import OneWidget, assert_exact, lines_of, mounted

IDS = ["请求-1", "e\u0301", "👩‍👩‍👧", "🇩🇪", "tab\there", "[/]", "<s>[INST]", "\x1b[31mred", "x" * 300, "\u202eabc"]
KINDS: tuple[QueueKind, ...] = ("waiting", "running", "finished")


def busy() -> Frames:
    frames = Frames(256)
    for name in IDS:
        frames.run(name, group="[/]\x1b", priority=-7)
        frames.decode(name)
    frames.preempt(IDS[0], IDS[1])
    frames.finish(IDS[2])
    frames.finish(IDS[3], "failed")
    for name in IDS:
        frames.frame(frames.arrived("w" + name), ran=False)
    frames.wait(IDS[0], ev.NeedsBlocks(need=12, free=5, watermark=2))
    return frames


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [30, 80, 120, 200])
@pytest.mark.parametrize("ascii", [False, True])
async def test_rows_are_exact(kind: QueueKind, width: int, ascii: bool) -> None:
    view = View(state=busy().state, ascii=ascii, selected=IDS[4], now=3.0)
    for height in (24, 6, 3, 1):
        async with mounted(QueueTable(kind), view, width, height) as pilot:
            app = pilot.app
            assert isinstance(app, OneWidget)
            lines = assert_exact(app.widget)
            assert not ascii or all(line.isascii() for line in lines)


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark"])
async def test_other_themes(theme: str) -> None:
    async with mounted(QueueTable("running"), View(state=busy().state), theme=theme) as pilot:
        assert_exact(pilot.app.widget)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_fit_and_the_id_stays(kind: QueueKind) -> None:
    for width in range(10, 240):
        columns = layout(kind, width)
        titles = [column.title for column, _ in columns]
        assert "id" in titles
        if len(columns) > 1:
            assert sum(size for _, size in columns) + GAP * (len(columns) - 1) <= width
    assert "why waiting" in [column.title for column, _ in layout("waiting", 50)]
    assert len(layout(kind, 240)) >= 9


async def test_reasons_and_preempted_ones() -> None:
    async with mounted(QueueTable("waiting"), View(state=busy().state), 120) as pilot:
        lines = lines_of(pilot.app.widget)  # type: ignore[attr-defined]
        assert "WAITING  11" in lines[0]
        assert "fits, next step" in lines[2] and "▼1" in lines[2]  # 5 were available when it was told, 242 are now
        assert "behind 请求-1" in lines[3]


async def test_numbers_of_a_reason_are_those_of_its_step_until_it_is_none() -> None:
    frames = Frames(24)
    frames.run("A", blocks=12)
    frames.run("B", blocks=6)
    frames.frame(frames.arrived("C"), ran=False)
    frames.wait("C", ev.NeedsBlocks(need=12, free=4, watermark=2, growth=1, cached=2))
    frames.decode("A")
    view = View(state=frames.state, selected="C")
    async with mounted(QueueTable("waiting"), view, 120) as pilot:
        table = pilot.app.widget  # type: ignore[attr-defined]
        assert "needs 15 blk, 6 available · step 3" in lines_of(table)[2]
        frames.cache("B", 5)
        frames.finish("B")  # 12 are available now, 15 are needed: it still holds, and is told as it was
        view.touch()
        table.show(view)
        assert "6 available · step 3" in lines_of(table)[2]
        frames.frame(ev.PoolResized(24, 27), ran=False)
        view.touch()
        table.show(view)
        assert "fits, next step" in lines_of(table)[2]
    async with mounted(RequestDetail(), view, 120) as pilot:
        assert "fits, next step" in lines_of(pilot.app.widget)[1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
async def test_the_step_of_a_reason_is_never_cut_off(width: int) -> None:
    frames = Frames(24)
    frames.run("A", blocks=12)
    frames.frame(frames.arrived("C"), ran=False)
    frames.wait("C", ev.NeedsBlocks(need=12, free=6, watermark=2, growth=11))
    async with mounted(QueueTable("waiting"), View(state=frames.state), width) as pilot:
        row = lines_of(pilot.app.widget)[2]  # type: ignore[attr-defined]
        assert "6 available · " in row and row.rstrip().endswith(" 2")


def many(number: int) -> Frames:
    frames = Frames()
    frames.frame(*[frames.arrived(f"r{n}") for n in range(number)], ran=False)
    return frames


def test_window_is_the_sorted_queue() -> None:
    state = many(1000).state
    for n, request in enumerate(state.waiting.values()):
        request.key = (float(n * 7919 % 1000), 0.0)
    expected = state.waiting_order()
    assert list(QueueOrder(state, "waiting").window(3, 30)) == expected[3:33]
    order = QueueOrder(state, "waiting")
    assert list(order.window(900, 30)) == expected[900:930]
    assert order.index(expected[517].id) == 517
    assert order.index("nobody") is None


async def test_ten_thousand_waiting() -> None:
    frames = many(10_000)
    view = View(state=frames.state)
    async with mounted(QueueTable("waiting"), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        lines = assert_exact(widget)
        assert "10 000" in lines[0] and "1–22" in lines[0]
        await pilot.press("end")
        assert "9 979–10 000" in assert_exact(widget)[0]
        start = time.thread_time()
        for _ in range(5):
            view.touch()
            widget.show(view)
        assert (time.thread_time() - start) / 5 < 0.25  # milliseconds; a table of all rows takes seconds


async def test_selection_stays_on_its_request_and_on_its_line() -> None:
    frames = many(100)
    view = View(state=frames.state)
    async with mounted(QueueTable("waiting"), view, 80, 12) as pilot:
        app = pilot.app
        assert isinstance(app, OneWidget) and isinstance(app.widget, QueueTable)
        widget = app.widget
        widget.focus()
        await pilot.press("down", *["j"] * 20)
        chosen = [m.request_id for m in app.seen if isinstance(m, QueueTable.Selected)]
        assert chosen[-1] == "r20"
        view.selected = "r20"
        view.touch()
        widget.show(view)
        before = next(y for y, line in enumerate(lines_of(widget)) if " r20 " in line)
        for name in ("r0", "r1", "r2"):
            frames.finish(name, "abort")
        view.touch()
        widget.show(view)
        assert " r20 " in lines_of(widget)[before]
        await pilot.press("k", "enter")
        assert [m.request_id for m in app.seen if isinstance(m, QueueTable.Selected)][-1] == "r19"
        assert [m.request_id for m in app.seen if isinstance(m, QueueTable.Opened)] == ["r19"]


async def test_scrolled_list_holds_still_without_a_selection() -> None:
    frames = many(100)
    view = View(state=frames.state)
    async with mounted(QueueTable("waiting"), view, 80, 12) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        widget.scroll_lines(30)
        first = lines_of(widget)[2].split()[2]
        frames.finish("r0", "abort")
        view.touch()
        widget.show(view)
        assert lines_of(widget)[2].split()[2] == first == "r30"


async def test_click_selects_and_double_click_opens() -> None:
    view = View(state=many(5).state)
    async with mounted(QueueTable("waiting"), view) as pilot:
        app = pilot.app
        assert isinstance(app, OneWidget)
        await pilot.click(app.widget, offset=(10, 4))
        await pilot.double_click(app.widget, offset=(10, 4))
        assert {m.request_id for m in app.seen if isinstance(m, QueueTable.Selected)} == {"r2"}
        assert [m.request_id for m in app.seen if isinstance(m, QueueTable.Opened)] == ["r2"]


async def test_only_changed_rows_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = busy()
    view = View(state=frames.state)
    async with mounted(QueueTable("running"), view, 120) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        asked: list[object] = []
        monkeypatch.setattr(widget, "refresh", lambda *regions, **_: asked.extend(regions or ["all"]))
        widget.show(view)
        view.touch()
        widget.show(view)
        assert asked == []
        frames.decode(IDS[5])
        view.touch()
        widget.show(view)
        assert sum(region.height for region in asked) == 1  # type: ignore[attr-defined]
