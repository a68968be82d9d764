"""Service of every group over time, and how far that of two groups drifts apart while both wait: what VTC bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from vtop.app.plots.choice import at, first_panels, one_each
from vtop.app.plots.style import PALETTE, Look, grid, label, legend, looks, thousands, titles
from vtop.engine.sim.compare import Curves, Outcome
from vtop.engine.state.records import RequestRecord, Sample

MOST_GROUPS = 8
DRIFT: dict[str, Any] = {"color": PALETTE[3], "linewidth": 1.8}
BOUND: dict[str, Any] = {"color": "#000000", "linewidth": 1.2, "linestyle": (0, (5, 2))}
Interval = tuple[float, float]


def draw(outcomes: Sequence[Outcome]) -> Figure | str:
    rate, curves = one_each(outcomes)
    shown, more = first_panels({policy: c for policy, c in curves.items() if c.series})
    sizes = Counter(r.group for _, run in shown for r in run.records)
    if not sizes:
        return "no request was accepted"
    if len(sizes) < 2:
        return "one group; give two or more with --groups"
    groups = [group for group, _ in sizes.most_common(MOST_GROUPS)]
    if len(sizes) > len(groups):
        more += f" {len(sizes) - len(groups)} small groups are left out on the left."
    styles = looks(groups)
    bound = max(o.measures["service_bound"] for o in outcomes if o.rate == rate)
    longest = max(r.prompt_tokens for _, run in shown for r in run.records)
    figure, axes = grid(len(shown), 2, 5.2, 1.4 if len(shown) > 2 else 2.6, times=True)
    apart = {policy: drifts(run.records, run.series) for policy, run in shown}
    most = max([bound, *(reach[-1] for found in apart.values() for _, reach in found)])
    end = max(run.series[-1].time for _, run in shown)
    for row, (policy, run) in enumerate(shown):
        left, right = axes[2 * row : 2 * row + 2]
        _service(left, run, styles)
        left.set(title=label(policy), ylabel="service", xlim=(0, end))
        thousands(left.yaxis)
        _drift(right, apart[policy], bound)
        right.set(ylabel="drift", yscale="log", ylim=(bound / 1000, most * 2))
        thousands(right.yaxis)
        right.yaxis.set_minor_locator(NullLocator())
    names = [styles[group].handle(label(f"group {group}"), marker=False) for group in groups]
    legend(figure, [*names, Line2D([], [], label="drift", **DRIFT), Line2D([], [], label="bound", **BOUND)])
    tokens = (bound / 2) / 2
    titles(
        figure,
        f"Service per group{at(rate)}",
        "Service: prompt tokens + 2 × output tokens, each counted once; one run per policy. Drift: the most that two "
        "groups' service has differed over any time in which both had requests waiting (logarithmic). Bound that fair "
        f"queueing promises for it: 2·max(w_p·L_in, w_q·M) = {bound:,.0f}, with w_p = 1, w_q = 2, longest prompt "
        f"L_in = {longest:,} and M = {tokens:,.0f} tokens in the pool.{more}",
    )
    return figure


def _service(axis: Axes, run: Curves, styles: dict[str, Look]) -> None:
    times = [sample.time for sample in run.series]
    for group, look in styles.items():
        served = [sample.service.get(group, 0.0) for sample in run.series]
        axis.plot(times, served, **look.line_style())


def _drift(axis: Axes, found: Sequence[tuple[list[float], list[float]]], bound: float) -> None:
    for times, reach in found:
        axis.plot(times, reach, **DRIFT)
        axis.plot(times[-1:], reach[-1:], marker="o", markersize=3, color=DRIFT["color"])
    axis.axhline(bound, **BOUND)
    if not found:
        axis.text(0.5, 0.5, "never do two groups wait at once", transform=axis.transAxes, ha="center", va="center")


def waiting_times(records: Iterable[RequestRecord], end: float) -> dict[str, list[Interval]]:
    """Per group, when it had at least one request that was never admitted yet."""
    found: dict[str, list[Interval]] = {}
    for record in sorted(records, key=lambda r: r.arrival):
        until = next((t for t in (record.first_scheduled, record.ended) if t is not None), end)
        spans = found.setdefault(record.group, [])
        if spans and record.arrival <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], until))
        else:
            spans.append((record.arrival, until))
    return found


def both(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Where two lists of disjoint, ascending intervals overlap."""
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def drifts(records: Sequence[RequestRecord], series: Sequence[Sample]) -> list[tuple[list[float], list[float]]]:
    """For every time in which two groups both have requests waiting: its samples' times, and the most that the two
    groups' service differed over any part of it so far."""
    times = [sample.time for sample in series]
    waiting = waiting_times(records, times[-1] if times else 0.0)
    found = []
    for one, other in combinations(waiting, 2):
        for low, high in both(waiting[one], waiting[other]):
            part = series[bisect_left(times, low) : bisect_left(times, high)]
            if len(part) < 2:
                continue
            least, most, reach = float("inf"), float("-inf"), []
            for sample in part:
                apart = sample.service.get(one, 0.0) - sample.service.get(other, 0.0)
                least, most = min(least, apart), max(most, apart)
                reach.append(most - least)
            found.append(([sample.time for sample in part], reach))
    return found
