"""The words for why something waits."""

from __future__ import annotations

import pytest

from vtop.app.widgets.reasons import (
    limit_text,
    ordinal,
    queue_head,
    reason_now,
    reason_sentence,
    reason_text,
    why_waiting,
)
from vtop.app.widgets.units import count, duration, rate, share
from vtop.engine import events as ev
from vtop.engine.state.explain import explain
from vtop_support.widget_frames import Frames


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (ev.NeedsBlocks(12, 5), "needs 12 blk, 5 available"),
        (ev.NeedsBlocks(12, 5, watermark=2, cached=4), "needs 12 blk +2 wm, 9 available"),
        (ev.NeedsBlocks(12, 5, watermark=2, growth=3), "needs 12 blk +2 wm +3 growth, 5 available"),
        (ev.NeedsBudget(64, 3, 512), "needs 64 tok, 3 of 512 left in step"),
        (ev.NeedsSeat(64), "all 64 seats taken"),
        (ev.AfterPreemption("B\x1b"), "after preempting B␛"),
        (ev.SwappedFirst("B\x1b"), "swapped out B␛ returns first"),
        (ev.DecodesFirst(4), "decodes first, after 4 prompt steps"),
    ],
)
def test_reasons(reason: ev.WaitReason, text: str) -> None:
    assert reason_text(reason) == text


def waits(reason: ev.WaitReason, blocks: int = 24) -> Frames:
    """`A` waits for that reason since step 2, beside `R` that runs and holds 4 blocks."""
    frames = Frames(blocks)
    frames.run("R", blocks=4)
    frames.frame(frames.arrived("A"), ran=False)
    frames.wait("A", reason)
    return frames


def test_a_sentence_adds_up() -> None:
    def said(reason: ev.WaitReason, blocks: int = 24) -> str:
        state = waits(reason, blocks).state
        return reason_sentence(state.requests["A"], state)

    one = "step 2: needs 25 blocks; 20 available (15 free + 5 cached), 5 short"
    assert said(ev.NeedsBlocks(25, 15, cached=5)) == one
    whole = "step 2: needs 12 blocks + 3 that running ones grow by + 2 left as watermark = 17; 5 available, 12 short"
    assert said(ev.NeedsBlocks(12, 5, 2, 3), 20) == whole
    assert said(ev.NeedsBlocks(12, 5, 2, 3)) == "fits, next step: needs 17 blocks, 20 available now"
    assert said(ev.DecodesFirst(2)) == "decodes first, after 2 prompt steps · step 2"


def test_a_reason_that_holds_no_longer_is_not_told() -> None:
    frames = waits(ev.NeedsBlocks(18, 2, 2, 3))
    request = frames.state.requests["A"]
    assert reason_now(request, frames.state) == "needs 18 blk +2 wm +3 growth, 2 available · step 2"
    frames.finish("R")  # with nothing running there is nobody to keep blocks for
    assert reason_now(request, frames.state) == "fits, next step"


def test_a_seat_that_is_there_again() -> None:
    frames = waits(ev.NeedsSeat(1))
    frames.state.options["max_num_seqs"] = 1
    request = frames.state.requests["A"]
    assert reason_now(request, frames.state) == "all 1 seats taken · step 2"
    frames.state.options["max_num_seqs"] = 2
    assert reason_now(request, frames.state) == "a seat is open, next step"


def test_the_victim_itself() -> None:
    assert reason_text(ev.AfterPreemption("B"), own="B") == "just preempted"
    assert reason_text(ev.AfterPreemption("B"), own="A") == "after preempting B"


def test_who_is_behind_whom() -> None:
    frames = Frames()
    for name in ("A", "B"):
        frames.frame(frames.arrived(name), ran=False)
    state = frames.state
    head = queue_head(state)
    assert head is state.requests["A"]
    assert why_waiting(state.requests["A"], head, state) == "next"
    frames.wait("A", ev.NeedsBudget(9, 0, 8))
    assert why_waiting(state.requests["A"], head, state) == "needs 9 tok, 0 of 8 left in step · step 1"
    assert why_waiting(state.requests["B"], head, state) == "behind A"


def test_a_former_head_waits_for_the_present_one() -> None:
    frames = Frames()
    frames.run("A")
    frames.frame(frames.arrived("B"), ran=False)
    frames.wait("B", ev.NeedsSeat(1))
    frames.preempt("A", "A")
    state = frames.state
    assert queue_head(state) is state.requests["A"]
    assert why_waiting(state.requests["B"], queue_head(state), state) == "behind A"
    why = explain(state, "B")
    assert why is not None and (why.head, why.reason) == ("A", None)  # what B was told as head is none of A's


def test_every_limit_has_words() -> None:
    assert all(limit_text(limit) for limit in ev.Limit)


def test_numbers() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 112)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "21st",
        "112th",
    ]
    assert [count(n) for n in (0, 999, 10_240, 1_234_567, 23_456_789)] == ["0", "999", "10 240", "1.23M", "23M"]
    assert [duration(s) for s in (None, 0, 0.00083, 0.0012, 0.0123, 1.239, 59.99, 200, 7500)] == [
        "-", "0", "830us", "1.2ms", "12ms", "1.24s", "1m00s", "3m20s", "2h05m",
    ]  # fmt: skip
    assert duration(float("nan")) == rate(float("inf")) == count(float("nan")) == "-"
    assert (share(1, 0), share(5, 2), share(1, 2)) == (0.0, 1.0, 0.5)
