"""Random lives, with groups, beams and faults, over small pools and budgets: every output is that of a quiet run.

I1, I2, I3 and I6 are looked at after every action (the audit), I4, I5 and I9 at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from vtop_support.lives import ACTIONS, OPTIONS, Action, live

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(OPTIONS, ACTIONS)
def test_random_lives(options: dict[str, Any], actions: list[Action]) -> None:
    live(options, actions)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=SLOW)
@given(OPTIONS, ACTIONS)
def test_random_lives_long(options: dict[str, Any], actions: list[Action]) -> None:
    live(options, actions)
