"""explain: the reason of a wait is the scheduler's own, and the chain of what must happen first comes true."""

from __future__ import annotations

import pytest

from vtop.engine import events as ev
from vtop.engine.request import RequestStatus
from vtop.engine.state.explain import explain
from vtop_support.engines import AuditedEngine


def test_a_wait_for_blocks_names_who_must_end() -> None:
    engine = AuditedEngine(10)
    engine.add("short", 8, 3)
    engine.add("long", 12, 30)
    engine.add("big", 24, 4)
    engine.add("behind", 4, 4)
    engine.step()
    why = explain(engine.state, "big")
    assert why is not None and isinstance(why.reason, ev.NeedsBlocks)
    assert (why.head, why.ahead, why.need, why.available) == ("big", [], 6, 5)
    assert why.endings and why.endings[0].id == "short" and why.enough
    behind = explain(engine.state, "behind")
    assert behind is not None and (behind.head, behind.ahead) == ("big", ["big"])
    while "big" in engine.state.waiting:
        engine.step()
    assert "short" in [v.id for v in engine.state.finished]


def test_a_wait_for_a_seat() -> None:
    engine = AuditedEngine(64, max_num_seqs=1)
    engine.add("a", 8, 5)
    engine.add("b", 8, 5)
    engine.step()
    why = explain(engine.state, "b")
    assert why is not None and isinstance(why.reason, ev.NeedsSeat)
    assert [(e.id, e.tokens) for e in why.endings] == [("a", 4)]


def test_history_tells_the_decisions_in_order() -> None:
    engine = AuditedEngine(6, max_num_batched_tokens=64)
    engine.add("A", 8, 12)
    engine.add("B", 8, 12)
    engine.run()
    why = explain(engine.state, "B")
    assert why is not None and why.status is RequestStatus.FINISHED
    kinds = [type(told.event).__name__ for told in why.history]
    assert kinds[0] == "Admitted" and kinds[-1] == "Finished" and kinds.count("Preempted") == 1
    assert [told.step for told in why.history] == sorted(told.step for told in why.history)


def test_nothing_is_known_of_an_unknown_request() -> None:
    assert explain(AuditedEngine(8).state, "nope") is None


def test_the_engine_explains_itself() -> None:
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=20)
    with pytest.raises(RuntimeError, match="watch"):
        engine.engine.explain("r0")
    engine.engine.watch()
    for i in range(4):
        engine.add(f"r{i}", 8, 16)
    while not engine.state.swapped:
        engine.step()
    engine.add("late", 8, 4)
    engine.check()
    swapped = engine.state.swapped_order()[0].id
    why = engine.engine.explain(swapped)
    assert why is not None and why.status is RequestStatus.SWAPPED and why.ahead == []
    behind = engine.engine.explain("late")
    assert behind is not None and behind.ahead[0] == swapped and behind.head == swapped
    engine.run()
