"""What a run amounts to: every measure, computed from records of requests and totals. Pure functions.

It is the same whether the run is live, recorded or simulated: EngineState and Ledger keep the same records.
`summarise` makes the summary of a run with an engine, `measures` the flat table of a simulated one. Times are engine
seconds.

Definitions. TTFT: first token - arrival. TPOT: (last - first) / (tokens - 1), per request; of several samples, per
round of them. ITL: every gap between two tokens of a request. e2e: end - arrival. queue time: first admission -
arrival; waits after a preemption are none of it. Latencies are of requests that ended by themselves (stop, length,
capacity): an aborted one says nothing about speed. Percentiles interpolate linearly between the two nearest values; of
no values there is none.
requests: all that came, refused ones too. sequences: of those that were accepted, one each or as many as it has samples
or beams. goodput: requests per second that meet both limits; slo met: their share of all requests. recompute tax:
tokens that their sequence had computed (or found in the prefix cache) before, and that a preemption threw away, of all
computed. deadline misses: of deadlines that were given; a time-out alone is none.
KV use: blocks held, of all, averaged over time; while a step is computed those count that it was scheduled with, also
where its tokens then end a request, and between steps what the last one left. KV peak: the most of them in any step.
Fill: of the slots of blocks held, those that hold K/V, over all steps; the rest is internal fragmentation.
Jain: (sum x)^2 / (n sum x^2) over the groups, of what each got of what was due to it while it was contested. A step is
contested when at least two groups still have requests waiting (preempted ones too) after its admissions; what it gave
these groups (prompt tokens + 2 * output tokens, each counted once) was due to them by their group_weights, or in equal
parts. Over a whole run service is what was asked for, whoever goes first, so that would tell nothing. With two groups
it is Jain's index of service / weight in contested steps; NaN when there was none.
wasted: output tokens of requests that timed out. overtaken: the most later arrivals that were admitted before one
request. cv: standard deviation / mean of e2e. urgent: of the priority that goes first by `low_first`, which a
comparison sets for all its runs by its base configuration's priority_order, so that they tell of the same requests
whatever order a policy has; else by the run's own. worst group: the one with the highest mean TTFT; smallest group: the
one with the fewest requests. These are NaN unless there are two priorities, two groups. service bound: what VTC proves
of the difference of two groups' service while both have requests waiting, 2 * max(longest prompt, 2 * tokens the pool
holds).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vtop.engine.request import FinishReason
from vtop.engine.state.fold import EngineState
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.records import RequestRecord, RunTotals

COMPLETED = frozenset({FinishReason.STOP.value, FinishReason.LENGTH.value, FinishReason.CAPACITY.value})
SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
LATENCIES: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": lambda r: r.ttft,
    "tpot": lambda r: r.tpot,
    "e2e": lambda r: r.e2e,
    "wait": lambda r: r.queue_time,
}


# --- of records and totals --------------------------------------------------------------------------------------------


def completed(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Those that ended by themselves."""
    return [r for r in records if r.finish_reason in COMPLETED]


def latencies(records: Iterable[RequestRecord], name: str) -> list[float]:
    """One of LATENCIES of all that have it; seconds."""
    of = LATENCIES[name]
    return [value for r in records if (value := of(r)) is not None]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 … 1) of `values` lies, interpolated linearly; NaN for no values."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share is between 0 and 1, not {share}")
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """NaN for no values."""
    return math.fsum(values) / len(values) if values else math.nan


def part_of(values: Sequence[float], part: str) -> float:
    """Their "mean", "max", or a percentile, as "p95"; NaN for no values."""
    if part == "mean":
        return mean(values)
    if part == "max":
        return max(values, default=math.nan)
    return percentile(values, int(part[1:]) / 100)


def per_second(amount: float, seconds: float) -> float:
    """0 in no time."""
    return amount / seconds if seconds > 0 else 0.0


def seconds_of(totals: RunTotals, now: float) -> float:
    """From the first arrival to `now`; 0 when nobody came."""
    return 0.0 if totals.first_arrival is None else max(0.0, now - totals.first_arrival)


