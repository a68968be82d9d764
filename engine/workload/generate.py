"""Generated workloads: arrivals, lengths and mixes are declared in a WorkloadSpec and drawn from a seed.

Every aspect has a random stream of its own, so that changing one field (the mix of priorities, say) leaves arrivals
and lengths as they were.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vtop.engine.errors import BadValue
from vtop.engine.workload.distributions import (
    ClosedLoop,
    Fixed,
    Lengths,
    Lognormal,
    OpenArrivals,
    Poisson,
    check_count,
    check_not_negative,
    check_positive,
)
from vtop.engine.workload.jobs import Job, Workload

T = TypeVar("T")
Mix = Sequence[tuple[T, float]]  # values with their shares; shares need not sum to 1


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`count` system prompts of `tokens` tokens, before the prompt of a `share` of the sessions; drawn, or in turn."""

    count: int
    tokens: int
    share: float = 1.0
    in_turn: bool = False

    def __post_init__(self) -> None:
        check_count("count", self.count)
        check_count("tokens", self.tokens)
        if not 0 <= self.share <= 1:
            raise BadValue("share", self.share, "use a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What a workload is made of; `generate` draws it. Mixes are (value, share) pairs. Raises BadValue.

    `requests` are jobs in all, turns counted; with `seconds`, sessions that would start later are left out. A session
    has `turns` requests: each arrives `think` seconds (on average) after the end of the one before, and its prompt is
    the conversation so far and `prompt` new tokens; a prefix comes on top too. Rates are of requests: sessions begin as
    much more rarely as they have turns on average. `deadlines` and `timeouts` are seconds from arrival; `samples` are
    n. With `expected_error`, jobs say how many output tokens they expect, wrong by a lognormal factor of that sigma.
    """

    name: str = "generated"
    requests: int = 100
    seconds: float | None = None
    arrivals: OpenArrivals | ClosedLoop = field(default_factory=lambda: Poisson(1.0))
    prompt: Lengths = field(default_factory=lambda: Lognormal(200, 0.8, high=4096))
    output: Lengths = field(default_factory=lambda: Lognormal(100, 0.8, high=2048))
    turns: Lengths = field(default_factory=lambda: Fixed(1))
    think: float = 0.0
    prefixes: Prefixes | None = None
    groups: Mix[str] = (("default", 1.0),)
    priorities: Mix[float] = ((0, 1.0),)
    deadlines: Mix[float | None] = ((None, 1.0),)
    timeouts: Mix[float | None] = ((None, 1.0),)
    samples: Mix[int] = ((1, 1.0),)
    beams: Mix[int | None] = ((None, 1.0),)
    expected_error: float | None = None

    def __post_init__(self) -> None:
        check_count("requests", self.requests)
        if self.seconds is not None:
            check_positive("seconds", self.seconds, "seconds")
        check_not_negative("think", self.think, "seconds")
        for name in ("groups", "priorities", "deadlines", "timeouts", "samples", "beams"):
            _mix(name, getattr(self, name))
        for name in ("deadlines", "timeouts"):
            for value, _ in getattr(self, name):
                if value is not None:
                    check_positive(name, value, "seconds from arrival")
        for name in ("samples", "beams"):
            for value, _ in getattr(self, name):
                if value is not None:
                    check_count(name, value)
        if self.expected_error is not None:
            check_not_negative("expected_error", self.expected_error, "of the logarithm")


def generate(spec: WorkloadSpec, seed: int = 0) -> Workload:
    """Draw a workload. The same spec and seed give the same one. Raises BadValue when nothing arrives."""
    sessions = _Sessions(spec, seed)
    if isinstance(spec.arrivals, ClosedLoop):
        jobs = sessions.closed(spec.arrivals)
    else:
        jobs = sessions.open(_arrivals(spec.arrivals, spec.turns.mean, _stream(seed, "arrivals")))
    if not jobs:
        raise BadValue("seconds", spec.seconds, "no request arrives in this time; use more, or a higher rate")
    return Workload(spec.name, tuple(jobs))


def _arrivals(arrivals: OpenArrivals, turns: float, rng: random.Random) -> Iterator[float]:
    """Independent sessions of `turns` requests on average, at a rate of requests that changes: equal ones on the scale
    of what is expected, brought to time."""
    mass = 0.0
    while True:
        mass += rng.expovariate(1.0) * turns
        yield arrivals.time(mass)


class _Sessions:
    """Draws sessions and makes their turns into jobs."""

    def __init__(self, spec: WorkloadSpec, seed: int) -> None:
        self.spec = spec
        self._rng = {name: _stream(seed, name) for name in (*_MIXES, "lengths", "turns", "think", "prefix", "expected")}
        self._started = 0

    def open(self, arrivals: Iterable[float]) -> list[Job]:
        """Sessions that begin at `arrivals`; the turns of one stand together."""
        jobs: list[Job] = []
        latest = math.inf if self.spec.seconds is None else self.spec.seconds
        for at in arrivals:
            if at > latest or at == math.inf or len(jobs) == self.spec.requests:
                break
            for job in self._session(at, None, self._next_name()):
                jobs.append(job)
                if len(jobs) == self.spec.requests:
                    break
        return jobs

    def closed(self, loop: ClosedLoop) -> list[Job]:
        """The clients take turns, so that the first n jobs of the workload are the first of every client."""
        clients = [self._client(loop) for _ in range(min(loop.clients, self.spec.requests))]
        return [next(clients[i % len(clients)]) for i in range(self.spec.requests)]

    def _client(self, loop: ClosedLoop) -> Iterator[Job]:
        last: Job | None = None
        while True:
            at, after = (0.0, None) if last is None else (self._pause(loop.think), last.id)
            for job in self._session(at, after, self._next_name()):
                yield job
                last = job

    def _next_name(self) -> str:
        self._started += 1
        return str(self._started - 1)

    def _session(self, at: float, after: str | None, name: str) -> Iterator[Job]:
        """The turns of one session. An answer is new to the cache when the next turn sends it, and then shared too."""
        spec = self.spec
        turns = spec.turns.draw(self._rng["turns"])
        common = {field: self._chosen(mix) for mix, field in _MIXES.items() if mix in ("groups", "priorities")}
        prefix = self._system_prompt()
        for turn in range(turns):
            prompt, output = self._lengths()
            if turns > 1:
                prefix = (*prefix, (f"session {name} question {turn}", prompt))
            job = Job(
                id=name if turns == 1 else f"{name}.{turn}",
                at=at,
                after=after,
                prompt_tokens=sum(tokens for _, tokens in prefix) + (prompt if turns == 1 else 0),
                output_tokens=output,
                prefix=prefix,
                expected_tokens=self._expected(output),
                **common,
                **{field: self._chosen(mix) for mix, field in _MIXES.items() if field not in common},
            )
            yield job
            prefix = (*prefix, (f"session {name} answer {turn}", output))
            at, after = self._pause(spec.think), job.id

    def _system_prompt(self) -> tuple[tuple[str, int], ...]:
        prefixes, rng = self.spec.prefixes, self._rng["prefix"]
        if prefixes is None or rng.random() >= prefixes.share:
            return ()
        drawn = rng.randrange(prefixes.count)
        return ((f"prefix {(self._started - 1) % prefixes.count if prefixes.in_turn else drawn}", prefixes.tokens),)

    def _lengths(self) -> tuple[int, int]:
        rng = self._rng["lengths"]
        return self.spec.prompt.draw(rng), self.spec.output.draw(rng)

    def _chosen(self, mix: str) -> Any:
        values: Mix[Any] = getattr(self.spec, mix)
        if len(values) == 1:
            return values[0][0]
        return self._rng[mix].choices([value for value, _ in values], [share for _, share in values])[0]

    def _pause(self, mean: float) -> float:
        return self._rng["think"].expovariate(1 / mean) if mean else 0.0

    def _expected(self, output: int) -> int | None:
        error = self.spec.expected_error
        if error is None:
            return None
        return max(1, round(output * math.exp(min(error * self._rng["expected"].gauss(), 20.0))))


_MIXES = {  # of a WorkloadSpec -> the field of Job; groups and priorities are those of a whole session
    "groups": "group",
    "priorities": "priority",
    "deadlines": "deadline",
    "timeouts": "timeout",
    "samples": "n",
    "beams": "beam_width",
}


def _stream(seed: int, aspect: str) -> random.Random:
    return random.Random(f"{seed}/{aspect}")


def _mix(name: str, mix: Mix[Any]) -> None:
    if not mix:
        raise BadValue(name, mix, "give at least one (value, share)")
    for pair in mix:
        if len(pair) != 2 or not (math.isfinite(pair[1]) and pair[1] >= 0):
            raise BadValue(name, pair, "use (value, share) with a share of 0 or more")
    if not sum(share for _, share in mix):
        raise BadValue(name, mix, "give at least one share above 0")
