"""A finished run of a scenario's variant: what checks can ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from vtop.engine.state.fold import EngineState
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import LATENCIES, completed, latencies, measures, overtakings, part_of
from vtop.engine.state.records import RequestRecord

_PARTS = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(slots=True)
class ScenarioRun:
    """`variant` is the name of what was run. `moments` are states at the times that checks ask for."""

    variant: str
    ledger: Ledger
    state: EngineState
    moments: dict[float, EngineState] = field(default_factory=dict)
    _all: dict[str, float] = field(default_factory=dict)

    def measure(self, name: str, which: str = "*") -> float:
        """A measure of the requests that `which` names: a pattern of ids, or group:NAME."""
        if which == "*":
            if not self._all:
                self._all = measures(self.ledger) | {n: of(self) for n, of in RUN.items()}
            if name in self._all:
                return self._all[name]
        records = [r for r in self.ledger.records if _matches(r, which)]
        if name in COUNTED:
            return float(COUNTED[name](self, records))
        stem, _, part = name.rpartition("_")
        if stem == "itl":
            gaps = [gap for r in records for gap in (self.ledger.gaps_of or {}).get(r.id, ())]
            return part_of(gaps, part)
        if name in LATENCIES:
            stem, part = name, "mean"
        return part_of(latencies(records if stem == "wait" else completed(records), stem), part)

    def gaps_over(self, seconds: float, which: str = "*") -> int:
        """Gaps between tokens above so many seconds."""
        gaps = self.ledger.gaps_of or {}
        chosen = (gaps.get(r.id, ()) for r in self.ledger.records if _matches(r, which))
        return sum(gap > seconds for of_one in chosen for gap in of_one)

    def moment(self, time: float, name: str) -> float | str:
        """A value of the engine at a time (seconds)."""
        state = self.moments.get(time, self.state)
        if name == "head":
            order = state.waiting_order()
            return order[0].id if order else ""
        if name in ("waiting", "running", "swapped"):
            return float(len(getattr(state, name)))
        if name == "host_free":
            return float(len(state.host_ref_count) - state.host_used)
        return float(getattr(state, name))


def _matches(record: RequestRecord, which: str) -> bool:
    if which.startswith("group:"):
        return record.group == which[6:]
    return fnmatchcase(record.id, which)


def _overtaken(run: ScenarioRun, records: list[RequestRecord]) -> int:
    found = overtakings(run.ledger.records)
    return max((found[r.id] for r in records), default=0)


COUNTED: dict[str, Callable[[ScenarioRun, list[RequestRecord]], float]] = {
    "requests": lambda run, records: len(records),
    "completed": lambda run, records: len(completed(records)),
    "timeouts": lambda run, records: sum(r.finish_reason == "timeout" for r in records),
    "aborted": lambda run, records: sum(r.finish_reason in ("capacity", "failed", "abort") for r in records),
    "preemptions": lambda run, records: sum(r.preemptions for r in records),
    "lost_tokens": lambda run, records: sum(r.tokens_lost for r in records),
    "hit_tokens": lambda run, records: sum(r.hit_tokens for r in records),
    "deadline_misses": lambda run, records: sum(r.missed_deadline for r in records),
    "overtaken": _overtaken,
    "useful_tokens": lambda run, records: sum(r.output_tokens for r in completed(records)),
    "wasted_tokens": lambda run, records: sum(r.output_tokens for r in records if r.finish_reason == "timeout"),
}
"""Measures of a part of the requests, beside the latencies."""

RUN: dict[str, Callable[[ScenarioRun], float]] = {
    "end": lambda run: run.ledger.time,
    "prefill_tokens": lambda run: float(run.ledger.totals.prefill_tokens),
    "hit_block_rate": lambda run: (
        run.ledger.totals.hit_blocks / run.ledger.totals.looked_up_blocks if run.ledger.totals.looked_up_blocks else 0.0
    ),
    "peak_blocks": lambda run: float(run.ledger.totals.peak_used),
    "peak_entries": lambda run: float(run.ledger.totals.peak_entries),
    "peak_swapped": lambda run: float(run.ledger.totals.peak_swapped),
    "swapped_out": lambda run: float(run.ledger.totals.swapped_out_blocks),
    "swapped_in": lambda run: float(run.ledger.totals.swapped_in_blocks),
    "service_gap": lambda run: run.ledger.totals.service_gap,
    "blocks": lambda run: float(run.state.num_blocks),
    "free": lambda run: float(run.state.free),
    "cached": lambda run: float(run.state.cached),
    "available": lambda run: float(run.state.available),
    "used": lambda run: float(run.state.used),
    "host_blocks": lambda run: float(len(run.state.host_ref_count)),
    "host_free": lambda run: float(len(run.state.host_ref_count) - run.state.host_used),
}
"""Measures of a whole run, beside those of measures.py."""

PART_MEASURES = frozenset(
    [*COUNTED, *LATENCIES] + [f"{stem}_{part}" for stem in (*LATENCIES, "itl") for part in _PARTS]
)
"""Measures that there are of a part of the requests too."""

MEASURES = tuple(
    dict.fromkeys(
        [
            *COUNTED,
            *RUN,
            *(f"{stem}_{part}" for stem in (*LATENCIES, "itl") for part in _PARTS),
            *LATENCIES,
            "tokens_per_second", "requests_per_second", "computed_per_second", "swaps", "swapped_blocks",
            "recompute_tax", "kv_use", "kv_peak", "hit_rate", "evictions", "copies", "goodput", "slo_met", "jain",
            "refused", "steps", "swap_share", "peak_waiting", "e2e_cv", "preempted_requests", "sequences",
            "seconds",
        ]
    )
)  # fmt: skip
"""Every name that a check may use."""