def recompute_tax(totals: RunTotals) -> float:
    """Share of all computed tokens that had been computed before; 0 when nothing was computed."""
    return totals.tokens_recomputed / totals.tokens_computed if totals.tokens_computed else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What goodput asks of a request, in seconds: the conversational limits that MLPerf has for an 8B model."""

    ttft: float = 2.0
    tpot: float = 0.1


def meets(record: RequestRecord, limits: Limits) -> bool:
    """Whether a request was served within both limits; one of a single token has no TPOT to miss."""
    ttft, tpot = record.ttft, record.tpot
    return ttft is not None and ttft <= limits.ttft and (tpot is None or tpot <= limits.tpot)


def smallest_group(records: Iterable[RequestRecord]) -> str | None:
    """The group with the fewest requests, the later name of equals; None unless there are two groups."""
    sizes = Counter(r.group for r in records)
    return max(sizes, key=lambda group: (-sizes[group], group)) if len(sizes) > 1 else None


def jain(shares: Iterable[float]) -> float:
    """1 when all are equal, 1/n when one has everything; NaN for none."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else math.nan


def overtakings(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Per id, how many that arrived later were admitted first; one never admitted counts all that were."""
    arrived = sorted(records, key=lambda r: (r.arrival, r.number))
    seen: list[tuple[float, int]] = []  # admissions of later arrivals, in order
    found = {}
    for place in range(len(arrived) - 1, -1, -1):
        record = arrived[place]
        own = (math.inf, place) if record.first_scheduled is None else (record.first_scheduled, -1)
        found[record.id] = bisect_left(seen, own)
        if record.first_scheduled is not None:
            entry = (record.first_scheduled, place)
            seen.insert(bisect_left(seen, entry), entry)
    return found


# --- of a run with an engine ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, mean, percentiles and extremes of a set of values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in numbers. `seconds` is engine time from the first arrival to the last Frame; rates are over it.

    `outcomes` counts ended and refused requests by reason, `unfinished` those still alive. `counted` is how many ended
    requests the spreads are made of: the state keeps a bounded number of them. All else is of every request.
    """

    seconds: float
    steps: int
    arrived: int
    sequences: int
    unfinished: int
    outcomes: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    output_tokens_per_second: float
    computed_tokens_per_second: float
    requests_per_second: float
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    preemptions: int
    preempted_requests: int
    tokens_lost: int
    recompute_tax: float
    num_blocks: int
    peak_blocks: int
    peak_kv: float
    mean_kv: float
    fill: float
    peak_running: int
    peak_sequences: int
    failed_steps: int
    counted: int


def spread(values: Iterable[float]) -> Spread | None:
    """None when there are no values."""
    known = sorted(values)
    if not known:
        return None
    return Spread(
        count=len(known),
        mean=mean(known),
        p50=percentile(known, 0.50),
        p90=percentile(known, 0.90),
        p99=percentile(known, 0.99),
        least=known[0],
        most=known[-1],
    )


def summarise(state: EngineState) -> RunSummary:
    """The run up to now."""
    totals = state.totals
    done = completed(state.finished)
    seconds = seconds_of(totals, state.time)
    return RunSummary(
        seconds=seconds,
        steps=totals.steps,
        arrived=totals.arrived,
        sequences=totals.sequences,
        unfinished=len(state.requests),
        outcomes=dict(totals.outcomes),
        prompt_tokens=totals.prompt_tokens,
        output_tokens=totals.output_tokens,
        computed_tokens=totals.tokens_computed,
        output_tokens_per_second=per_second(totals.output_tokens, seconds),
        computed_tokens_per_second=per_second(totals.tokens_computed, seconds),
        requests_per_second=per_second(sum(totals.finished[reason] for reason in COMPLETED), seconds),
        ttft=spread(latencies(done, "ttft")),
        tpot=spread(latencies(done, "tpot")),
        e2e=spread(latencies(done, "e2e")),
        preemptions=totals.preemptions,
        preempted_requests=totals.preempted_requests,
        tokens_lost=totals.tokens_lost,
        recompute_tax=recompute_tax(totals),
        num_blocks=state.num_blocks,
        peak_blocks=totals.peak_used,
        peak_kv=totals.peak_share,
        mean_kv=per_second(totals.kv_seconds, seconds),
        fill=totals.filled_slots / totals.held_slots if totals.held_slots else 0.0,
        peak_running=totals.peak_running,
        peak_sequences=totals.peak_sequences,
        failed_steps=totals.failures,
        counted=len(state.finished),
    )


# --- of a simulated run -----------------------------------------------------------------------------------------------


Measures = dict[str, float]
"""Named numbers; NaN where there is nothing to measure. Seconds, tokens, blocks, shares (0 … 1)."""


def measures(ledger: Ledger, limits: Limits | None = None, low_first: bool | None = None) -> Measures:
    """All measures of a run. `low_first` says which priority is urgent; None: the one that went first in this run."""
    limits = limits or Limits()
    totals, records = ledger.totals, ledger.records
    came = totals.arrived + totals.refused
    if low_first is None:
        low_first = ledger.meta.config.get("priority_order") == "low-first"
    done = completed(records)
    seconds = seconds_of(totals, ledger.time)
    found: Measures = {}
    for name in LATENCIES:
        _spread(found, name, latencies(done, name))
    found["itl_mean"] = ledger.gaps.mean
    for label, share in SHARES:
        found[f"itl_{label}"] = ledger.gaps.percentile(share)
    found["itl_max"] = ledger.gaps.most
    good = sum(1 for r in done if meets(r, limits))
    wasted = sum(r.output_tokens for r in records if r.finish_reason == "timeout")
    found |= {
        "seconds": seconds,
        "requests": float(came),
        "sequences": float(totals.sequences),
        "completed": float(len(done)),
        "tokens_per_second": per_second(totals.output_tokens, seconds),
        "requests_per_second": per_second(len(done), seconds),
        "computed_per_second": per_second(totals.tokens_computed, seconds),
        "preemptions": float(totals.preemptions),
        "preempted_requests": float(totals.preempted_requests),
        "swaps": float(totals.swaps),
        "swapped_blocks": float(totals.swapped_out_blocks + totals.swapped_in_blocks),
        "recompute_tax": recompute_tax(totals),
        "lost_tokens": float(totals.tokens_lost),
        "kv_use": per_second(totals.kv_seconds, seconds),
        "kv_peak": totals.peak_share,
        "hit_rate": totals.hit_tokens / totals.looked_up_tokens if totals.looked_up_tokens else 0.0,
        "evictions": float(totals.evictions),
        "copies": float(totals.copies),
        "goodput": per_second(good, seconds),
        "slo_met": good / came if came else math.nan,
        "jain": jain(got / due for got, due in ledger.contested.values()),
        "timeouts": float(totals.finished["timeout"]),
        "refused": float(totals.refused),
        "wasted_tokens": float(wasted),
        "deadline_misses": float(totals.deadline_misses),
        "overtaken": float(max(overtakings(records).values(), default=0)),
        "steps": float(totals.steps),
        "swap_share": per_second(totals.swapping, totals.busy),
        "peak_waiting": float(totals.peak_waiting),
    }
    found["e2e_cv"] = _cv(latencies(done, "e2e"))
    _subsets(found, done, records, low_first)
    longest = max((r.prompt_tokens for r in records), default=0)
    found["service_bound"] = 2.0 * max(longest, 2 * ledger.num_blocks * ledger.block_size)
    return found


def _subsets(found: Measures, done: Sequence[RequestRecord], records: Sequence[RequestRecord], low_first: bool) -> None:
    """TTFT of those that a policy may favour or neglect."""
    levels = sorted({r.priority for r in records}, reverse=not low_first)
    urgent = [r for r in done if r.priority == levels[0]] if len(levels) > 1 else []
    _spread(found, "ttft_urgent", latencies(urgent, "ttft"))
    by_group: dict[str, list[float]] = {}
    for r in done:
        if r.ttft is not None:
            by_group.setdefault(r.group, []).append(r.ttft)
    smallest = smallest_group(records)
    means = {group: mean(values) for group, values in by_group.items()} if smallest else {}
    found["ttft_worst_group_mean"] = max(means.values(), default=math.nan)
    found["ttft_smallest_group_mean"] = means.get(smallest or "", math.nan)


def _spread(found: Measures, name: str, values: list[float]) -> None:
    values.sort()
    for part in ("mean", *dict(SHARES), "max"):
        found[f"{name}_{part}"] = part_of(values, part)


def _cv(values: list[float]) -> float:
    middle = mean(values)
    return math.sqrt(mean([(v - middle) ** 2 for v in values])) / middle if middle else math.nan
