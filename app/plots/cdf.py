"""Distributions of latencies, one line per policy."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vtop.app.plots.choice import at, common_rates, policies
from vtop.app.plots.style import grid, label, legend, log_axis, looks, titles
from vtop.engine.sim.compare import Outcome
from vtop.engine.state.measures import completed, latencies

TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}


def draw(outcomes: Sequence[Outcome]) -> Figure | str:
    shared = common_rates(outcomes)
    here = [o for o in outcomes if shared and o.rate == shared[-1] and o.curves is not None]
    if not here:
        return "no rate at which every policy ran"
    names = policies(here)
    if not any(_values(here, name, "e2e") for name in names):
        return "no request ended by itself"
    figure, axes = grid(1, 3, 3.9, 3.6)
    styles = looks(policies(outcomes))
    for axis, (key, title) in zip(axes, TITLES.items(), strict=True):
        seen = []
        for name in names:
            values = sorted(_values(here, name, key))
            seen += [value for value in values if value > 0]
            shares = [(i + 1) / len(values) for i in range(len(values))]
            look = styles[name]
            axis.step(values, shares, where="post", marker=look.marker, markevery=0.25, **look.line_style())
        _dress(axis, title, seen)
    axes[0].set_ylabel("share of requests")
    legend(figure, [styles[name].handle(label(name)) for name in names])
    seeds = len({o.seed for o in here})
    note = f"Of all requests that ended by themselves, of {seeds} seeds together. " if seeds > 1 else ""
    titles(figure, f"Distribution of latencies{at(shared[-1])}", f"{note}Lines further left are faster.")
    return figure


def _values(outcomes: Sequence[Outcome], policy: str, key: str) -> list[float]:
    records = [r for o in outcomes if o.policy == policy and o.curves for r in o.curves.records]
    return latencies(completed(records), key)


def _dress(axis: Axes, title: str, seen: Sequence[float]) -> None:
    axis.set(title=title, xlabel="seconds", ylim=(0, 1.02))
    if seen and max(seen) > 8 * min(seen):
        log_axis(axis.xaxis, min(seen), max(seen))
