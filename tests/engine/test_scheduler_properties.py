"""Random life over small pools: I1, I2, I3, I5 and I6 after every step, and every output equals an undisturbed run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop_support.engines import AuditedEngine
from vtop_support.stub import expected_output

OPTIONS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(2, 14),
        "block_size": st.sampled_from([1, 4, 16]),
        "max_num_batched_tokens": st.sampled_from([1, 7, 16, 64]),
        "max_num_seqs": st.sampled_from([1, 3, 8]),
        "batching": st.sampled_from(["chunked", "prefill-first"]),
        "admission": st.sampled_from(["reserve-full-prompt", "first-chunk"]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "max_model_len": st.sampled_from([24, 64]),
        "scheduling_policy": st.sampled_from(
            ["fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair", "mlfq+fair+sjf"]
        ),
        "aging_rate": st.sampled_from([0.0, 0.7]),
        "mlfq_quantum": st.sampled_from([2, 32]),
        "victim": st.sampled_from(["latest", "policy", "least-computed", "most-blocks"]),
        "preemption_mode": st.sampled_from(["recompute", "swap", "hybrid"]),
        "num_host_blocks_override": st.sampled_from([0, 3, 20]),
        "preempt_for_waiting": st.booleans(),
        "skip_ahead": st.sampled_from([0, 2]),
        "max_waiting": st.sampled_from([None, 4]),
    }
)
SWITCHES: list[tuple[str, Any]] = [
    *(
        ("scheduling_policy", spec)
        for spec in ("fcfs", "priority", "fair", "sjf", "mlfq", "priority+fair", "fair+mlfq")
    ),
    *(("victim", rule) for rule in ("latest", "policy", "least-computed", "most-blocks")),
    *(("preempt_for_waiting", value) for value in (True, False)),
    *(("preemption_mode", mode) for mode in ("recompute", "swap", "hybrid")),
    *(("batching", value) for value in ("chunked", "prefill-first")),
    *(("admission", value) for value in ("reserve-full-prompt", "first-chunk")),
    *(("max_num_batched_tokens", value) for value in (1, 9, None)),
    *(("max_num_seqs", value) for value in (1, 5)),
    *(("watermark", value) for value in (0.0, 0.3)),
    *(("group_weights", value) for value in ("", "g0=4,g1=0.5")),
    *(("priority_order", value) for value in ("high-first", "low-first")),
    *(("mlfq_levels", value) for value in (1, 6)),
    *(("skip_ahead", value) for value in (0, 1, 3)),
]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 20)),
        st.tuples(st.just("add"), st.integers(1, 12), st.integers(1, 20)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("resize"), st.integers(1, 16), st.just(0)),
        st.tuples(st.just("timeout"), st.integers(1, 12), st.integers(1, 5)),
        st.tuples(st.just("switch"), st.integers(0, len(SWITCHES) - 1), st.just(0)),
        st.tuples(st.just("fault"), st.just(0), st.just(0)),
        st.tuples(st.just("priority"), st.integers(0, 30), st.integers(-3, 3)),
    ),
    max_size=40,
)


def drive(options: dict[str, Any], actions: list[tuple[str, int, int]]) -> None:
    engine = AuditedEngine(**options)
    prompts: dict[str, list[int]] = {}
    for serial, (action, a, b) in enumerate(actions):
        if action in ("add", "timeout"):
            request_id = f"r{serial}"
            prompt = [3 + (serial % 3 * 37 + i) % 900 for i in range(a)]  # some share a beginning
            more: dict[str, Any] = {"timeout": float(b)} if action == "timeout" else {}
            more |= {"priority": (serial * 7) % 5 - 2, "group": f"g{serial % 3}"}
            if serial % 4 == 3:
                more |= {"n": 3, "temperature": 1.0}
            if serial % 8 == 5:
                more |= {"beam_width": 3}
            try:
                engine.add(request_id, prompt, max_tokens=16 if action == "timeout" else b, **more)
                prompts[request_id] = prompt
            except BadValue:
                engine.check()
                assert engine.events(ev.Refused, request_id), "a refusal without its event"
        elif action == "abort":
            engine.engine.abort_request(f"r{a}")
        elif action == "resize":
            engine.engine.resize_pool(a)
        elif action == "switch":
            engine.engine.set_option(*SWITCHES[a])
        elif action == "fault":  # I9: the next step's executor raises; its batch ends, everybody else goes on
            engine.executor.fail_at.add(engine.executor.calls + 1)  # type: ignore[attr-defined]
        elif action == "priority":
            engine.engine.set_priority(f"r{a}", b)
        else:
            for _ in range(a):
                step_checked(engine)
        engine.check()
    for _ in range(3000):
        if not engine.engine.has_unfinished_requests():
            break
        step_checked(engine)
    assert not engine.engine.has_unfinished_requests(), "I5: somebody never ends"
    assert engine.state.used == 0, "I6"
    assert engine.state.totals.arrived == sum(engine.state.totals.finished.values())
    for request_id, prompt in prompts.items():
        view = engine.state.find(request_id)
        assert view is not None
        if int(request_id[1:]) % 8 == 5:
            continue  # beams are compared with transformers' elsewhere
        for index, seq in enumerate(view.sequences):
            given_tokens = seq.output_tokens
            assert given_tokens == expected_output(prompt, len(given_tokens), index), "I4 on the stub"


def step_checked(engine: AuditedEngine) -> None:
    """One step: within the budget, no entry without work, nobody left out without a reason (E020, E021, E025)."""
    alive = engine.engine.get_num_unfinished_requests()
    running_before = {r.id for r in engine.state.running.values()}
    frame = engine.step()
    ran = engine.ran(frame)
    budget = engine.engine._scheduler.token_budget
    assert sum(ran.values()) <= budget and all(tokens >= 1 for tokens in ran.values())
    assert engine.state.used <= engine.state.num_blocks
    if alive and engine.engine.get_num_unfinished_requests() == alive:
        assert engine.engine.last_step_ran, "I5: a step without work"
    left_out = running_before & set(engine.state.running) - set(ran)
    if left_out and engine.engine.config.batching == "chunked":
        assert sum(ran.values()) == budget or engine.state.last_step.limit is ev.Limit.BUDGET


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPTIONS, ACTIONS)
def test_random_life(options: dict[str, Any], actions: list[tuple[str, int, int]]) -> None:
    drive(options, actions)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPTIONS, ACTIONS)
def test_random_life_long(options: dict[str, Any], actions: list[tuple[str, int, int]]) -> None:
    drive(options, actions)


@pytest.mark.parametrize("victim", ["latest", "policy", "least-computed", "most-blocks"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), min_size=2, max_size=10),
    st.integers(10, 16),
    st.sampled_from([4, 8, 64]),
)
def test_preemptions_are_bounded(
    policy: str, victim: str, sizes: list[tuple[int, int]], num_blocks: int, budget: int
) -> None:
    """A victim yields at least one token before it can be a victim again."""
    engine = AuditedEngine(num_blocks, max_num_batched_tokens=budget, scheduling_policy=policy, victim=victim)
    for i, (prompt, output) in enumerate(sizes):
        engine.add(f"r{i}", prompt, output, priority=i % 3, group="ab"[i % 2])
    outputs_at: dict[str, list[int]] = {}
    while engine.engine.has_unfinished_requests():
        before = {r.id: r.output_tokens for r in engine.state.requests.values()}
        frame = engine.step()
        for event in frame.events:
            if isinstance(event, ev.Preempted):
                outputs_at.setdefault(event.id, []).append(before[event.id])
    for request_id, counts in outputs_at.items():
        assert counts == sorted(set(counts)), f"{request_id} was preempted twice without a token between: {counts}"
