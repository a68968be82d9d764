"""What decisions carry with them: evictions, deadlines, refusals by prediction, worst-case admission."""

from __future__ import annotations

import pytest

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.executor import ExecutorRates
from vtop_support.engines import AuditedEngine
from vtop_support.stub import StubExecutor


def test_an_eviction_names_the_content_and_when_it_was_used_last() -> None:
    engine = AuditedEngine(4)
    engine.add("a", 8, 2)
    while engine.engine.has_unfinished_requests():
        engine.step()
    [cached] = engine.events(ev.Cached, "a")
    ended = engine.clock.now()
    engine.clock.advance(5.0)
    engine.add("b", 12, 4)
    while engine.engine.has_unfinished_requests():
        engine.step()
    evicted = [e for frame in engine.frames for e in frame.events if isinstance(e, ev.Evicted)]
    pairs = {
        block: (hash_, used)
        for e in evicted
        for block, hash_, used in zip(e.blocks, e.hashes, e.last_used, strict=True)
    }
    lost = [block for block in cached.blocks if block in pairs]
    assert lost, "the pool of 4 has room for b only where a's content was"
    assert all(0 < pairs[block][0] < 2**64 for block in lost)
    assert all(pairs[block][1] == pytest.approx(ended, abs=1.0) and pairs[block][1] <= ended for block in lost)
    assert len({pairs[block][0] for block in lost}) == len(lost), "different content, different hash"


def test_a_missed_deadline_is_told_once_and_ends_nothing() -> None:
    engine = AuditedEngine(16)
    engine.add("a", 4, 6, deadline=2.5)
    engine.add("b", 4, 6, deadline=50)
    while engine.engine.has_unfinished_requests():
        engine.step()
    missed = [e for frame in engine.frames for e in frame.events if isinstance(e, ev.DeadlineMissed)]
    assert [(e.id, e.deadline) for e in missed] == [("a", 2.5)]
    assert 0 < missed[0].output_tokens < 6
    assert engine.finish_reason("a") == engine.finish_reason("b") == "length"
    assert engine.state.totals.deadline_misses == 1


def test_policy_deadline_orders_by_the_deadline_of_a_request_and_else_by_its_time_out() -> None:
    engine = AuditedEngine(16, scheduling_policy="deadline", max_num_seqs=1)
    engine.add("runs", 4, 3)
    engine.step()
    engine.add("late", 4, 1, timeout=40)
    engine.add("soon", 4, 1, timeout=90, deadline=30)
    engine.add("never", 4, 1)
    while engine.engine.has_unfinished_requests():
        engine.step()
    order = [e.id for frame in engine.frames for e in frame.events if isinstance(e, ev.Admitted)]
    assert order == ["runs", "soon", "late", "never"]


@pytest.mark.parametrize("name", ["timeout", "deadline"])
def test_a_bad_time_is_refused_by_name(name: str) -> None:
    engine = AuditedEngine(16)
    with pytest.raises(BadValue, match=name):
        engine.add("a", 4, 3, **{name: -1.0})


def test_a_request_whose_first_token_would_come_too_late_is_refused() -> None:
    executor = StubExecutor(32, 4)
    executor.rates = ExecutorRates(prefill_tokens_per_second=10.0)
    engine = AuditedEngine(32, executor=executor, max_predicted_ttft=2.0, max_num_seqs=1)
    engine.add("a", 12, 8)
    with pytest.raises(BadValue, match="max_predicted_ttft"):
        engine.add("b", 9, 8)  # 21 tokens take 2.1 s
    engine.add("c", 8, 8)
    engine.step()
    assert [refused.id for refused in engine.state.refused] == ["b"]
    assert engine.state.refused[0].code is ev.RefusalCode.PREDICTED_TTFT and engine.state.refused[0].need == 21


def test_worst_case_admission_never_preempts() -> None:
    def run(admission: str) -> AuditedEngine:
        engine = AuditedEngine(20, admission=admission)
        for i in range(12):
            engine.add(f"r{i}", 8, 24)
        while engine.engine.has_unfinished_requests():
            engine.step()
        return engine

    assert run("reserve-full-prompt").state.totals.preemptions > 0
    cautious = run("reserve-worst-case")
    assert cautious.state.totals.preemptions == 0
    assert cautious.state.totals.finished["length"] == 12
