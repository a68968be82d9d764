"""What a request returns, in its panel and in the log: hypotheses of a beam search, samples that best_of chose."""

from __future__ import annotations

from vtop.app.live.view import View
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.log_words import words
from vtop.app.widgets.request_detail import RequestDetail
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import assert_exact, lines_of, mounted

NASTY = "[/]\x1b[31m"


def finished(*result: ev.AnyEvent) -> Frames:
    """A request of three sequences that ended with `result`."""
    frames = Frames()
    frames.frame(frames.arrived("A", samples=3), ran=False)
    frames.frame(ev.Admitted("A", 0, False, 2, 60), ev.BlocksTaken("A", [1, 2]))
    frames.frame(ev.Forked("A", 0, 1, [1, 2]), ev.Forked("A", 0, 2, [1, 2]))
    frames.frame(ev.Tokens(["A"] * 3, [5, 6, 7], ["zero", "one", "two"], [0, 1, 2]))
    ends = [ev.BlocksFreed("A", [2, 1], seq) for seq in (0, 1, 2)]
    frames.frame(*ends, *result, ev.Finished("A", "length", 3))
    return frames


async def shown(frames: Frames) -> str:
    async with mounted(RequestDetail(), View(state=frames.state, selected="A", now=1.0), 100, 60) as pilot:
        assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in lines_of(pilot.app.widget))  # type: ignore[attr-defined]


async def test_the_hypotheses_of_a_beam_search_stand_in_place_of_its_beams() -> None:
    best = [
        ev.BeamOutput([5, 9, 4], f"the best {NASTY}", -3.25, -1.0833, "stop", NASTY),
        ev.BeamOutput([6], "another", -4.5, -4.5, "length"),
    ]
    frames = finished(ev.Searched("A", best, 3))
    text = await shown(frames)
    assert "returned 1st 3 tok, stop at '[/]\\x1b[31m', log-prob -3.25, score -1.083" in text
    assert "the best [/]␛[31m" in text and "returned 2nd 1 tok, length, log-prob -4.50" in text and "another" in text
    assert "sample 0" not in text and "zero" not in text
    log = EventLog()
    for frame in frames.made:
        log.add(frame)
    assert any("beam search returns 2" in words(line, False) for line in log._all)


async def test_the_samples_that_best_of_returns_are_marked() -> None:
    text = await shown(finished(ev.Chosen("A", [2, 0], [-1.5, -2.25])))
    assert "sample 2 1 tok, length, returned 1st, log-prob -1.50" in text
    assert "sample 0 1 tok, length, returned 2nd, log-prob -2.25" in text
    assert "sample 1 1 tok, length, not returned" in text


async def test_samples_that_are_all_returned_have_no_mark() -> None:
    assert "returned" not in await shown(finished())
