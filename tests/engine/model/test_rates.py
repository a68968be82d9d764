"""What is known of the speed of swaps and prefills."""

from __future__ import annotations

import math

from vtop.engine.executor import ExecutorRates
from vtop.engine.model.executor import REMEMBERED, RateMeter


def test_rates_are_medians_of_the_latest_measurements() -> None:
    meter = RateMeter(1000)
    for seconds in (1.0, 2.0, 50.0):
        meter.swapped(10, seconds)
    assert meter.rates.swap_bytes_per_second == 5000.0
    for _ in range(REMEMBERED):
        meter.swapped(8, 1.0)
    assert meter.rates.swap_bytes_per_second == 8000.0
    assert meter.rates.swap_seconds(4) == 0.5


def test_only_steps_that_mostly_compute_prompts_tell_the_prefill_rate() -> None:
    meter = RateMeter(1000)
    meter.computed(10, 90, 1.0)
    meter.computed(0, 1, 1.0)
    assert meter.rates == ExecutorRates(0.0, 0.0, 1000)
    meter.computed(90, 10, 0.5)
    assert meter.rates.prefill_tokens_per_second == 200.0
    assert meter.rates.prefill_seconds(50) == 0.25


def test_what_was_never_measured_takes_for_ever() -> None:
    meter = RateMeter(1000)
    meter.swapped(0, 1.0)
    meter.swapped(3, 0.0)
    assert meter.rates.swap_seconds(1) == meter.rates.prefill_seconds(1) == math.inf
