"""For the whole suite: few workers with one torch thread each, so that they do not wait for one another."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("vtop", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no time is asserted
settings.load_profile("vtop")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: one more than there are cores, since many tests wait for a program on a terminal.

    Every worker holds torch and compiled kernels of its own, so more than four gain nothing.
    """
    return min(4, (os.cpu_count() or 1) + 1)
