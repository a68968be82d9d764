"""Nobody starves: who is admitted is not thrown out before it gave a token, whatever the priorities and arrivals (I8).

A full waiting queue keeps the most urgent requests, whoever came first.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop_support.engines import AuditedEngine

LOW: dict[str, Any] = {"scheduling_policy": "priority", "priority_order": "low-first"}


@pytest.mark.parametrize("urgent", [False, True])
def test_an_aged_request_is_not_displaced_by_what_it_was_admitted_before(urgent: bool) -> None:
    """One of priority 10 ages by 0.2 a second, so it comes before what arrives 50 s later and is served at once."""
    engine = AuditedEngine(50, max_num_seqs=1, aging_rate=0.2, preempt_for_waiting=urgent, **LOW)
    engine.add("old", 4, 2, priority=10)
    for number in range(120):
        engine.add(f"n{number}", 4, 2, priority=0)
        engine.step()
        if "old" in engine.outputs and engine.outputs["old"].finished:
            break
    admitted = [e for e in engine.events(ev.Admitted) if e.id == "old"]
    assert len(admitted) == 1 and not [e for e in engine.events(ev.Preempted) if e.id == "old"]
    # 2 steps each for those that were in front by then: the last of them arrived within 50 s of it
    assert engine.engine.clock.now() <= 2 * 50 + 4


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 12), st.integers(1, 6)), min_size=2, max_size=25
)


@settings(max_examples=250, deadline=None)
@given(
    arrivals=arrivals,
    seats=st.integers(1, 3),
    blocks=st.integers(6, 14),
    rate=st.sampled_from([0.0, 0.2, 1.0]),
    policy=st.sampled_from(["priority", "priority+fair", "fair+priority", "sjf", "mlfq", "deadline", "mlfq+priority"]),
    victim=st.sampled_from(["policy", "latest", "most-blocks"]),
)
def test_every_admission_gives_a_token(
    arrivals: list[tuple[int, int, int, int]], seats: int, blocks: int, rate: float, policy: str, victim: str
) -> None:
    """With preempt_for_waiting: one token at least between admission and displacement; so they are bounded."""
    engine = AuditedEngine(
        blocks, max_num_seqs=seats, preempt_for_waiting=True, aging_rate=rate, victim=victim, scheduling_policy=policy,
        priority_order="low-first", mlfq_quantum=2,
    )  # fmt: skip
    for number, (pause, priority, prompt, output) in enumerate(arrivals):
        for _ in range(pause):
            engine.step()
        deadline = 1.0 + priority if priority % 2 else None
        engine.add(f"r{number}", prompt, output, priority=priority, group=f"g{number % 3}", deadline=deadline)
    engine.run()
    since: dict[str, int] = {}  # tokens since the latest admission
    told = 0
    for frame in engine.frames:
        for event in frame.events:
            if isinstance(event, ev.Admitted | ev.SwappedIn):
                since[event.id] = 0
            elif isinstance(event, ev.Tokens):
                for name in event.ids:
                    since[name] += 1
            elif isinstance(event, ev.Preempted) and event.cause is ev.PreemptCause.MORE_URGENT:
                told += 1
                assert since[event.id] >= 1, f"{event.id} was thrown out before it gave a token"
    assert told <= sum(output for _, _, _, output in arrivals)
    assert all(output.outputs[0].finish_reason in ("length", "capacity") for output in engine.outputs.values())


@settings(max_examples=100, deadline=None)
@given(
    priorities=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    rate=st.sampled_from([0.5, 1.0, 3.0]),
    urgent=st.booleans(),
)
def test_waiting_is_bounded_by_the_gap_in_priority(priorities: list[int], rate: float, urgent: bool) -> None:
    """I8: wait <= gap / rate + the drain of those ahead; nobody who comes later than gap / rate passes anybody."""
    output = 2
    engine = AuditedEngine(40, max_num_seqs=1, aging_rate=rate, preempt_for_waiting=urgent, **LOW)
    engine.add("old", 3, output, priority=9)
    came = engine.engine.clock.now()
    for number, priority in enumerate(priorities):
        engine.step()
        engine.add(f"n{number}", 3, output, priority=priority)
    engine.run()
    ahead = sum((9 - priority) / rate > number + 1 - 1e-9 for number, priority in enumerate(priorities))
    ended = next(f.time for f in engine.frames for e in f.events if isinstance(e, ev.Finished) and e.id == "old")
    # each of those ahead takes `output` steps, and one more where it threw somebody out
    assert ended - came <= (ahead + 1) * (output + 1) + 1


# --- a full queue -------------------------------------------------------------------------------------------------


def test_a_full_queue_turns_away_the_least_urgent() -> None:
    engine = AuditedEngine(16, max_num_seqs=1, max_waiting=2, **LOW)
    engine.add("runs", 4, 8, priority=5)
    engine.step()
    engine.add("low", 4, 2, priority=9)
    engine.add("middle", 4, 2, priority=7)
    engine.add("urgent", 4, 2, priority=1)
    engine.check()
    (event,) = engine.events(ev.TurnedAway)
    assert (event.id, event.for_id, event.limit) == ("low", "urgent", 2) and event.key > event.for_key
    (ended,) = [e for e in engine.events(ev.Finished) if e.id == "low"]
    assert ended.reason == "refused" and "urgent" in ended.message and "max_waiting" in ended.message
    with pytest.raises(BadValue, match=r"max_waiting = 2: 2 wait already, none less urgent"):
        engine.add("equal", 4, 2, priority=7)
    engine.run()
    assert [engine.finish_reason(name) for name in ("runs", "low", "middle", "urgent")] == [
        "length", "refused", "length", "length",
    ]  # fmt: skip
    assert engine.outputs["low"].finished and engine.outputs["low"].outputs[0].finish_reason == "refused"


@pytest.mark.parametrize("preset", ["vllm-v0", "vllm-v1"])
def test_presets_turn_away_by_their_own_order(preset: str) -> None:
    batched: dict[str, Any] = {"max_num_batched_tokens": 64, "max_model_len": 64}
    engine = AuditedEngine(16, preset=preset, max_num_seqs=1, max_waiting=1, scheduling_policy="priority", **batched)
    engine.add("runs", 4, 4, priority=0)
    engine.step()
    engine.add("low", 4, 2, priority=9)
    engine.add("urgent", 4, 2, priority=1)
    engine.run()
    assert (engine.finish_reason("low"), engine.finish_reason("urgent")) == ("refused", "length")


def test_who_ran_already_is_never_turned_away() -> None:
    """Its tokens were seen: it waits again only because another took its place."""
    engine = AuditedEngine(16, max_num_seqs=1, max_waiting=1, preempt_for_waiting=True, **LOW)
    engine.add("low", 4, 6, priority=9)
    engine.step()
    engine.add("urgent", 4, 2, priority=1)
    engine.step()
    assert [e.id for e in engine.events(ev.Preempted)] == ["low"]
    with pytest.raises(BadValue, match="max_waiting"):
        engine.add("next", 4, 2, priority=2)
    engine.run()
    assert engine.finish_reason("low") == "length" and len(engine.output("low")) == 6


@settings(max_examples=150, deadline=None)
@given(
    priorities=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=25),
    most=st.integers(1, 4),
    policy=st.sampled_from(["fcfs", "priority", "sjf", "fair", "priority+fair"]),
)
def test_whoever_leaves_a_full_queue_is_the_last_in_order(
    priorities: list[tuple[int, int]], most: int, policy: str
) -> None:
    engine = AuditedEngine(40, max_num_seqs=1, max_waiting=most, scheduling_policy=policy, priority_order="low-first")
    scheduler = engine.engine._scheduler
    for number, (priority, steps) in enumerate(priorities):
        for _ in range(steps):
            engine.step()
        before = scheduler.waiting.ordered()
        try:
            engine.add(f"r{number}", 4, 1 + priority, priority=priority, group=f"g{priority % 2}")
        except BadValue:
            assert len(before) >= most
        engine.check()
        after = scheduler.waiting.ordered()
        assert len(after) <= most
        for gone in set(before) - set(after):
            assert all(scheduler.place_of(gone) > scheduler.place_of(stays) for stays in after)
    engine.run()
    accepted = len(engine.events(ev.Arrived))
    assert accepted + len(engine.events(ev.Refused)) == len(priorities) and len(engine.events(ev.Finished)) == accepted
