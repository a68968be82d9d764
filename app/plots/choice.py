"""Which runs of a comparison a figure shows."""

from __future__ import annotations

from collections.abc import Sequence

from vtop.engine.sim.compare import Curves, Outcome

MOST_PANELS = 8  # of figures with a panel for each policy


def policies(outcomes: Sequence[Outcome]) -> list[str]:
    """In the order in which they come."""
    return list(dict.fromkeys(o.policy for o in outcomes))


def rates(outcomes: Sequence[Outcome]) -> list[float]:
    """Ascending."""
    return sorted({o.rate for o in outcomes if o.rate is not None})


def common_rates(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Rates at which every policy ran, ascending; [None] for a trace as it is, [] without runs."""
    names = policies(outcomes)
    if not names:
        return []
    ran = {(o.policy, o.rate) for o in outcomes}
    found: list[float | None] = [rate for rate in rates(outcomes) if all((name, rate) in ran for name in names)]
    return found or ([None] if all((name, None) in ran for name in names) else [])


def at(rate: float | None) -> str:
    """The rate as words of a title."""
    return "" if rate is None else f" at {rate:g} requests/s"


def one_each(outcomes: Sequence[Outcome]) -> tuple[float | None, dict[str, Curves]]:
    """The highest common rate, and of each policy its run there with the least seed that all have; {} for none."""
    shared = common_rates(outcomes)
    if not shared:
        return None, {}
    here = [o for o in outcomes if o.rate == shared[-1] and o.curves is not None]
    seeds = set.intersection(*({o.seed for o in here if o.policy == name} for name in policies(outcomes)))
    if not seeds:
        return shared[-1], {}
    seed = min(seeds)
    return shared[-1], {o.policy: o.curves for o in here if o.seed == seed and o.curves is not None}


def first_panels(curves: dict[str, Curves]) -> tuple[list[tuple[str, Curves]], str]:
    """As many as a figure has panels for, and a remark on those left out."""
    shown = list(curves.items())[:MOST_PANELS]
    more = len(curves) - len(shown)
    return shown, f" The last {more} policies are left out." if more else ""
