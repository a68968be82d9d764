"""Faults people met with priorities, long queues and time-outs, as small cases. Case numbers in the docstrings.

Blocks hold 4 tokens unless said. The cases count low numbers as more urgent, so they run with priority_order =
low-first.
"""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop_support.engines import AuditedEngine
from vtop_support.work_done import lines_run

LOW: dict[str, Any] = {"scheduling_policy": "priority", "priority_order": "low-first"}
PREEMPTING: dict[str, Any] = {**LOW, "victim": "policy", "preempt_for_waiting": True}


def first_tokens(engine: AuditedEngine) -> list[str]:
    return list(dict.fromkeys(i for e in engine.events(ev.Tokens) for i in e.ids))


def finished(engine: AuditedEngine) -> list[str]:
    return [e.id for e in engine.events(ev.Finished)]


# --- priority ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["policy", "latest", "least-computed", "most-blocks"])
def test_an_urgent_request_takes_the_seat_of_a_less_urgent_one(victim: str) -> None:
    """E026: both seats are taken; H has its first token two steps after it came, and its victim is told why."""
    engine = AuditedEngine(300, max_num_seqs=2, **{**PREEMPTING, "victim": victim})
    engine.add("L1", 4, 200, priority=5)
    engine.add("L2", 4, 200, priority=5)
    for _ in range(10):
        engine.step()
    engine.add("H", 4, 4, priority=0)
    for _ in range(2):
        engine.step()
    view = engine.state.requests["H"]
    assert view.first_token is not None
    [event] = engine.events(ev.Preempted)
    assert (event.cause, event.for_id) == (ev.PreemptCause.MORE_URGENT, "H") and event.rank > event.for_rank
    for _ in range(10):
        engine.step()
    assert engine.state.totals.preemptions == 1


def test_without_preemption_the_urgent_one_waits_and_the_reason_is_told() -> None:
    """E026: the same without preempt_for_waiting: 'no seat'."""
    engine = AuditedEngine(300, max_num_seqs=2, **LOW)
    engine.add("L1", 4, 40, priority=5)
    engine.add("L2", 4, 40, priority=5)
    engine.step()
    engine.add("H", 4, 4, priority=0)
    for _ in range(5):
        engine.step()
    assert engine.state.requests["H"].reason == ev.NeedsSeat(2)
    assert engine.state.options["scheduling_policy"] == "priority"
    engine.run()


@pytest.mark.parametrize("options", [LOW, PREEMPTING])
def test_negative_priorities_and_no_contention(options: dict[str, Any]) -> None:
    """E028: -3, 0, 0, 7: no crash; the -3 ends first when room is short; with room, nobody is preempted."""
    for blocks, contended in ((8, True), (200, False)):
        engine = AuditedEngine(blocks, max_num_seqs=8, **options)
        for name, priority in (("d", 7), ("b", 0), ("c", 0), ("a", -3)):
            engine.add(name, 8, 12, priority=priority)
        engine.run()
        assert finished(engine)[0] == "a"
        assert first_tokens(engine)[0] == "a" and first_tokens(engine)[1:3] == ["b", "c"]
        assert bool(engine.state.totals.preemptions) == contended
        if not contended:
            assert len({e.time for e in engine.frames if any(isinstance(x, ev.Admitted) for x in e.events)}) == 1


def test_running_out_of_blocks_is_a_reason_to_preempt_too() -> None:
    """E029: L holds the whole pool; H is in within one step of its arrival."""
    engine = AuditedEngine(4, max_model_len=64, **PREEMPTING)
    engine.add("L", 12, 4, priority=9)
    for _ in range(2):
        engine.step()
    assert engine.state.used == 4
    engine.add("H", 8, 2, priority=0)
    engine.step()
    assert set(engine.ran()) == {"H"} and engine.state.requests["L"].status.value == "waiting"
    engine.run()
    assert len(engine.output("H")) == 2 and len(engine.output("L")) == 4


