"""What the log says about swaps, samples, moves and switches."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from vtop.app.terminal.glyphs import glyphs
from vtop.app.terminal.safe_text import cells
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.log_lines import Kind, decision, line_of, together
from vtop.app.widgets.log_words import words
from vtop.engine import events as ev

OUT = ev.SwappedOut(
    id="B", for_id="A", cause=ev.PreemptCause.NO_FREE_BLOCK, rule="latest", key=(1.0,), for_key=(0.0,),
    tables=[[0, 1]], pairs=[(5, 0), (6, 1)], used_before=24, used_after=22, pool=24, count=2,
    why=ev.ModeWhy.CHEAPER, swap_seconds=0.012, recompute_seconds=0.04,
)  # fmt: skip
LOST = ev.Preempted(
    id="B", for_id="B", cause=ev.PreemptCause.MORE_URGENT, mode="recompute", rule="policy", key=(1.0,), for_key=(0.0,),
    blocks_freed=3, tokens_lost=40, used_before=24, used_after=21, pool=24, count=1, why=ev.ModeWhy.HOST_FULL,
)  # fmt: skip
SHRUNK = msgspec.structs.replace(
    LOST, cause=ev.PreemptCause.POOL_RESIZED, pool=64, used_before=60, used_after=57, pool_after=20, rule="",
    why=ev.ModeWhy.MODE,
)  # fmt: skip
NASTY = "[/]\x1b[31m"

CASES: list[tuple[ev.AnyEvent, str]] = [
    (
        OUT,
        "B (for A): 2 blocks moved to the host, nothing lost, 2nd time, pool 24/24 → 22/24, "
        "swap (swap 12ms, recompute 40ms), rule latest",
    ),
    (
        LOST,
        "B (gave way itself): 3 blocks freed, 40 tokens lost, 1st time, pool 24/24 → 21/24, "
        "recompute (host pool full), rule policy, more urgent",
    ),
    (
        SHRUNK,
        "B (pool shrunk 64→20): 3 blocks freed, 40 tokens lost, 1st time, pool 60/64 → 57/64, recompute",
    ),
    (
        ev.SwappedIn("B", (1.0,), [[3]], [(0, 3)], need=2, free=9, watermark=1),
        "B  1 block back from the host, needed 2 (+1 wm), 9 available",
    ),
    (ev.Forked("B", 0, 2, [1, 2]), "B  3 samples, 2 blocks shared"),
    (ev.SequenceFinished("B", 1, "stop", 7, stop_reason=NASTY), "B  sample 1 ended: stop, 7 tokens at '[/]\\x1b[31m'"),
    (
        ev.Searched("B", [ev.BeamOutput([4, 5], NASTY, -3.25, -1.625, "stop", NASTY)] * 2, 5),
        "B  beam search returns 2, the best of 2 tokens: log-prob -3.25, score -1.625",
    ),
    (ev.Searched("B", [], 0), "B  beam search found nothing"),
    (ev.Chosen("B", [2], [-1.5]), "B  returns sample 2 (log-prob -1.50)"),
    (
        ev.Chosen("B", [2, 0, 1, 3], [-1.5, -2.0, -3.0, -4.0]),
        "B  returns samples 2 (log-prob -1.50), 0 (log-prob -2.00), 1 (log-prob -3.00) and 1 more",
    ),
    (ev.Passed("B", ["A", NASTY], 1, 4), "B  fits and passes A, [/]␛[31m, 1 of 4"),
    (ev.Promoted("B", ev.MoveCause.STARVED, 3, 0, (0.0,)), "B  level 3 → 0: it waited too long"),
    (ev.Demoted("B", 0, 1, (0.0,)), "B  level 0 → 1: it used up its quantum"),
    (ev.Lifted(NASTY, 12, 40), "group [/]␛[31m is back, its counter 12 → 40"),
    (ev.PrioritySet("B", 0, 5, (0.0,)), "B  priority 0 → 5"),
    (
        ev.TurnedAway("B", NASTY, (9.0,), (1.0,), 4),
        "B  turned away for [/]␛[31m, which is more urgent: at most 4 may wait",
    ),
    (ev.StepFailed("schedule", "E: x", []), "schedule: E: x; the step is abandoned, nobody ended"),
    (ev.StepFailed("execute", "E: x", ["a"]), "execute: E: x; 1 request ended"),
    (ev.Switched("max_waiting", None, 5), "max_waiting: none → 5"),
    (ev.Switched("scheduling_policy", "a.py:P", "a.py:P"), "policy a.py:P loaded again"),
]


@pytest.mark.parametrize(("event", "text"), CASES, ids=lambda case: type(case).__name__)
def test_words(event: ev.AnyEvent, text: str) -> None:
    line = line_of(event, 3, 0.1)
    assert line is not None and words(line, False) == text
    assert words(line, True).isascii()


@pytest.mark.parametrize("event", [OUT, LOST])
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_log_says_who_and_what_first(event: ev.AnyEvent, width: int) -> None:
    line = line_of(event, 3, 0.1)
    assert line is not None
    text = words(line, False, width)
    assert cells(text) <= width and text.startswith("B (")


def test_a_narrow_log_says_that_the_pool_shrank() -> None:
    line = line_of(SHRUNK, 3, 0.1)
    assert line is not None
    assert words(line, False, 60).startswith("B (pool shrunk 64→20): 3 blk, 40 tok lost, 1st")


def test_a_narrow_log_adds_up_what_a_wait_needs() -> None:
    line = line_of(ev.Waits("B", ev.NeedsBlocks(5, 1, 2, 3, cached=1)), 3, 0.1)
    assert line is not None
    assert words(line, False, 80) == "B  needs 5 blk +2 wm +3 growth, 2 available"
    assert words(line, False, 30) == "B  needs 10 blk, 2 available"


def test_narrow_swaps_say_why_hybrid_chose_them() -> None:
    line = line_of(OUT, 3, 0.1)
    assert line is not None
    assert words(line, False, 80) == "B (for A): 2 blk to host, 2nd, swap 12ms, recompute 40ms, pool 24→22/24, latest"


def test_every_kind_has_a_glyph_and_a_short_word() -> None:
    for ascii in (False, True):
        signs = glyphs(ascii)
        assert all(cells(str(getattr(signs, kind.value))) == 1 for kind in Kind)
        assert not ascii or all(
            str(getattr(signs, f.name)).isascii() for f in dataclasses.fields(signs) if f.name != "bar"
        )
    assert all(len(kind.word) < 8 for kind in Kind)


def test_a_skip_is_a_decision_but_no_line() -> None:
    event = ev.Skipped("B", ev.NeedsBudget(1, 0, 64))
    assert line_of(event, 1, 0.0) is None
    assert words(decision(event, 1, 0.0), False) == "B  got no tokens: needs 1 tok, 0 of 64 left in step"


def test_forks_of_a_step_and_of_steps_in_a_row_are_one_line() -> None:
    forks: list[ev.AnyEvent] = [ev.Forked("B", 0, child, [1]) for child in (1, 2, 3)]
    assert list(together(forks)) == [forks[-1]]
    log = EventLog()
    for serial in range(3):
        log.add(ev.Frame(serial, serial, float(serial), True, forks))
    assert len(log._all) == 1 and words(log._all[0], False).endswith("in 3 steps")


def test_two_queues_wait_without_repeating_each_other() -> None:
    log = EventLog()
    for serial in range(4):
        events: list[ev.AnyEvent] = [
            ev.Waits("out", ev.NeedsBlocks(5, serial)),
            ev.Waits("next", ev.SwappedFirst("out")),
        ]
        log.add(ev.Frame(serial, serial, float(serial), True, events))
    assert len(log._all) == 2
    other = msgspec.structs.replace(OUT, id="next")
    log.add(ev.Frame(4, 4, 4.0, True, [other]))
    assert len(log._all) == 3
