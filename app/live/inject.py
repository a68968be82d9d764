"""Makes AddRequest commands out of what a person typed or chose, with ids that nobody else has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vtop.app.live.burst import Lengths, burst_prompts
from vtop.engine.commands import AddRequest
from vtop.engine.request import SamplingParams

MAX_PROMPT = 64 * 1024  # characters; a longer paste is cut


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the inject form asks for."""

    prompt: str
    params: SamplingParams
    priority: float = 0
    group: str = "default"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Burst:
    """What the burst dialog asks for. `mean` is the mean prompt length where the distribution has one."""

    count: int
    lengths: Lengths
    mean: int
    seed: int
    params: SamplingParams
    group: str = "default"


class Injector:
    """Numbers requests r1, r2, … and bursts b1-1, b1-2, …"""

    def __init__(self, params: SamplingParams, cache_salt: str = "") -> None:
        self.params = params
        self._salt = cache_salt
        self._requests = 0
        self._bursts = 0

    def skip(self, requests: int, bursts: int) -> None:
        """So many requests and bursts were numbered by somebody else."""
        self._requests += requests
        self._bursts += bursts

    def typed(self, prompt: str) -> AddRequest:
        """One request with the default parameters."""
        return AddRequest(self._next_id(), prompt, self.params, cache_salt=self._salt)

    def wanted(self, wanted: Wanted) -> Iterator[AddRequest]:
        """`count` requests; with a seed each gets its own, so that they differ but can be repeated."""
        for index in range(wanted.count):
            params = wanted.params
            if params.seed is not None and index:
                params = replace(params, seed=params.seed + index)
            name = self._next_id()
            yield AddRequest(name, wanted.prompt, params, wanted.priority, wanted.group, cache_salt=self._salt)

    def burst(self, burst: Burst) -> Iterator[AddRequest]:
        """The requests of a burst."""
        self._bursts += 1
        prompts = burst_prompts(burst.lengths, burst.count, burst.seed, burst.mean)
        for index, prompt in enumerate(prompts, 1):
            name = f"b{self._bursts}-{index}"
            yield AddRequest(name, prompt, burst.params, 0, burst.group, cache_salt=self._salt)

    def _next_id(self) -> str:
        self._requests += 1
        return f"r{self._requests}"
