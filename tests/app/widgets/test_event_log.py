"""The event log: which events are lines, what they say, and that it stays put while it is read."""

from __future__ import annotations

import pytest

from vtop.app.live.view import View
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.log_lines import Kind
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import OneWidget, assert_exact, lines_of, mounted

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
        "▼ PREEMPT B (for A): 12 blocks freed, 22 tokens lost, 1st time, pool 24/24 → 12/24, recompute, rule latest",
        "+ arrive  A  prompt 32 tokens, max 64 tokens",
        "▸ admit   A  needs 12 blocks, 24 available",
        "▹ resume  B  needs 2 blocks",
        "⊘ refuse  [/]␛[31m请⟨RLO⟩  too long [/]␛[31m请⟨RLO⟩",
        "◦ wait    B  needs 12 blk +2 wm, 5 available",
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
    assert "PREEMPT B (for A): 12 blk, 22 tok lost, 1st, pool 24→12/24, recompute" in text


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (54, "B (for A): 12 blk, 22 tok lost, 1st"),
        (46, "B (for A) 12blk 22tok 1st"),
        (60, "B (for A): 12 blk, 22 tok lost, 1st"),
        (75, "B (for A): 12 blk, 22 tok lost, 1st, pool 24→12/24"),
    ],
)
async def test_a_preemption_is_worded_for_the_room(width: int, said: str) -> None:
    lines = await shown(eventful(), EventLog(), width)
    [line] = [line for line in lines if "PREEMPT" in line]
    assert line[17:].strip(" │┃") == said


def cached_story() -> Frames:
    frames = Frames(24)
    frames.run("A", blocks=4)
    frames.cache("A", 2)
    frames.share("B", "A", 2, prompt_tokens=33)
    frames.frame(ev.PrefixLookup(id="B", tokens=40, hit=0, blocks=0, resumed=False))
    frames.frame(ev.PrefixLookup(id="B", tokens=40, hit=32, blocks=2, resumed=True))
    frames.frame(ev.Evicted(blocks=[20]), ev.Note(level="info", text="between"), ev.Evicted(blocks=[21, 22]))
    frames.frame(ev.CopiedOnWrite(id="B", source=1, target=9, logical=1))
    return frames


async def test_hits_copies_evictions_and_a_reset() -> None:
    frames = cached_story()
    frames.frame(ev.CacheReset(blocks=2), ran=False)
    text = "\n".join(await shown(frames, EventLog(), 120))
    for part in (
        "◇ hit     B  32/33 tok, 2 blk from cache ",
        "◇ hit     B  32/40 tok, 2 blk from cache, resumed",
        "⊖ evict   3 cached blocks: 20, 21, 22",
        "↳ cow     B  blk 1 → 9, it was shared",
        "∅ cache   reset: the content of 2 blocks can no longer be hit",
    ):
        assert part in text
    assert text.count("◇ hit") == 2 and text.count(" evict ") == 1
    assert text.index("evict") < text.index("between")


async def test_evictions_in_a_row_are_one_line() -> None:
    frames = cached_story()
    log = EventLog()
    view = View(state=frames.state)
    async with mounted(log, view, 80, 30):
        for step in range(3):
            log.add(frames.frame(ev.Evicted(blocks=[step, step + 10])))
        view.touch()
        log.show(view)
        lines = [line for line in lines_of(log) if "evict" in line]
        assert len(lines) == 1 and "6 cached blocks in 3 steps" in lines[0]
        assert lines[0].split()[0] == str(frames.state.step)
        log.add(frames.frame(ev.Evicted(blocks=[3])))
        log.show(view)  # the line grows though no line is new
        assert "7 cached blocks in 4 steps" in lines_of(log)[1]
        log.add(frames.frame(ev.Note(level="info", text="between")))
        log.add(frames.frame(ev.Evicted(blocks=list(range(9)))))
        view.touch()
        log.show(view)
        assert "9 cached blocks: 0, 1, 2, 3, 4, 5, 6, 7 …" in lines_of(log)[3]


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
        from vtop_support.widget_harness import strips_of

        strip = next(s for s in strips_of(log) if "PREEMPT" in s.text)
        assert any(segment.style is not None and segment.style.bold for segment in strip)