def test_victims_are_taken_only_when_that_is_enough() -> None:
    """H would not fit even without the less urgent one: nobody is thrown out for nothing, and no more than needed."""
    engine = AuditedEngine(12, **PREEMPTING)
    engine.add("same", 16, 8, priority=0)
    engine.add("low", 4, 8, priority=5)
    engine.step()
    engine.add("H", 36, 2, priority=-1)  # 9 blocks; 4 are held by one as important as anybody else
    engine.engine.set_priority("same", -1)
    engine.step()
    assert engine.state.totals.preemptions == 0 and engine.state.blocked_head == "H"
    engine.engine.abort_request("H")
    engine.run()

    engine = AuditedEngine(15, **PREEMPTING)
    for name, size, priority in (("small", 4, 5), ("large", 24, 4), ("medium", 12, 3)):
        engine.add(name, size, 8, priority=priority)
    engine.step()
    engine.add("H", 28, 2, priority=0)
    engine.step()
    assert [e.id for e in engine.events(ev.Preempted)] == ["large"]
    engine.run()


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority", "priority+fair", "sjf", "deadline", "mlfq"])
def test_equals_never_take_from_equals(policy: str) -> None:
    """Under preempt_for_waiting nobody gives way to one that is merely older, or of a group with less service."""
    engine = AuditedEngine(64, max_num_seqs=2, scheduling_policy=policy, preempt_for_waiting=True, mlfq_quantum=64)
    for i in range(8):
        engine.add(f"r{i}", 4, 8, group="ab"[i % 2])
    engine.run()
    assert engine.state.totals.preemptions == 0


def test_a_missing_priority_is_zero() -> None:
    """E031: None, 0, 1, -1 run as -1, None, 0, 1."""
    engine = AuditedEngine(16, max_num_seqs=1, **LOW)
    for name, priority in (("None", None), ("0", 0), ("1", 1), ("-1", -1)):
        engine.add(name, 4, 2, priority=priority)
    engine.run()
    assert first_tokens(engine) == ["-1", "None", "0", "1"]


@pytest.mark.parametrize("bad", [float("inf"), "high", True, 2**60])
def test_what_is_no_priority_is_refused(bad: Any) -> None:
    engine = AuditedEngine(16)
    with pytest.raises(BadValue, match="priority"):
        engine.add("A", 4, 2, priority=bad)
    engine.add("A", 4, 2)
    with pytest.raises(BadValue, match="priority"):
        engine.engine.set_priority("A", bad)
    engine.run()


@pytest.mark.parametrize("options", [LOW, PREEMPTING])
def test_an_important_request_that_is_too_big_jams_nothing(options: dict[str, Any]) -> None:
    """E033: L, half prefilled, holds blocks; H needs all 8. Some token within 2 steps, both end."""
    engine = AuditedEngine(8, max_num_batched_tokens=8, max_model_len=64, admission="first-chunk", **options)
    engine.add("L", 20, 2, priority=5)
    engine.step()
    engine.add("H", 28, 2, priority=0)
    for _ in range(2):
        engine.step()
        assert engine.ran()
    engine.run()
    assert len(engine.output("L")) == len(engine.output("H")) == 2
    order = ["H", "L"] if options is PREEMPTING else ["L", "H"]
    assert finished(engine) == order


# --- skip-ahead, max-waiting ---------------------------------------------------------------------------------------


def test_nobody_passes_by_default_and_at_most_k_with_skip_ahead() -> None:
    for limit, before in ((0, 0), (1, 1), (3, 3)):
        engine = AuditedEngine(8, max_model_len=64, skip_ahead=limit, enable_prefix_caching=False)
        engine.add("runs", 12, 16)
        engine.step()
        engine.add("big", 24, 2)
        for i in range(6):
            engine.add(f"s{i}", 2, 1)
            engine.step()
        ids = [e.id for e in engine.events(ev.Admitted)]
        assert ("big" in ids and ids.index("big") == 1 + before) or len(ids) == 1 + before
        told = [(e.heads[0], e.count, e.limit) for e in engine.events(ev.Passed)]
        assert told == [("big", i + 1, limit) for i in range(before)]
        assert engine.state.requests["big"].passed == before
        engine.run()


