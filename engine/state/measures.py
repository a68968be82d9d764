"""What a run amounts to, from its ledger: one flat table of named numbers.

Definitions. TTFT: first token - arrival. TPOT: (last - first) / (tokens - 1), per request. ITL: every gap between two
tokens of a request. e2e: end - arrival. Latencies are of requests that ended by themselves (stop, length, capacity).
requests: all that came, refused ones too. sequences: of those that were accepted, one each or as many as it has
samples. goodput: requests per second that meet both limits; slo met: their share of all requests. recompute tax: tokens
that their sequence had computed (or found in the prefix cache) before, of all computed. deadline misses: of deadlines
that were given; a time-out alone is none.
Jain: (sum x)^2 / (n sum x^2) over the groups, of what each got of what was due to it while it was contested. A step is
contested when at least two groups still have requests waiting (preempted ones too) after its admissions; what it gave
these groups (prompt tokens + 2 * output tokens, each counted once) was due to them by their group_weights, or in equal
parts. Over a whole run service is what was asked for, whoever goes first, so that would tell nothing. With two groups
it is Jain's index of service / weight in contested steps; NaN when there was none.
wasted: output tokens of requests that timed out. KV use: blocks held, of all, averaged over time; while a step is
computed those count that it was scheduled with, also where its tokens then end a request. KV peak: the most of them in
any step. overtaken: the most later arrivals that were admitted before one request. cv: standard deviation / mean of
e2e. urgent: of the priority that goes first by `low_first`, which a comparison sets for all its runs by its base
configuration's priority_order, so that they tell of the same requests whatever order a policy has; else by the run's
own. worst group: the one with the highest mean TTFT; smallest group: the one with the fewest requests. These are NaN
unless there are two priorities, two groups. service bound: what VTC proves of the difference of two groups' service
while both have requests waiting, 2 * max(longest prompt, 2 * tokens the pool holds).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vtop.engine.state.ledger import Ledger
from vtop.engine.state.records import RequestRecord
from vtop.engine.state.metrics import COMPLETED, percentile

SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass(frozen=True, slots=True)
class Limits:
    """What goodput asks of a request, in seconds: the conversational limits that MLPerf has for an 8B model."""

    ttft: float = 2.0
    tpot: float = 0.1


Measures = dict[str, float]
"""Named numbers; NaN where there is nothing to measure. Seconds, tokens, blocks, shares (0 … 1)."""


def measures(ledger: Ledger, limits: Limits | None = None, low_first: bool | None = None) -> Measures:
    """All measures of a run. `low_first` says which priority is urgent; None: the one that went first in this run."""
    limits = limits or Limits()
    counts, records = ledger.counts, ledger.records
    came = len(records) + counts.refused
    if low_first is None:
        low_first = ledger.meta.config.get("priority_order") == "low-first"
    done = [r for r in records if r.reason in COMPLETED]
    seconds = ledger.time - min((r.arrival for r in records), default=ledger.time)
    found: Measures = {}
    for name, of in LATENCIES.items():
        _spread(found, name, [value for r in done if (value := of(r)) is not None])
    found["itl_mean"] = ledger.gaps.mean
    for label, share in SHARES:
        found[f"itl_{label}"] = ledger.gaps.percentile(share)
    found["itl_max"] = ledger.gaps.most
    good = sum(1 for r in done if meets(r, limits))
    wasted = sum(r.output_tokens for r in records if r.reason == "timeout")
    found |= {
        "seconds": seconds,
        "requests": float(came),
        "sequences": float(sum(r.samples for r in records)),
        "completed": float(len(done)),
        "tokens_per_second": _per(counts.output, seconds),
        "requests_per_second": _per(len(done), seconds),
        "computed_per_second": _per(counts.computed, seconds),
        "preemptions": float(counts.preemptions),
        "preempted_requests": float(sum(1 for r in records if r.preemptions)),
        "swaps": float(counts.swaps),
        "swapped_blocks": float(counts.swapped_out + counts.swapped_in),
        "recompute_tax": counts.recomputed / counts.computed if counts.computed else 0.0,
        "lost_tokens": float(counts.lost),
        "kv_use": _per(counts.kv_seconds, seconds),
        "kv_peak": counts.peak_share,
        "hit_rate": counts.hit / counts.looked_up if counts.looked_up else 0.0,
        "evictions": float(counts.evictions),
        "copies": float(counts.copies),
        "goodput": _per(good, seconds),
        "slo_met": good / came if came else math.nan,
        "jain": jain(got / due for got, due in ledger.contested.values()),
        "timeouts": float(ledger.outcomes["timeout"]),
        "refused": float(counts.refused),
        "wasted_tokens": float(wasted),
        "deadline_misses": float(counts.deadline_misses),
        "overtaken": float(max(overtakings(records).values(), default=0)),
        "steps": float(counts.steps),
        "swap_share": _per(counts.swapping, counts.busy),
        "peak_waiting": float(counts.peak_waiting),
    }
    found["e2e_cv"] = _cv([r.e2e for r in done if r.e2e is not None])
    _subsets(found, done, records, low_first)
    longest = max((r.prompt_tokens for r in records), default=0)
    found["service_bound"] = 2.0 * max(longest, 2 * ledger.num_blocks * ledger.block_size)
    return found


LATENCIES: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": lambda r: r.ttft,
    "tpot": lambda r: r.tpot,
    "e2e": lambda r: r.e2e,
    "wait": lambda r: r.wait,
}


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
        own = (math.inf, place) if record.admitted is None else (record.admitted, -1)
        found[record.id] = bisect_left(seen, own)
        if record.admitted is not None:
            entry = (record.admitted, place)
            seen.insert(bisect_left(seen, entry), entry)
    return found


def _subsets(found: Measures, done: Sequence[RequestRecord], records: Sequence[RequestRecord], low_first: bool) -> None:
    """TTFT of those that a policy may favour or neglect."""
    levels = sorted({r.priority for r in records}, reverse=not low_first)
    urgent = [r for r in done if r.priority == levels[0]] if len(levels) > 1 else []
    _spread(found, "ttft_urgent", [ttft for r in urgent if (ttft := r.ttft) is not None])
    by_group: dict[str, list[float]] = {}
    for r in done:
        if r.ttft is not None:
            by_group.setdefault(r.group, []).append(r.ttft)
    smallest = smallest_group(records)
    means = {group: math.fsum(values) / len(values) for group, values in by_group.items()} if smallest else {}
    found["ttft_worst_group_mean"] = max(means.values(), default=math.nan)
    found["ttft_smallest_group_mean"] = means.get(smallest or "", math.nan)


def _spread(found: Measures, name: str, values: list[float]) -> None:
    values.sort()
    found[f"{name}_mean"] = math.fsum(values) / len(values) if values else math.nan
    for label, share in SHARES:
        found[f"{name}_{label}"] = percentile(values, share)
    found[f"{name}_max"] = values[-1] if values else math.nan


def _cv(values: list[float]) -> float:
    if not values:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)) / mean if mean else math.nan


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
