"""Blocks and queues over time, a row of panels per policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vtop.app.plots.choice import at, first_panels, one_each
from vtop.app.plots.style import GREY, PALETTE, grid, label, legend, titles
from vtop.engine.sim.compare import Curves, Outcome

QUEUES: tuple[tuple[str, str, Any], ...] = (
    ("waiting", PALETTE[1], "-"),
    ("running", PALETTE[0], (0, (4, 1.5))),
    ("swapped", PALETTE[3], (0, (1, 1))),
)
USED, PREEMPTED = PALETTE[2], "#000000"


def draw(outcomes: Sequence[Outcome]) -> Figure | str:
    rate, curves = one_each(outcomes)
    shown, more = first_panels({policy: c for policy, c in curves.items() if c.series})
    if not shown:
        return "no run took a step" if curves else "no rate at which every policy ran"
    figure, axes = grid(len(shown), 2, 5.2, 1.4 if len(shown) > 2 else 2.4, times=True)
    end = max(c.series[-1].time for _, c in shown)
    most = max(max(s.waiting, s.running, s.swapped) for _, c in shown for s in c.series)
    swapped = any(s.swapped for _, c in shown for s in c.series)
    for row, (policy, run) in enumerate(shown):
        left, right = axes[2 * row : 2 * row + 2]
        _blocks(left, run)
        _queues(right, run, swapped)
        left.set(title=label(policy), ylabel="blocks", xlim=(0, end), ylim=(0, run.num_blocks * 1.05))
        right.set(ylabel="requests", ylim=(0, most * 1.05 + 1))
    legend(figure, _handles(swapped))
    titles(
        figure,
        f"KV blocks and queues over time{at(rate)}",
        f"One run per policy. A tick at the bottom is a preemption (or several within one sample).{more}",
    )
    return figure


def _blocks(axis: Axes, run: Curves) -> None:
    times, used = [s.time for s in run.series], [s.used for s in run.series]
    axis.fill_between(times, used, step="post", color=USED, alpha=0.25, linewidth=0)
    axis.step(times, used, where="post", color=USED, linewidth=1)
    axis.axhline(run.num_blocks, color=GREY, linewidth=0.8, linestyle="--")
    pairs = zip([0, *(s.preemptions for s in run.series)], run.series, strict=False)
    ticks = [s.time for before, s in pairs if s.preemptions > before]
    axis.vlines(ticks, 0, run.num_blocks * 0.09, color=PREEMPTED, linewidth=0.8, zorder=4)


def _queues(axis: Axes, run: Curves, swapped: bool) -> None:
    times = [s.time for s in run.series]
    for name, colour, line in QUEUES[: 3 if swapped else 2]:
        counts = [getattr(s, name) for s in run.series]
        axis.step(times, counts, where="post", color=colour, linestyle=line, linewidth=1.3)


def _handles(swapped: bool) -> list[Line2D]:
    tick = Line2D([], [], color=PREEMPTED, marker="|", linestyle="", markersize=9, label="preemption")
    return [
        Line2D([], [], color=USED, label="blocks used"),
        Line2D([], [], color=GREY, linestyle="--", linewidth=0.8, label="blocks in the pool"),
        tick,
        *(Line2D([], [], color=c, linestyle=line, label=name) for name, c, line in QUEUES[: 3 if swapped else 2]),
    ]
