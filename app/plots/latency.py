"""Latency against load, one line per policy; and the knee, where throughput falls behind the offered load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vtop.app.plots.choice import policies, rates
from vtop.app.plots.style import GREY, Look, grid, label, legend, log_axis, looks, titles
from vtop.engine.sim.compare import Outcome
from vtop.engine.state.measures import smallest_group
from vtop.engine.state.records import RequestRecord

DODGE = 0.008  # of the range of rates between policies, so that error bars do not hide one another
_LINE: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": ":"}
_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 12,
    "markerfacecolor": "none",
    "color": "#000000",
    "linestyle": "",
}
KEPT_UP = 0.9
DEFINITION = (
    "Knee: the first rate at which throughput falls behind the offered load, that is, the share of arrivals already "
    f"served when the last one arrives is below {KEPT_UP:.0%} of that share at the lowest rate."
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A measure against the rate."""

    key: str
    title: str
    unit: str = "seconds"
    log: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """A measure at a rate: mean, least and most over seeds."""

    rate: float
    mean: float
    low: float
    high: float


def draw(outcomes: Sequence[Outcome]) -> Figure | str:
    if len(rates(outcomes)) < 2:
        return "one rate; give two or more with --rates"
    if not any(o.measures["completed"] for o in outcomes):
        return "no request ended by itself"
    panels = _panels(outcomes)
    columns = 2 if len(panels) <= 4 else 3
    figure, axes = grid(-(-len(panels) // columns), columns, 3.9, 3.0)
    names, knee = policies(outcomes), knees(outcomes)
    styles = looks(names)
    for axis, panel in zip(axes, panels, strict=False):
        _panel(axis, panel, outcomes, styles, knee)
    for axis in axes[len(panels) :]:
        axis.remove()
    handles = [styles[name].handle(label(name)) for name in names]
    if knee:
        handles.append(Line2D([], [], label="knee of most policies", **_LINE))
    if len(set(knee.values())) > 1:
        handles.append(Line2D([], [], label="knee of this one", **_RING))
    legend(figure, handles)
    seeds = len({o.seed for o in outcomes})
    bars = f"Means over {seeds} seeds; bars reach from the least to the most of a seed. " if seeds > 1 else ""
    kept_up = [label(name).strip() for name in names if name not in knee]
    note = DEFINITION + (f" Without one: {', '.join(kept_up)}." if kept_up else "")
    if not knee:
        note = "No knee: throughput keeps up with the offered load at every rate."
    titles(figure, "Latency against load", f"{bars}Logarithmic but for the spread. {note}")
    return figure


def points(outcomes: Sequence[Outcome], policy: str, key: str) -> list[Point]:
    """A policy's measure at every rate at which it has one."""
    found = []
    for rate in rates(outcomes):
        values = [o.measures[key] for o in outcomes if o.policy == policy and o.rate == rate]
        values = [value for value in values if math.isfinite(value)]
        if values:
            found.append(Point(rate, math.fsum(values) / len(values), min(values), max(values)))
    return found


def _panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    panels = [
        Panel("ttft_mean", "TTFT, mean"),
        Panel("ttft_p99", "TTFT, 99th percentile"),
        Panel("e2e_mean", "End to end, mean"),
        Panel("e2e_cv", "Spread of end to end", "std. deviation / mean", log=False),
    ]
    if _has(outcomes, "ttft_urgent_mean"):
        panels.append(Panel("ttft_urgent_mean", "TTFT of urgent requests, mean"))
    if _has(outcomes, "ttft_smallest_group_mean"):
        panels.append(Panel("ttft_smallest_group_mean", f"TTFT of group {_group(outcomes)}, mean"))
    return panels


def _has(outcomes: Sequence[Outcome], key: str) -> bool:
    return any(math.isfinite(o.measures.get(key, math.nan)) for o in outcomes)


def _group(outcomes: Sequence[Outcome]) -> str:
    """The name of the smallest group; which that is may depend on the seed."""
    found = {smallest_group(o.curves.records) for o in outcomes if o.curves} - {None}
    return label(str(found.pop())).strip() if len(found) == 1 else "with the fewest requests"


def _panel(
    axis: Axes, panel: Panel, outcomes: Sequence[Outcome], styles: dict[str, Look], knee: dict[str, float]
) -> None:
    offered = rates(outcomes)
    step = DODGE * (offered[-1] - offered[0])
    shown: list[Point] = []
    usual = _usual(knee)
    for index, (policy, look) in enumerate(styles.items()):
        shift = (index - (len(styles) - 1) / 2) * step
        curve = [p for p in points(outcomes, policy, panel.key) if p.mean > 0 or not panel.log]
        x, y = [p.rate + shift for p in curve], [p.mean for p in curve]
        shown += curve
        reach = [[p.mean - p.low for p in curve], [p.high - p.mean for p in curve]]
        axis.errorbar(x, y, yerr=reach, marker=look.marker, capsize=2, elinewidth=0.8, **look.line_style())
        ringed = [p for p in curve if p.rate == knee.get(policy) != usual]
        axis.plot([p.rate + shift for p in ringed], [p.mean for p in ringed], zorder=5, **_RING)
    if usual is not None:
        axis.axvline(usual, zorder=0, **_LINE)
    if shown:
        # a bar may reach far down on a logarithmic axis; it must not squeeze all the rest
        least, most = min(max(p.low, p.mean / 3) for p in shown), max(p.high for p in shown)
        if panel.log:
            log_axis(axis.yaxis, least, most)
        axis.set_ylim(least / 1.3 if panel.log else 0, most * (1.2 if panel.log else 1.1))
    axis.set(title=panel.title, xlabel="offered load, requests/s", ylabel=panel.unit)
    axis.set_xticks(offered, [f"{rate:g}" for rate in offered])


def _usual(knee: dict[str, float]) -> float | None:
    """The knee that most policies have: one line instead of a heap of rings."""
    counted = Counter(knee.values())
    return min(counted, key=lambda rate: (-counted[rate], rate), default=None)


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
