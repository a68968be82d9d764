"""Preemptions are bounded, whatever the victim rule and the policy. Random lives are in test_random_lives.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop_support.engines import AuditedEngine


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
