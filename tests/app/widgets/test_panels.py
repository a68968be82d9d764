"""Header, step strip, charts and detail: exact rows at every width, and what they say."""

from __future__ import annotations

import math
import time

import pytest

from vtop.app.live.view import History, View, latest
from vtop.app.widgets.charts import Charts, area, largest, round_top
from vtop.app.widgets.header_bar import HeaderBar
from vtop.app.widgets.panel import Panel
from vtop.app.widgets.request_detail import RequestDetail
from vtop.app.widgets.step_strip import StepStrip
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import assert_exact, lines_of, mounted

NASTY = "[/]\x1b[31m请求\u202e👩‍👩‍👧\t🇩🇪"


def busy() -> Frames:
    frames = Frames(64, model=NASTY)
    frames.run(NASTY, prompt=NASTY * 40 + "\nnext line", group=NASTY)
    for _ in range(5):
        frames.decode(NASTY, text=f" {NASTY}\n")
    frames.run("B", blocks=30)
    frames.decode(NASTY, "B")
    frames.preempt("B", NASTY)
    return frames


def view_of(frames: Frames, ascii: bool = False) -> View:
    history = History(
        kv_used=[0.1, math.nan, 0.9, 1.0], running=[1.0, 2.0], waiting=[], tokens_per_second=[0.0, math.inf, 1234.5]
    )
    return View(state=frames.state, selected=NASTY, now=2.0, ascii=ascii, history=history)


@pytest.mark.parametrize("make", [HeaderBar, StepStrip, Charts, RequestDetail])
@pytest.mark.parametrize("width", [20, 80, 120, 200])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 9])
async def test_rows_are_exact(make: type[Panel], width: int, ascii: bool, rows: int) -> None:
    async with mounted(make(), view_of(busy(), ascii), width, 24, rows=rows) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert len(lines) == rows
        assert not ascii or all(line.isascii() for line in lines)


@pytest.mark.parametrize("make", [HeaderBar, StepStrip, Charts, RequestDetail])
@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark"])
async def test_without_state_and_in_other_themes(make: type[Panel], theme: str) -> None:
    async with mounted(make(), View(), theme=theme) as pilot:
        assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        pilot.app.widget.show(view_of(busy()))  # type: ignore[attr-defined]
        assert_exact(pilot.app.widget)  # type: ignore[attr-defined]


async def test_header_says_what_runs() -> None:
    frames = Frames(24)
    frames.run("A", blocks=12)
    view = View(state=frames.state, history=History(tokens_per_second=[33.6]))
    header = HeaderBar()
    async with mounted(header, view, 160) as pilot:
        header.show(view, "PAUSED (preempted)")
        await pilot.pause()
        first, second = lines_of(header)
        for part in ("‖ PAUSED (preempted)", "tiny", "cpu", "float32", "fcfs", "chunked", "latest/recompute"):
            assert part in first
        for part in ("step 1", "no cap", "KV 12/24", "50%", "running 1", "waiting 0", "34 tok/s", "limit: none"):
            assert part in second
        view.frozen = True
        view.touch()
        header.show(view, "RUNNING")
        assert "VIEW FROZEN" in lines_of(header)[0] and "▶ RUNNING" in lines_of(header)[0]


@pytest.mark.parametrize("width", [240, 120])
async def test_header_says_the_prefix_hit_rate_where_there_is_room(width: int) -> None:
    frames = Frames(24)
    frames.run("A", blocks=12)
    view = View(state=frames.state)
    async with mounted(HeaderBar(), view, width) as pilot:
        header = pilot.app.widget  # type: ignore[attr-defined]
        assert "prefix" not in lines_of(header)[1]  # nothing was looked up
        frames.cache("A", 1)
        frames.share("B", "A", 1, prompt_tokens=40)
        frames.frame(ev.PrefixLookup(id="B", tokens=40, hit=32, blocks=2, resumed=True))
        view.touch()
        header.show(view)
        assert "prefix 40%" in lines_of(header)[1]
        state = frames.state
        state.meta.config["enable_prefix_caching"] = False
        view.touch()
        header.show(view)
        assert "prefix" not in lines_of(header)[1]
    async with mounted(HeaderBar(), view, 70) as pilot:
        state.meta.config["enable_prefix_caching"] = True
        assert "prefix" not in assert_exact(pilot.app.widget)[1]  # type: ignore[attr-defined]


async def test_detail_says_how_much_of_the_table_is_shared() -> None:
    frames = Frames()
    frames.run("A", blocks=5)
    view = View(state=frames.state, selected="A")
    async with mounted(RequestDetail(), view, 100, 40) as pilot:
        detail = pilot.app.widget  # type: ignore[attr-defined]
        assert "can be hit" not in "".join(lines_of(detail))
        frames.cache("A", 4)
        frames.share("B", "A", 2)
        view.touch()
        detail.show(view)
        said = "2 shared with others, 4 can be hit; sharing works in whole blocks of 16 tokens"
        assert said in "".join(assert_exact(detail))


async def test_charts_say_what_is_now() -> None:
    frames = Frames(24)
    frames.run("A", blocks=24)
    view = View(state=frames.state, history=History(kv_used=[0.5, 0.96], running=[3.0], waiting=[2.0]))
    async with mounted(Charts(), view, 160, 8) as pilot:
        first = assert_exact(pilot.app.widget)[0]  # type: ignore[attr-defined]
        for part in ("KV used  100%", "max 100%", "running  1", "max 3", "waiting  0", "max 2"):
            assert part in first


