"""Earliest deadline first."""

from __future__ import annotations

from vtop.engine.policies.base import Policy
from vtop.engine.request import Key, Request


class Deadline(Policy):
    """By the time at which the request should be done, or else is timed out; those without one come last."""

    name = "deadline"
    width = 2  # not one number with infinity for "none": JSON has no infinity

    def key(self, request: Request) -> Key:
        return (1.0, 0.0) if request.deadline is None else (0.0, request.deadline)
