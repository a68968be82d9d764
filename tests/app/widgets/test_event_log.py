"""The event log: which events are lines, what they say, and that it stays put while it is read."""

from __future__ import annotations

import pytest

from vtop.app.view import View
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.log_lines import Kind
from vtop.engine import events as ev

from .frames import Frames
from .harness import OneWidget, assert_exact, lines_of, mounted

NASTY = "[/]\x1b[31m请\u202e"


def eventful() -> Frames:
    frames = Frames(24)
    frames.run("A", blocks=12)
    frames.run("B", blocks=12)
    frames.decode("A", "B")
    frames.preempt("B", "A")
    frames.frame(ev.Refused(id=NASTY, code=ev.RefusalCode.NEVER_FITS, message=f"too long {NASTY}"), ran=False)
    frames.wait("B", ev.NeedsBlocks(need=12, free=5, watermark=2))
    frames.wait("B", ev.NeedsBlocks(need=12, free=6, watermark=2))
    frames.frame(frames.admitted("B", resumed=True))
    frames.decode("A", "B")
    frames.finish("A")
    frames.frame(ev.StepFailed(where="execute", error=f"boom {NASTY}", ids=["B"]), ran=False)
    frames.frame(ev.PoolResized(before=24, after=32), ran=False)
    frames.frame(ev.Paused(why="command"), ev.Resumed(), ev.SpeedSet(steps_per_second=8.0), ran=False)
    frames.frame(
        ev.SubscriberBehind(name=NASTY, seconds=0.5),
        ev.Note(level="error", text=NASTY),
        ev.Finished(id="B", reason="failed", output_tokens=2, message=NASTY),
        ran=False,
    )
    return frames


async def shown(frames: Frames, log: EventLog, width: int, ascii: bool = False, height: int = 30) -> list[str]:
    view = View(state=frames.state, ascii=ascii, selected="A")
    for frame in frames.made:
        log.add(frame)
    async with mounted(log, view, width, height) as pilot:
        return assert_exact(pilot.app.widget)  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 80, 120, 200])
@pytest.mark.parametrize("ascii", [False, True])
async def test_rows_are_exact(width: int, ascii: bool) -> None:
    lines = await shown(eventful(), EventLog(), width, ascii)
    assert not ascii or all(line.isascii() for line in lines)


async def test_words() -> None:
    text = "\n".join(await shown(eventful(), EventLog(), 200))
    for part in (
        "▼ PREEMPT B (for A): 12 blocks freed, 22 tokens lost, recompute, pool 24/24 → 12/24, 1st time, rule latest",
        "+ arrive  A  prompt 32 tokens, max 64 tokens",
        "▸ admit   A  needs 12 blocks, 24 free",
        "▹ resume  B  needs 2 blocks",
        "⊘ refuse  [/]␛[31m请⟨RLO⟩  too long [/]␛[31m请⟨RLO⟩",
        "◦ wait    B  needs 12 blk, 5 free (+2 wm)",
        "✓ finish  A  length, 2 tokens, ttft ",
        "✗ finish  B  failed, 2 tokens",
        "✗ fail    execute: boom",
        "◫ pool    24 blocks → 32 blocks",
        "‖ pause   paused: command",
        "runs on",
        "at most 8 steps a second",
        "the engine waited 500ms for",
    ):
        assert part in text
    assert "6 free" not in text  # only the numbers changed
    assert "scheduled" not in text and "tokens/s" not in text


async def test_a_narrow_log_says_the_figures_of_a_preemption() -> None:
    text = "\n".join(await shown(eventful(), EventLog(), 80))
    assert "PREEMPT B (for A): 12 blk, 22 tok lost, pool 24→12/24, 1st, recompute" in text


async def test_bounded_and_following() -> None:
    frames = Frames()
    log = EventLog(keep=100)
    view = View(state=frames.state)
    async with mounted(log, view, 80, 12) as pilot:
        for n in range(500):
            log.add(frames.frame(ev.Note(level="info", text=f"note {n}"), ran=False))
        view.touch()
        log.show(view)
        assert "note 499" in lines_of(log)[-1] and "100" in lines_of(log)[0] and "following" in lines_of(log)[0]
        log.focus()
        await pilot.press("pageup")
        read = lines_of(log)[1:]
        assert not log.follow
        for n in range(500, 520):
            log.add(frames.frame(ev.Note(level="info", text=f"note {n}"), ran=False))
        view.touch()
        log.show(view)
        assert [line[:60] for line in lines_of(log)[1:]] == [line[:60] for line in read]
        assert "below" in lines_of(log)[0]
        await pilot.press("end")
        assert log.follow and "note 519" in lines_of(log)[-1]


async def test_filter_clear_and_click() -> None:
    frames = eventful()
    log = EventLog()
    for frame in frames.made:
        log.add(frame)
    async with mounted(log, View(state=frames.state), 120, 30) as pilot:
        log.filter([Kind.PREEMPT])
        assert "PREEMPT" in lines_of(log)[1] and lines_of(log)[2].strip() == ""
        await pilot.click(log, offset=(20, 1))
        app = pilot.app
        assert isinstance(app, OneWidget)
        assert [m.request_id for m in app.seen if isinstance(m, EventLog.Selected)] == ["B"]
        log.filter(None)
        assert "arrive" in lines_of(log)[1]
        log.clear()
        log.redraw()
        assert all(line.strip() == "" for line in lines_of(log)[1:])


@pytest.mark.parametrize("colour", [True, False])
async def test_preemptions_stand_out(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    frames = eventful()
    log = EventLog()
    for frame in frames.made:
        log.add(frame)
    async with mounted(log, View(state=frames.state), 120, 30):
        from .harness import strips_of

        strip = next(s for s in strips_of(log) if "PREEMPT" in s.text)
        assert any(segment.style is not None and segment.style.bold for segment in strip)
