"""Every policy against a model that sorts everybody each time; and what a reader would look up in their definitions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.policies import make_policy
from vtop.engine.policies.queues import peek_many
from vtop.engine.policy_spec import POLICY_NAMES, parse_spec, parse_weights
from vtop.engine.request import SamplingParams, new_request
from vtop_support.engines import AuditedEngine
from vtop_support.policy_model import PolicyModel

SPECS = [*POLICY_NAMES, "priority+fair", "fair+priority", "mlfq+fair", "deadline+fair+sjf", "priority+mlfq", "sjf+fair"]
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt
        st.integers(1, 40),  # outputs
        st.integers(-2, 2),  # priority
        st.sampled_from("abc"),  # group
        st.sampled_from([None, 200.0, 300.0]),  # timeout
        st.sampled_from([None, 3, 20]),  # expected tokens
        st.integers(0, 3),  # steps before the next one comes
    ),
    min_size=2,
    max_size=16,
)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    REQUESTS,
    st.sampled_from([(64, 2), (14, 8)]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(["high-first", "low-first"]),
    st.sampled_from([4, 32]),
)
def test_admissions_follow_the_policy(
    spec: str, requests: list[tuple[Any, ...]], pool: tuple[int, int], rate: float, order: str, quantum: int
) -> None:
    blocks, seats = pool
    engine = AuditedEngine(
        blocks,
        max_num_seqs=seats,
        max_num_batched_tokens=16,
        max_model_len=48,
        scheduling_policy=spec,
        aging_rate=rate,
        priority_order=order,
        group_weights="a=2,b=0.5",
        mlfq_quantum=quantum,
        mlfq_levels=3,
    )
    weights = {"a": 2.0, "b": 0.5}
    model = PolicyModel(spec, order, rate, weights, quantum, levels=3)
    for i, (prompt, outputs, priority, group, timeout, expected, pause) in enumerate(requests):
        more = {"priority": priority, "group": group, "timeout": timeout, "expected_tokens": expected}
        engine.add(f"r{i}", prompt, outputs, **more)
        engine.check()
        for _ in range(pause):
            engine.step()
    engine.run()
    for frame in engine.frames:
        model.check(frame)
    assert model.admissions == len(engine.events(ev.Admitted)) >= len(requests)
    if "fair" in spec:
        assert engine.state.counters == pytest.approx(model.service)
    assert not [e for e in engine.events(ev.Note) if e.level == "error"]


@pytest.mark.parametrize("spec", ["fcfs", "fair", "priority+fair", "mlfq+fair"])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["push", "push", "pop", "drop", "charge", "look"]), st.integers(0, 999))))
def test_queues_keep_order_while_counters_grow(spec: str, actions: list[tuple[str, int]]) -> None:
    """Peek is the minimum of all, whatever was removed from the middle and charged meanwhile."""
    policy = make_policy(EngineConfig(scheduling_policy=spec))
    queue = policy.make_queue()
    inside = []
    for serial, (action, n) in enumerate(actions):
        if action == "push":
            request = new_request(
                f"r{serial}", serial, [1] * (1 + n % 50), SamplingParams(), arrival=0, limit=99, seed=0,
                priority=n % 3, group="abcd"[n % 4],
            )  # fmt: skip
            policy.on_arrival(request, 0.0)
            request.key = policy.key(request)
            queue.push(request)
            inside.append(request)
        elif action == "charge" and policy.fair is not None:
            group = "abcd"[n % 4]
            policy.counters[group] = policy.counters.get(group, 0.0) + n
        elif inside and action in ("pop", "drop"):
            gone = queue.peek() if action == "pop" else inside[n % len(inside)]
            assert gone is not None
            queue.remove(gone)
            inside.remove(gone)
        inside.sort(key=policy.order)
        assert queue.peek() is (inside[0] if inside else None)
        assert peek_many(queue, 3) == inside[:3] and len(queue) == len(inside)
        assert queue.ordered() == inside
        assert all(request in queue for request in inside)


def admitted(engine: AuditedEngine) -> list[str]:
    return [e.id for e in engine.events(ev.Admitted)]


def one_seat(spec: str, **options: Any) -> AuditedEngine:
    return AuditedEngine(64, max_num_seqs=1, scheduling_policy=spec, **options)


def test_composition_goes_from_most_to_least_significant() -> None:
    """priority+deadline: deadlines decide inside one priority only; deadline+priority the other way round."""
    cases = {"p0 late": (0, 90.0), "p0 soon": (0, 50.0), "p9 none": (9, None), "p9 late": (9, 90.0)}
    orders = {
        "priority+deadline": ["p9 late", "p9 none", "p0 soon", "p0 late"],
        "deadline+priority": ["p0 soon", "p9 late", "p0 late", "p9 none"],
        "deadline": ["p0 soon", "p0 late", "p9 late", "p9 none"],
        "fcfs": list(cases),
    }
    for spec, expected in orders.items():
        engine = one_seat(spec)
        for name, (priority, timeout) in cases.items():
            engine.add(name, 4, 2, priority=priority, timeout=timeout)
        engine.run()
        assert admitted(engine) == expected


def test_fairness_inside_one_priority() -> None:
    engine = one_seat("priority+fair")
    for i in range(4):
        engine.add(f"x{i}", 4, 2, group="x", priority=1)
    engine.add("y0", 4, 2, group="y", priority=1)
    engine.add("y1", 4, 2, group="y", priority=0)
    engine.add("z", 4, 2, group="z", priority=2)
    engine.run()
    assert admitted(engine) == ["z", "x0", "y0", "x1", "x2", "x3", "y1"]


def test_shortest_job_by_what_is_declared_else_by_what_is_allowed() -> None:
    engine = one_seat("sjf")
    engine.add("allowed 9", 4, 9)
    engine.add("says 3", 4, 12, expected_tokens=3)
    engine.add("says 99, allowed 2", 4, 2, expected_tokens=99)
    engine.run()
    assert admitted(engine) == ["says 99, allowed 2", "says 3", "allowed 9"]


def test_noise_is_repeatable_and_makes_errors() -> None:
    def run(noise: float, seed: int) -> list[str]:
        engine = one_seat("sjf", sjf_noise=noise, seed=seed)
        for i in range(12):
            engine.add(f"r{i}", 4, 1 + i)
        engine.run()
        return admitted(engine)

    right = [f"r{i}" for i in range(12)]
    assert run(0.0, 1) == right != run(1.0, 1) == run(1.0, 1) != run(1.0, 2)


def test_levels_demote_skip_and_rescue() -> None:
    """mlfq: a long prompt joins below; a long output sinks; who starves goes to the top."""
    engine = AuditedEngine(64, max_num_seqs=2, scheduling_policy="mlfq", mlfq_quantum=8, mlfq_starvation=20.0)
    engine.add("sinks", 4, 40)
    engine.add("joins below", 30, 2)
    engine.step()
    assert engine.state.requests["joins below"].key[0] == 2  # 8, 16, 32
    assert engine.state.requests["sinks"].key[0] == 0
    for _ in range(12):
        engine.step()
    [demoted] = engine.events(ev.Demoted, "sinks")
    assert (demoted.before, demoted.after) == (0, 1) and engine.state.requests["sinks"].key[0] == 1
    engine.add("short 1", 4, 30)
    engine.add("short 2", 4, 1)
    engine.add("long", 30, 1)
    engine.step()
    assert admitted(engine)[-1] == "short 1"
    while not engine.events(ev.Promoted):
        engine.step()
    [rescued] = engine.events(ev.Promoted)
    assert (rescued.id, rescued.cause, rescued.before, rescued.after) == ("long", ev.MoveCause.STARVED, 2, 0)
    engine.run()


def test_many_that_starve_at_once_are_rescued_over_several_steps() -> None:
    engine = AuditedEngine(64, max_num_seqs=1, scheduling_policy="mlfq", mlfq_quantum=1, mlfq_starvation=2.0)
    engine.add("runs", 1, 30)
    engine.step()
    for i in range(150):
        engine.add(f"r{i}", 4, 1)
    rescued = []
    for _ in range(5):
        frame = engine.step()
        rescued.append(sum(isinstance(e, ev.Promoted) for e in frame.events))
    assert rescued == [0, 64, 64, 22, 0]


def test_aging_is_told_when_it_decided() -> None:
    engine = one_seat("priority", aging_rate=1.0)
    engine.add("old", 4, 2, priority=0)
    engine.add("first", 4, 20, priority=9)
    for _ in range(15):
        engine.step()
    engine.add("new", 4, 2, priority=9)
    engine.run()
    assert admitted(engine) == ["first", "old", "new"]
    [event] = engine.events(ev.Promoted)
    assert (event.id, event.cause, event.before) == ("old", ev.MoveCause.AGING, 0) and event.after < -9


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(1, 6)), min_size=1, max_size=40), st.sampled_from([0.5, 1, 2])
)
def test_aging_bounds_the_wait(later: list[tuple[int, int]], rate: float) -> None:
    """I8: wait ≤ Δpriority / rate + drain of those ahead: who comes later than Δ / rate is never admitted before."""
    engine = one_seat("priority", aging_rate=rate)
    engine.add("busy", 4, 3, priority=10)
    engine.step()
    engine.add("low", 4, 2, priority=0)
    arrivals = {}
    low_came = engine.clock.now()
    for i, (priority, outputs) in enumerate(later):
        engine.step()
        engine.add(f"r{i}", 4, outputs, priority=priority)
        arrivals[f"r{i}"] = engine.clock.now(), priority
    engine.run()
    ahead = list(itertools.takewhile(lambda name: name != "low", admitted(engine)))[1:]
    assert all((arrivals[name][0] - low_came) * rate <= arrivals[name][1] + 1e-9 for name in ahead)


def test_aging_protects_nobody_from_being_the_victim() -> None:
    """The victim rule `policy` compares raw priorities: the one that waited longest still gives way."""
    engine = AuditedEngine(6, scheduling_policy="priority", aging_rate=100.0, victim="policy")
    engine.add("low", 8, 12, priority=0)
    engine.step()
    engine.add("high", 8, 12, priority=5)
    while not engine.events(ev.Preempted):
        engine.step()
    [event] = engine.events(ev.Preempted)
    assert event.id == "low" and event.rank[0] == 0  # not the aged -100 · seconds
    assert engine.state.order(engine.state.requests["low"]) < engine.state.order(engine.state.requests["high"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "choose among"),
        ("nope", "'nope': choose among fcfs"),
        ("priority+", "choose among"),
        ("fair+fair", "once"),
        ("fcfs+fair", "put fcfs last"),
        (".py:A", "FILE.py:Class"),
        ("x.py:not a name", "FILE.py:Class"),
        (3, "give a text"),
    ],
)
def test_bad_specs(spec: Any, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        EngineConfig(scheduling_policy=spec)


def test_good_specs_and_weights() -> None:
    assert parse_spec(" priority + fair+fcfs ") == ("priority", "fair", "fcfs")
    assert parse_spec("./a/b.py:Mine+fcfs") == ("./a/b.py:Mine", "fcfs")
    assert parse_weights("a=2, b=0.5,") == {"a": 2.0, "b": 0.5}
    for bad in ("a", "a=0", "a=-1", "a=x", "=2", "a=inf", "a=nan", "a=1,a=2"):
        with pytest.raises(BadValue, match="group_weights"):
            EngineConfig(group_weights=bad)
