"""Throughput against mean TTFT, and who is beaten by nobody in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vtop.app.plots.choice import policies
from vtop.app.plots.style import GREY, grid, label, legend, log_axis, looks, thousands, titles
from vtop.engine.sim.compare import Outcome, rows

RING: dict[str, Any] = {"marker": "o", "markersize": 12, "markerfacecolor": "none", "markeredgecolor": "#000000"}


@dataclass(frozen=True, slots=True)
class Place:
    """A policy at a rate: output tokens per second and seconds."""

    policy: str
    rate: float | None
    speed: float
    ttft: float


def draw(outcomes: Sequence[Outcome]) -> Figure | str:
    places = [
        Place(row.policy, row.rate, row.mean["tokens_per_second"], row.mean["ttft_mean"])
        for row in rows(outcomes)
        if row.mean["ttft_mean"] > 0
    ]
    if not places:
        return "no run gave a token"
    if len(places) < 2:
        return "one run; give several policies or rates"
    figure, (axis,) = grid(1, 1, 8.6, 5.2)
    names = policies(outcomes)
    styles = looks(names)
    for name, look in styles.items():
        mine = sorted((p for p in places if p.policy == name), key=lambda p: p.rate or 0.0)
        x, y = [p.speed for p in mine], [p.ttft for p in mine]
        axis.plot(x, y, marker=look.marker, linewidth=0.7, color=look.colour, linestyle=look.line)
    best = front(places)
    axis.step(
        [p.speed for p in best], [p.ttft for p in best], where="pre", color=GREY, linewidth=5, alpha=0.3, zorder=0
    )
    axis.plot([p.speed for p in best], [p.ttft for p in best], zorder=5, linestyle="", **RING)
    for place in {place.rate: place for place in best[::-1]}.values():  # one label per rate, at its first point
        if place.rate is not None:
            spot = (place.speed, place.ttft)
            axis.annotate(f"{place.rate:g}/s", spot, (7, -13), textcoords="offset points", fontsize=9)
    log_axis(axis.yaxis, min(p.ttft for p in places), max(p.ttft for p in places))
    axis.margins(0.08)
    thousands(axis.xaxis)
    axis.set(xlabel="output tokens per second", ylabel="mean TTFT, seconds")
    handles = [styles[name].handle(label(name)) for name in names]
    legend(figure, [*handles, Line2D([], [], label="Pareto front", color=GREY, linewidth=5, alpha=0.6, **RING)])
    titles(
        figure,
        "Throughput against time to first token",
        "One mark per policy and rate, means over seeds; lower right is better. Pareto front: no other policy or rate "
        "has both more tokens per second and an earlier first token.",
    )
    return figure


def front(places: Sequence[Place]) -> list[Place]:
    """Those that no other beats in both, from the slowest on."""
    found, least = [], math.inf
    for place in sorted(places, key=lambda p: (-p.speed, p.ttft)):
        if place.ttft < least:
            least = place.ttft
            found.append(place)
    return found[::-1]