def test_skips_count_for_everybody_who_is_passed() -> None:
    """Two that do not fit: who passes the second has passed both; a new head brings the old one no new allowance."""
    engine = AuditedEngine(8, max_model_len=64, skip_ahead=2, scheduling_policy="priority")
    engine.add("runs", 12, 16, priority=9)
    engine.step()
    engine.add("big", 24, 2, priority=1)
    engine.add("s0", 2, 1)
    engine.step()
    engine.add("bigger", 28, 2, priority=5)
    for i in range(1, 4):
        engine.add(f"s{i}", 2, 1)
        engine.step()
    assert [e.heads for e in engine.events(ev.Passed)] == [["big"], ["bigger", "big"]]
    engine.run()


def test_skipping_waits_for_a_step_that_preempted() -> None:
    engine = AuditedEngine(6, skip_ahead=4)
    engine.add("A", 8, 12)
    engine.add("B", 8, 12)
    while not engine.events(ev.Preempted):
        engine.step()
    assert not engine.events(ev.Passed)
    engine.run()


def test_a_full_queue_refuses_with_its_reason() -> None:
    engine = AuditedEngine(16, max_num_seqs=1, max_waiting=2)
    engine.add("r0", 4, 8)
    engine.step()
    engine.add("r1", 4, 2)
    engine.add("r2", 4, 2)
    with pytest.raises(BadValue, match="2 wait already"):
        engine.add("r3", 4, 2)
    engine.check()
    [refused] = engine.events(ev.Refused)
    assert (refused.id, refused.code, refused.need, refused.capacity) == ("r3", ev.RefusalCode.QUEUE_FULL, 3, 2)
    engine.run()
    engine.add("r3", 4, 2)
    engine.run()


# --- scale ---------------------------------------------------------------------------------------------------------


def fill(policy: str, count: int) -> AuditedEngine:
    engine = AuditedEngine(64, max_num_seqs=8, scheduling_policy=policy, aging_rate=0.1 if policy == "priority" else 0)
    for i in range(count):
        engine.add(f"r{i}", 4, 400, priority=i % 5, group=f"g{i % 16}", timeout=1e6 + i)
    engine.engine.step()
    return engine


def _step(engine: AuditedEngine) -> int:
    engine.clock.advance(0.01)
    return lines_run(engine.engine.step)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair"])
def test_a_long_queue_costs_a_step_little(policy: str) -> None:
    """E116: scheduling with 2,000 waiting takes little more than with 200: queues are not walked through."""
    short, long = ([_step(engine) for _ in range(10)] for engine in (fill(policy, 200), fill(policy, 2_000)))
    assert sorted(long)[5] <= 1.3 * sorted(short)[5] and max(long) < 8_000


@pytest.mark.parametrize("policy", ["fcfs", "fair", "mlfq"])
def test_thousands_of_aborts_at_once(policy: str) -> None:
    """E116: five times as many take five times as long, not twenty-five times."""
    engine = fill(policy, 4_000)
    ids = [f"r{i}" for i in range(500, 3_500)]
    few = lines_run(lambda: engine.engine.abort_request(ids[:500]))
    many = lines_run(lambda: engine.engine.abort_request(ids[500:]))
    assert many <= 6 * few
    engine.check()


# --- timeouts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["priority", "fair", "deadline", "mlfq", "priority+fair"])
def test_a_time_out_takes_a_request_out_of_any_queue(policy: str) -> None:
    """E119 under every kind of queue: B ends at the first step after its deadline, without a block ever."""
    engine = AuditedEngine(16, max_num_seqs=1, scheduling_policy=policy)
    engine.add("A", 4, 30)
    engine.step(0.01)
    engine.add("B", 4, 4, timeout=0.1)
    engine.add("C", 4, 4, timeout=900)
    engine.step(0.05)
    assert engine.state.requests["B"].queue_time is None and engine.state.time < 0.1
    engine.step(0.1)
    assert engine.finish_reason("B") == "timeout" and not engine.events(ev.BlocksTaken, "B")
    engine.run()
    assert engine.finish_reason("C") == "length"
