"""The knee: where throughput falls behind the offered load."""

from __future__ import annotations

from collections.abc import Sequence

from vtop.app.plots.choice import policies, rates
from vtop.engine.sim.compare import Outcome
from vtop.engine.state.records import RequestRecord

KEPT_UP = 0.9
DEFINITION = (
    "Knee: the first rate at which throughput falls behind the offered load, that is, the share of arrivals already "
    f"served when the last one arrives is below {KEPT_UP:.0%} of that share at the lowest rate."
)


def knees(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Policy -> rate; policies that keep up at all rates are not in it.

    Measured while the load is offered: over the whole run everything is served in the end. Relative to the lowest rate,
    because those in flight when a short run ends are no backlog.
    """
    found = {}
    for policy in policies(outcomes):
        shares = [
            (
                rate,
                _mean(
                    [
                        _served(o.curves.records)
                        for o in outcomes
                        if _is(o, policy, rate) and o.curves and o.curves.records
                    ]
                ),
            )
            for rate in rates(outcomes)
        ]
        known = [(rate, share) for rate, share in shares if share is not None]
        for rate, share in known[1:]:
            if share < KEPT_UP * known[0][1]:
                found[policy] = rate
                break
    return found


def _is(outcome: Outcome, policy: str, rate: float) -> bool:
    return outcome.policy == policy and outcome.rate == rate


def _served(records: Sequence[RequestRecord]) -> float:
    last = max(record.arrival for record in records)
    return sum(1 for record in records if record.ended is not None and record.ended <= last) / len(records)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
