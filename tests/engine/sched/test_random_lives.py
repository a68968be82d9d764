"""Random lives, with groups, beams and faults, over small pools and budgets: every output is that of a quiet run.

I1, I2, I3 and I6 are looked at after every action (the audit), I4, I5 and I9 at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from vtop_support.lives import ACTIONS, OPTIONS, SWAPPED, SWAPPING, Action, live

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(OPTIONS, ACTIONS)
def test_random_lives(options: dict[str, Any], actions: list[Action]) -> None:
    live(options, actions)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(SWAPPING, SWAPPED)
def test_random_lives_between_two_pools(options: dict[str, Any], actions: list[Action]) -> None:
    live(options, actions)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=SLOW)
@given(SWAPPING, SWAPPED)
def test_random_lives_between_two_pools_long(options: dict[str, Any], actions: list[Action]) -> None:
    live(options, actions)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=SLOW)
@given(OPTIONS, ACTIONS)
def test_random_lives_long(options: dict[str, Any], actions: list[Action]) -> None:
    live(options, actions)


def test_tokens_kept_for_decodes_that_give_way_are_used() -> None:
    """I5: a chunk is skipped for as many decodes as the budget has; they find no block and go: the chunk runs.

    Found by test_random_lives_long: every step must compute something.
    """
    options = {
        "num_blocks": 21,
        "block_size": 1,
        "max_num_batched_tokens": 2,
        "max_model_len": 64,
        "admission": "first-chunk",
        "scheduling_policy": "deadline",
        "victim": "policy",
        "preemption_mode": "hybrid",
        "num_host_blocks_override": 20,
        "skip_ahead": 2,
        "enable_prefix_caching": True,
        "aging_rate": 0.7,
    }
    nothing: Action = ("nothing", 0, 0, 0)
    actions: dict[int, Action] = {
        35: ("group", 11, 16, 3),
        38: ("group", 9, 9, 4),
        39: ("group", 6, 12, 4),
        43: ("group", 1, 14, 4),
        51: ("shake", 10, 0, 0),
        52: ("switch", 2, 0, 0),
        56: ("abort", 10, 0, 0),
        57: ("group", 10, 13, 0),
        59: ("switch", 13, 0, 0),
    }
    live(options, [actions.get(serial, nothing) for serial in range(60)])
