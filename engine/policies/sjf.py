"""Shortest job first."""

from __future__ import annotations

import math
import random

from vtop.engine.policies.base import Policy
from vtop.engine.request import Key, Request


class ShortestJob(Policy):
    """By the output tokens a request is expected to give: as declared (`expected_tokens`), else the most it may give.

    `noise` makes the estimate wrong on purpose, as a predictor's would be: it is multiplied by exp(noise · g) with g
    from a normal distribution, drawn from (seed, number), so that a run can be repeated.
    """

    name = "sjf"

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self._noise = noise
        self._seed = seed

    def key(self, request: Request) -> Key:
        expected = float(expected_output(request))
        if self._noise:
            expected *= math.exp(self._noise * random.Random(f"{self._seed}:{request.number}").gauss(0.0, 1.0))
        return (expected,)


def expected_output(request: Request) -> int:
    """Output tokens the request is expected to give, never more than it may."""
    most = request.limit - request.prompt_len
    return most if request.expected_tokens is None else min(request.expected_tokens, most)
