"""What a run amounts to, computed from the fold of Frames alone. Pure functions; times are engine seconds.

Definitions:
- TTFT: arrival to first output token. TPOT: mean time per output token after the first. E2E: arrival to end.
- Percentiles interpolate linearly between the two nearest values; of no values there is none.
- Recompute tax: tokens that their sequence had computed (or found in the prefix cache) before, and that a preemption
  threw away, as a share of all tokens computed. The simulator's `recompute_tax` (measures.py) is the same number.
- KV: blocks held while a step was computed (after it was scheduled, before its tokens ended anybody), of all;
  `mean_kv` is averaged over time, and between steps what the last one left counts. Fill: of the slots of these blocks,
  those that hold K/V, over all steps; the rest is internal fragmentation. The simulator's `kv_use` and `kv_peak` are
  the same numbers.
- A request has one sequence, or as many as it has samples or beams.
- Requests count in the latencies when they ended as they should (stop, length, capacity); an aborted request says
  nothing about speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vtop.engine.request import FinishReason
from vtop.engine.state.fold import EngineState, RequestView

COMPLETED = frozenset({FinishReason.STOP.value, FinishReason.LENGTH.value, FinishReason.CAPACITY.value})


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


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are known; None when there are none."""
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    return Spread(
        count=len(known),
        mean=math.fsum(known) / len(known),
        p50=percentile(known, 0.50),
        p90=percentile(known, 0.90),
        p99=percentile(known, 0.99),
        least=known[0],
        most=known[-1],
    )


def e2e(request: RequestView) -> float | None:
    """Seconds from arrival to end."""
    return None if request.ended is None else request.ended - request.arrival


def recompute_tax(state: EngineState) -> float:
    """Share of all computed tokens that had been computed before; 0 when nothing was computed."""
    totals = state.totals
    return totals.tokens_recomputed / totals.tokens_computed if totals.tokens_computed else 0.0


def summarise(state: EngineState) -> RunSummary:
    """The run up to now."""
    totals = state.totals
    completed = [r for r in state.finished if r.finish_reason in COMPLETED]
    seconds = 0.0 if totals.first_arrival is None else max(0.0, state.time - totals.first_arrival)
    outcomes = dict(sorted(totals.finished.items()))
    if totals.refused:
        refused = FinishReason.REFUSED.value
        outcomes[refused] = outcomes.get(refused, 0) + totals.refused  # at the door, and turned away from the queue
    return RunSummary(
        seconds=seconds,
        steps=totals.steps,
        arrived=totals.arrived,
        sequences=totals.sequences,
        unfinished=len(state.requests),
        outcomes=outcomes,
        prompt_tokens=totals.prompt_tokens,
        output_tokens=totals.output_tokens,
        computed_tokens=totals.tokens_computed,
        output_tokens_per_second=_rate(totals.output_tokens, seconds),
        computed_tokens_per_second=_rate(totals.tokens_computed, seconds),
        requests_per_second=_rate(sum(totals.finished[reason] for reason in COMPLETED), seconds),
        ttft=spread(r.ttft for r in completed),
        tpot=spread(r.tpot for r in completed),
        e2e=spread(e2e(r) for r in completed),
        preemptions=totals.preemptions,
        preempted_requests=totals.preempted_requests,
        tokens_lost=totals.tokens_lost,
        recompute_tax=recompute_tax(state),
        num_blocks=state.num_blocks,
        peak_blocks=totals.peak_used,
        peak_kv=totals.peak_share,
        mean_kv=_rate(totals.kv_seconds, seconds),
        fill=totals.filled_slots / totals.held_slots if totals.held_slots else 0.0,
        peak_running=totals.peak_running,
        peak_sequences=totals.peak_sequences,
        failed_steps=totals.failures,
        counted=len(state.finished),
    )


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