async def test_header_keeps_what_matters_when_narrow() -> None:
    frames = Frames(24)
    frames.run("A", blocks=12)
    header = HeaderBar()
    view = View(state=frames.state)
    async with mounted(header, view, 60, rows=1) as pilot:
        header.show(view, "STALLED")
        await pilot.pause()
        (line,) = lines_of(header)
        for part in ("▲ STALLED", "step 1", "12/24", "running 1", "waiting 0"):
            assert part in line


async def test_step_strip() -> None:
    frames = Frames()
    frames.run("A")
    frames.decode("A")
    strip = StepStrip()
    async with mounted(strip, View(state=frames.state), 120):
        text = "\n".join(lines_of(strip))
        for part in (
            "LAST STEP  2",
            "1/512 tok",
            "prefill 0",
            "decode 1",
            "limit: none",
            "14ms total",
            "model 12ms",
        ):
            assert part in text


async def test_detail_shows_the_request() -> None:
    detail = RequestDetail()
    async with mounted(detail, view_of(busy()), 100, 40):
        text = "\n".join(lines_of(detail))
        for part in ("[/]␛[31m请求⟨RLO⟩", "block table", "prompt", "32 tok", "output", "6/64", "decode"):
            assert part in text
        view = view_of(busy())
        view.selected = "B"
        detail.show(view)
        text = "\n".join(lines_of(detail))
        assert "▼ 1" in text and "22 tok" in text and "none: it holds no KV" in text


async def test_thirty_thousand_tokens_stay_quick() -> None:
    frames = Frames(2000)
    frames.run("A", limit=40_000)
    frames.state.hashed[:] = True
    seq = frames.state.requests["A"].sequences[0]
    seq.text_parts.extend(["请求 word "] * 30_000)
    seq.output_tokens.extend([7] * 30_000)
    seq.blocks = list(range(2000))
    view = View(state=frames.state, selected="A")
    detail = RequestDetail()
    async with mounted(detail, view, 120, 40):
        start = time.thread_time()
        for _ in range(5):
            seq.text_parts.append(" more")
            view.touch()
            detail.show(view)
        assert (time.thread_time() - start) / 5 < 0.2  # a few milliseconds; all of the text takes seconds
        assert " more" in lines_of(detail)[-1]


def test_area_of_braille() -> None:
    assert area([1.0, 1.0], 1, 1, 1.0) == ["⣿"]
    assert area([0.5, 1.0], 1, 2, 1.0) == ["⢸", "⣿"]
    assert area([0.01], 2, 1, 1.0) == [" ⢀"]
    assert area([], 3, 2, 1.0) == ["   ", "   "] == area([0.0] * 9, 3, 2, 1.0)
    assert area([math.nan, math.inf, -1.0, 5.0], 2, 1, 1.0)[0][1] == "⢸"
    assert area([1.0], 2, 2, 0.0) == ["  ", "  "]
    assert area([1.0], 0, 3, 1.0) == [] == area([1.0], 3, 0, 1.0)


def test_area_of_ascii() -> None:
    assert area([0.2, 0.5, 1.0], 3, 1, 1.0, ascii=True) == [".:|"]
    assert all(row.isascii() for row in area([0.1, 0.7, 2.0], 5, 3, 1.0, ascii=True))


def test_scales() -> None:
    assert [round_top(v) for v in (0.0, math.nan, 1.0, 119.0, 201.0, 0.03)] == [1.0, 1.0, 1.0, 120.0, 250.0, 0.03]
    assert latest([]) == latest([math.nan]) == largest([]) == largest([math.inf]) == 0.0


async def test_steps_without_work_do_not_divide_by_zero() -> None:
    frames = Frames(1, config={})
    frames.frame()
    frames.frame(ev.StepTimes(schedule=0.0, prepare=0.0, model=0.0, sample=0.0, commit=0.0))
    for make in (HeaderBar, StepStrip, Charts, RequestDetail):
        async with mounted(make(), View(state=frames.state)) as pilot:
            assert_exact(pilot.app.widget)  # type: ignore[attr-defined]


@pytest.mark.parametrize("steps", [1, 123_456, 1_234_567])
@pytest.mark.parametrize("swapped", [0, 12])
async def test_preemptions_never_drop_off_the_header(steps: int, swapped: int) -> None:
    frames = Frames(65_536)
    frames.run("A", blocks=12)
    state = frames.state
    state.step, state.totals.preemptions = steps, 12_345
    view = View(state=state, frozen=True)
    request = state.running["A"]
    state.running.update({f"r{n}": request for n in range(255)})
    state.waiting.update({f"w{n}": request for n in range(10_000)})
    state.swapped.update({f"s{n}": request for n in range(swapped)})
    for width in range(60, 200, 7):
        header = HeaderBar()
        async with mounted(header, view, width, rows=2):
            header.show(view, "PAUSED")
            first, second = assert_exact(header)
            assert "PAUSED" in first and "FROZEN" in first
            for part in ("▼ 12 345", "256", "10 000", "⇄" if swapped else "▼"):
                assert part in second, (width, second)
            assert width < 100 or "12 345 preempted" in second
