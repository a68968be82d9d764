"""What a Ledger keeps: one small record per request, samples over time, totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """A request. Times are engine seconds, None until they happen; tokens are counts over all its samples.

    `deadline` is one that its sender gave; a request that is only timed out has none.
    """

    id: str
    number: int
    arrival: float
    prompt_tokens: int
    group: str
    priority: int
    samples: int
    deadline: float | None = None
    missed: bool = False
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    reason: str = ""
    output_tokens: int = 0
    longest_gap: float = 0.0
    preemptions: int = 0
    tokens_lost: int = 0
    hit_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; of several samples, per round of them."""
        rounds = self.output_tokens / self.samples - 1
        if self.first_token is None or self.last_token is None or rounds <= 0:
            return None
        return (self.last_token - self.first_token) / rounds

    @property
    def e2e(self) -> float | None:
        return None if self.ended is None else self.ended - self.arrival

    @property
    def wait(self) -> float | None:
        """Seconds from arrival to the first admission."""
        return None if self.admitted is None else self.admitted - self.arrival


@dataclass(slots=True)
class Sample:
    """The engine at the end of a step; `used` is how many blocks were held while it was computed."""

    time: float
    used: int
    waiting: int
    running: int
    swapped: int
    preemptions: int  # so far
    output_tokens: int  # so far
    service: dict[str, float]  # per group, so far; see Ledger.service


@dataclass(slots=True)
class Refusals:
    """Requests that were refused for one reason, and the message of the first of them."""

    count: int
    example: str


@dataclass(slots=True)
class Counts:
    """Totals. Tokens, blocks and events; seconds for the two times.

    Peaks of blocks and table entries are of what was held while a step was computed: after it was scheduled, before its
    tokens ended anybody.
    """

    steps: int = 0
    computed: int = 0
    prefill: int = 0  # of the computed ones, those of prompts
    output: int = 0
    lost: int = 0
    preemptions: int = 0
    swaps: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    recomputed_victims: Counter[str] = field(default_factory=Counter)  # id -> preemptions by recompute
    copies: int = 0
    evictions: int = 0
    looked_up: int = 0
    hit: int = 0
    recomputed: int = 0  # of the computed ones, those that the same sequence had computed or found before
    looked_up_blocks: int = 0  # blocks of first lookups, the last partial one not counted
    hit_blocks: int = 0
    refused: int = 0
    deadline_misses: int = 0
    peak_used: int = 0
    peak_share: float = 0.0  # of the pool, as large as it was then
    peak_entries: int = 0  # table entries: blocks as if nothing were shared
    peak_swapped: int = 0
    peak_waiting: int = 0
    failed_steps: int = 0
    busy: float = 0.0
    swapping: float = 0.0
    service_gap: float = 0.0  # the most that two groups' service ever differed
    kv_seconds: float = 0.0  # share of the pool that was held, integrated over time
