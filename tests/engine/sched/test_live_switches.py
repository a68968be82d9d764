"""Changing policy, victims, caps and priorities while requests run: nobody is lost, and the change is told."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.sched.live import LIVE_OPTIONS
from vtop.engine.state.fold import EngineState
from vtop_support.engines import AuditedEngine
from vtop_support.stub import expected_output

SPECS = ["fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair", "mlfq+fair+sjf"]


def busy(**options: Any) -> AuditedEngine:
    """Three run, six wait, with everything that policies look at."""
    engine = AuditedEngine(20, max_num_seqs=3, **options)
    for i in range(9):
        more = {"priority": i % 3, "group": "ab"[i % 2], "timeout": 500.0 - i, "expected_tokens": 1 + i % 4}
        engine.add(f"r{i}", 3 + i % 5, 8, **more)
    for _ in range(3):
        engine.step()
    return engine


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(SPECS, 2)))
def test_from_any_policy_to_any_other(before: str, after: str) -> None:
    engine = busy(scheduling_policy=before)
    running = [v.id for v in engine.state.running_order()]
    engine.engine.set_option("scheduling_policy", after)
    engine.check()
    assert sorted(v.id for v in engine.state.running_order()) == sorted(running)
    told = [e for e in engine.frames[-1].events if isinstance(e, ev.Switched)]
    assert told == [ev.Switched("scheduling_policy", before, after)]
    assert engine.state.options["scheduling_policy"] == after == engine.engine.config.scheduling_policy
    if "mlfq" not in after and "fair" not in after:  # those have a history; others order as if they always had
        fresh = AuditedEngine(20, scheduling_policy=after)
        for view in sorted(engine.state.waiting.values(), key=lambda v: v.number):
            more = {"priority": view.priority, "timeout": view.deadline, "expected_tokens": view.expected_tokens}
            fresh.add(view.id, view.prompt_tokens, 8, **more)
        fresh.check()
        assert [v.id for v in engine.state.waiting_order()] == [v.id for v in fresh.state.waiting_order()]
    engine.run()
    assert engine.state.totals.finished == {"length": 9}


def test_there_and_back_keeps_counters_and_levels_of_what_stays() -> None:
    engine = busy(scheduling_policy="priority+fair")
    counters = dict(engine.state.counters)
    assert all(counters.values())
    engine.engine.set_option("scheduling_policy", "fair")
    engine.engine.set_option("group_weights", "a=5")
    engine.check()
    assert engine.state.counters == counters
    engine.engine.set_option("scheduling_policy", "fcfs")
    engine.check()
    assert engine.state.counters == {} and engine.state.fair_at == -1
    engine.run()

    engine = busy(scheduling_policy="mlfq", mlfq_quantum=2)
    levels = {v.id: v.key[:2] for v in engine.state.requests.values()}
    assert any(level for level, _ in levels.values())
    engine.engine.set_option("scheduling_policy", "mlfq+fair")
    engine.check()
    assert {v.id: v.key[:2] for v in engine.state.requests.values()} == levels
    engine.engine.set_option("mlfq_levels", 1)
    engine.check()
    assert all(v.key[0] == 0 for v in engine.state.requests.values())
    engine.run()


VALUES: dict[str, Any] = {
    "priority_order": "low-first",
    "aging_rate": 0.5,
    "group_weights": "a=3",
    "sjf_noise": 0.4,
    "mlfq_quantum": 3,
    "mlfq_levels": 2,
    "mlfq_starvation": 1.0,
    "scheduling_policy": "sjf+fair",
    "victim": "most-blocks",
    "preemption_mode": "swap",
    "preempt_for_waiting": True,
    "skip_ahead": 2,
    "max_waiting": 3,
    "max_predicted_ttft": 1.5,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 5,
    "batching": "prefill-first",
    "max_prefill_steps": 1,
    "admission": "first-chunk",
    "watermark": 0.2,
    "request_timeout": 300.0,
}


@pytest.mark.parametrize("name", LIVE_OPTIONS)
@pytest.mark.parametrize("policy", ["priority", "mlfq+fair"])
def test_every_live_option(policy: str, name: str) -> None:
    engine = busy(scheduling_policy=policy)
    value = VALUES[name]
    before = getattr(engine.engine.config, name)
    engine.engine.set_option(name, str(value))  # as a person types it
    engine.check()
    assert getattr(engine.engine.config, name) == value == engine.state.options[name]
    assert ev.Switched(name, before, value) in engine.frames[-1].events
    for _ in range(3):
        engine.step()
    engine.engine.set_option(name, before)
    engine.run()
    for request_id in engine.outputs:
        prompt = engine.outputs[request_id].prompt_token_ids
        assert engine.output(request_id) == expected_output(prompt, 8)


def test_a_smaller_budget_and_fewer_seats_hold_from_the_next_step_on() -> None:
    engine = busy()
    assert len(engine.state.running) == 3
    engine.engine.set_option("max_num_seqs", 1)
    engine.step()
    assert len(engine.state.running) == 3 and engine.state.totals.preemptions == 0
    engine.engine.set_option("max_num_batched_tokens", 2)
    engine.step()
    assert sum(engine.ran().values()) == 2
    engine.engine.set_option("max_num_batched_tokens", None)
    engine.step()
    assert sum(engine.ran().values()) == 3
    while len(engine.state.running) > 1:
        engine.step()
    engine.run()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "tiny"),
        ("block_size", 8),
        ("nothing", 1),
        ("watermark", 1.0),
        ("watermark", "much"),
        ("watermark", None),
        ("max_num_seqs", 0),
        ("max_num_seqs", 2.5),
        ("skip_ahead", -1),
        ("skip_ahead", True),
        ("victim", "first"),
        ("victim", None),
        ("preempt_for_waiting", 1),
        ("scheduling_policy", "nope"),
        ("scheduling_policy", None),
        ("group_weights", "a=0"),
        ("aging_rate", "nan"),
        ("mlfq_starvation", 0),
        ("max_waiting", 0),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(name: str, value: Any) -> None:
    engine = busy(scheduling_policy="priority+fair")
    config, waiting = engine.engine.config, [v.id for v in engine.state.waiting_order()]
    with pytest.raises(BadValue):
        engine.engine.set_option(name, value)
    engine.check()
    assert engine.engine.config == config and [v.id for v in engine.state.waiting_order()] == waiting
    assert not engine.events(ev.Switched)
    engine.run()


@pytest.mark.parametrize("spec", ["priority", "priority+fair", "fair+priority", "mlfq+priority"])
def test_a_priority_changes_while_waiting_and_while_running(spec: str) -> None:
    engine = busy(scheduling_policy=spec)
    last = engine.state.waiting_order()[-1].id
    running = engine.state.running_order()[0].id
    assert engine.engine.set_priority(last, 99) and engine.engine.set_priority(running, -99)
    engine.check()
    assert engine.state.requests[last].priority == 99
    if spec.startswith("priority"):
        assert engine.state.waiting_order()[0].id == last
        assert engine.state.running_order()[-1].id == running
    told = [(e.id, e.after) for e in engine.events(ev.PrioritySet)]
    assert told == [(last, 99), (running, -99)]
    assert not engine.engine.set_priority("nobody", 1)
    engine.run()


def test_the_reason_of_the_head_is_told_again_after_a_switch() -> None:
    engine = busy(scheduling_policy="priority")
    engine.engine.set_option("priority_order", "low-first")
    engine.check()
    assert engine.state.blocked_head is None
    engine.step()
    head = engine.state.waiting_order()[0]
    assert engine.state.blocked_head == head.id and head.reason == ev.NeedsSeat(3)


@pytest.mark.parametrize("spec", ["priority+fair", "mlfq+fair+sjf"])
def test_a_recording_folds_to_the_same_order(spec: str) -> None:
    """I3 through JSON: after every Frame the state read back orders everybody as the live one did."""
    engine = busy(scheduling_policy=spec, aging_rate=0.3, mlfq_quantum=3, victim="policy", skip_ahead=2)
    orders: list[tuple[list[str], list[str], dict[str, float]]] = []
    again = EngineState(msgspec.json.decode(msgspec.json.encode(engine.engine.meta), type=ev.Meta))
    for frame in engine.frames:
        again.apply(msgspec.json.decode(msgspec.json.encode(frame), type=ev.Frame))
    switches = [
        ("scheduling_policy", "fair"),
        ("aging_rate", 0.0),
        ("scheduling_policy", spec),
        ("group_weights", "a=9"),
    ]
    for name, value in switches:
        seen = len(engine.frames)
        engine.engine.set_option(name, value)
        engine.engine.set_priority("r8", 7)
        engine.step()
        for frame in engine.frames[seen:]:
            again.apply(msgspec.json.decode(msgspec.json.encode(frame), type=ev.Frame))
        for state in (engine.state, again):
            order = [v.id for v in state.waiting_order()], [v.id for v in state.running_order()], state.counters
            orders.append(order)
        assert orders[-1] == orders[-2]
        assert again.options == engine.state.options
    engine.run()
