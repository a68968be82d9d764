"""What is kept of a run to measure it: one small record per request, and totals. Every fold of Frames keeps these.

EngineState's views of requests are such records with more to them; a Ledger has nothing else. What happens to a record
and to the totals stands here once, so that a number is the same whether it is shown live, read from a recording or
simulated; what is computed from them is in measures.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vtop.engine import events as ev

SHORTEST = 1e-6  # seconds; shorter ones share a bucket
WIDTH = math.log(1.01)  # a bucket is 1 % wide: so far off is a percentile at most


@dataclass(slots=True)
class RequestRecord:
    """A request. Times are engine seconds, None until they happen; tokens are counts over all its sequences.

    `deadline` is what its policy orders by: where its sender gave none, that is when it expires.
    """

    id: str
    number: int
    arrival: float
    prompt_tokens: int
    group: str
    priority: float
    samples: int  # sequences: samples, or beams
    deadline: float | None = None  # it should be done by then
    expires: float | None = None  # it is timed out then
    missed_deadline: bool = False
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    finish_reason: str = ""
    output_tokens: int = 0
    rounds: int = 0  # of a beam search that is over: tokens of its longest beam
    longest_gap: float = 0.0  # seconds between two output tokens
    preemptions: int = 0
    tokens_lost: int = 0
    hit_tokens: int = 0  # that need not be computed, over all admissions

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival to the first admission; waits after preemptions are none of it."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first output token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first; of several samples, per round of them."""
        rounds = (self.rounds or self.output_tokens / max(1, self.samples)) - 1
        if self.first_token is None or self.last_token is None or rounds <= 0:
            return None
        return (self.last_token - self.first_token) / rounds

    @property
    def e2e(self) -> float | None:
        """Seconds from arrival to end."""
        return None if self.ended is None else self.ended - self.arrival

    def search_over(self, rounds: int, now: float) -> float | None:
        """Its beam search is over after so many rounds. The tokens of a round that ended it are told by nobody, only
        what the search returns. Returns the gap that this round ended.
        """
        self.rounds = rounds
        if rounds <= -(-self.output_tokens // max(1, self.samples)):
            return None
        last, self.last_token = self.last_token, now
        if last is None:
            self.first_token = now
            return None
        self.longest_gap = max(self.longest_gap, now - last)
        return now - last


class Output(NamedTuple):
    """The output tokens of a step: whose first they are, tokens by group, and of the others how many requests had their
    last one at which time, each once however many samples it has.
    """

    first: list[str]
    groups: dict[str, int]
    lasts: dict[float, int]


@dataclass(slots=True)
class RunTotals:
    """Counters since the first Frame, of tokens, blocks, requests and events.

    What is said of blocks held is of what was held while a step was computed: after it was scheduled, before its tokens
    ended anybody.
    """

    arrived: int = 0
    first_arrival: float | None = None  # engine seconds
    sequences: int = 0  # of the requests that arrived
    prompt_tokens: int = 0  # likewise; a prompt of several samples counts once
    refused: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # by reason
    steps: int = 0
    failures: int = 0  # steps
    tokens_computed: int = 0
    tokens_recomputed: int = 0  # of these, what the same sequence had computed or found before
    tokens_lost: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    preempted_requests: int = 0
    swaps: int = 0  # of the preemptions
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    looked_up_tokens: int = 0  # by first admissions; each counts once
    hit_tokens: int = 0
    resumed_hit_tokens: int = 0  # found again after a preemption
    evictions: int = 0  # blocks
    copies: int = 0  # on write
    deadline_misses: int = 0  # of deadlines that a sender gave; a time-out is none
    peak_used: int = 0  # blocks
    peak_share: float = 0.0  # of the pool, as large as it was then
    kv_seconds: float = 0.0  # share of the pool that was held, integrated over time

    @property
    def outcomes(self) -> Counter[str]:
        """Ended requests by reason, refused ones too: at the door, and turned away from the queue."""
        outcomes = Counter(dict(sorted(self.finished.items())))
        if self.refused:
            outcomes["refused"] += self.refused
        return outcomes

    def arrive(self, record: RequestRecord) -> None:
        self.arrived += 1
        self.sequences += record.samples
        self.prompt_tokens += record.prompt_tokens
        if self.first_arrival is None or record.arrival < self.first_arrival:
            self.first_arrival = record.arrival

    def look_up(self, record: RequestRecord, e: ev.PrefixLookup) -> None:
        record.hit_tokens += e.hit
        if e.resumed:
            self.resumed_hit_tokens += e.hit
        else:
            self.looked_up_tokens += e.tokens
            self.hit_tokens += e.hit

    def hold(self, used: int, num_blocks: int) -> None:
        """A step is scheduled: so many blocks are held while it is computed."""
        if used > self.peak_used:
            self.peak_used = used
        share = used / max(1, num_blocks)
        if share > self.peak_share:
            self.peak_share = share

    def output(self, records: Mapping[str, RequestRecord], ids: Iterable[str], now: float) -> Output:
        """Each of `ids` has a token more, as often as it is named."""
        told = Output([], {}, {})
        first, groups, lasts = told
        for request_id in ids:
            record = records[request_id]
            last = record.last_token
            if last is None:
                record.first_token = now
                first.append(request_id)
            elif last < now:
                if now - last > record.longest_gap:
                    record.longest_gap = now - last
                lasts[last] = lasts.get(last, 0) + 1
            record.last_token = now
            record.output_tokens += 1
            group = record.group
            groups[group] = groups.get(group, 0) + 1
        self.output_tokens += sum(groups.values())
        return told

    def preempt(self, record: RequestRecord, e: ev.Preempted | ev.SwappedOut) -> None:
        self.preemptions += 1
        self.preempted_requests += not record.preemptions
        record.preemptions = e.count
        if isinstance(e, ev.SwappedOut):
            self.swaps += 1
            self.swapped_out_blocks += len(e.pairs)
        else:
            self.lose(record, e.tokens_lost)

    def lose(self, record: RequestRecord, tokens: int) -> None:
        """What was computed, or swapped out, must be computed again."""
        record.tokens_lost += tokens
        self.tokens_lost += tokens

    def miss_deadline(self, record: RequestRecord) -> None:
        record.missed_deadline = True
        self.deadline_misses += 1

    def finish(self, record: RequestRecord, e: ev.Finished, now: float) -> None:
        record.ended, record.finish_reason = now, e.reason
        self.finished[e.reason] += 1
        due = None if record.deadline == record.expires else record.deadline  # the time-out is no deadline
        if due is not None and now > due and not record.missed_deadline:
            self.miss_deadline(record)  # by the step that ended it

    def pass_time(self, before: float, used: float, ran: float, held: float) -> None:
        """`before` seconds up to a step with the share `used` of the pool, `ran` seconds of the step with `held`."""
        self.kv_seconds += used * before + held * ran


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
class _Bucket:
    """Times that differ by 1 % at most."""

    count: int
    least: float
    most: float

    def place(self, number: int) -> float:
        """About the time at place `number` (0 … count - 1) of them in order; the two ends are exact."""
        share = number / (self.count - 1) if self.count > 1 else 0.0
        return self.least + (self.most - self.least) * share


class GapHistogram:
    """A histogram of times, so that a million gaps between tokens take no more room than a hundred. Times in seconds.

    Count, mean and extremes are exact. Percentiles are those of `measures.percentile`, within 1 %; of equal times they
    are that time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self._buckets: dict[int, _Bucket] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a time, or `count` equal ones."""
        self.count += count
        self.total += seconds * count
        if seconds > self.most:
            self.most = seconds
        number = int(math.log(seconds / SHORTEST) / WIDTH) if seconds > SHORTEST else -1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = _Bucket(count, seconds, seconds)
            return
        bucket.count += count
        if seconds > bucket.most:
            bucket.most = seconds
        elif seconds < bucket.least:
            bucket.least = seconds

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, share: float) -> float:
        """The time below which `share` (0 … 1) of all lie, interpolated linearly; NaN for none."""
        if not self.count:
            return math.nan
        place = share * (self.count - 1)
        low = math.floor(place)
        at_low = self._place(low)
        return at_low if low == place else at_low + (self._place(low + 1) - at_low) * (place - low)

    def _place(self, number: int) -> float:
        for _, bucket in sorted(self._buckets.items()):
            if number < bucket.count:
                return bucket.place(number)
            number -= bucket.count
        return self.most
