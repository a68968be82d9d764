"""The why panel and the bars of groups at any width, with text that nobody should trust."""

from __future__ import annotations

import pytest

from vtop.app.live.view import View
from vtop.app.widgets.header_bar import HeaderBar
from vtop.app.widgets.service_bars import MOST_ROWS, ServiceBars
from vtop.app.widgets.why_panel import WhyPanel
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import assert_exact, mounted

NASTY = "[/]\x1b[31m请\u202e"


def story() -> Frames:
    """One runs, one is swapped out, two wait."""
    frames = Frames(24, num_host_blocks=32)
    frames.run("A", blocks=12, group=NASTY)
    frames.run(NASTY, blocks=12, group="b" * 64)
    frames.decode("A", NASTY)
    view = frames.state.requests[NASTY]
    frames.frame(
        ev.SwappedOut(
            id=NASTY,
            for_id="A",
            cause=ev.PreemptCause.NO_FREE_BLOCK,
            rule="latest",
            key=view.key,
            for_key=(0.0,),
            tables=[list(range(12))],
            pairs=[(block, index) for index, block in enumerate(view.sequences[0].blocks)],
            used_before=24,
            used_after=12,
            pool=24,
            count=1,
        )
    )
    for name in ("w1", "w2"):
        frames.frame(frames.arrived(name, group="c"), ran=False)
    frames.frame(ev.Waits(NASTY, ev.NeedsBlocks(13, 12, 1, 2)), ev.Waits("w1", ev.SwappedFirst(NASTY)))
    return frames


@pytest.mark.parametrize("selected", ["A", NASTY, "w1", "w2", "nobody", None])
@pytest.mark.parametrize("width", [20, 60, 120, 200])
@pytest.mark.parametrize("ascii", [False, True])
async def test_why_rows_are_exact(selected: str | None, width: int, ascii: bool) -> None:
    view = View(state=story().state, ascii=ascii, selected=selected, now=3.0)
    async with mounted(WhyPanel(), view, width, 20) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert not ascii or all(line.isascii() for line in lines)


async def test_why_says_what_must_be_free_for_a_swapped_one() -> None:
    view = View(state=story().state, selected=NASTY, now=3.0)
    async with mounted(WhyPanel(), view, 160, 20) as pilot:
        text = "\n".join(assert_exact(pilot.app.widget))  # type: ignore[attr-defined]
        whole = (
            "step 5: needs 13 blocks + 2 that running ones grow by + 1 left as watermark = 16; 12 available, 4 short"
        )
        assert f"12 blocks on the host; {whole}" in text and "nobody" in text


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [1, 2, 3, MOST_ROWS])
@pytest.mark.parametrize("ascii", [False, True])
async def test_bars_are_exact(width: int, height: int, ascii: bool) -> None:
    frames = story()
    for number in range(4):
        frames.state.totals.group_tokens[f"more{number}"] = number * 10**number
    view = View(state=frames.state, ascii=ascii)
    async with mounted(ServiceBars(), view, width, rows=height) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert len(lines) == height and (not ascii or all(line.isascii() for line in lines))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_the_header_never_hides_swapped_ones(width: int) -> None:
    async with mounted(HeaderBar(), View(state=story().state), width) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert "swapped 1" in lines[1]
