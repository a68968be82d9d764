"""Phases of every request over time, a panel per policy."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from vtop.app.plots.choice import at, first_panels, one_each
from vtop.app.plots.style import PALETTE, grid, label, legend, titles
from vtop.engine.sim.compare import SPANS_OF, Curves, Outcome

# phase -> colour and height of its bar: heights tell phases apart where colours cannot
PHASES = {
    "waiting": ("#999999", 0.45),
    "prefill": (PALETTE[4], 0.95),
    "decode": (PALETTE[0], 0.95),
    "preempted": (PALETTE[1], 0.6),
    "swapped": (PALETTE[3], 0.6),
}


def draw(outcomes: Sequence[Outcome]) -> Figure | str:
    small = [o for o in outcomes if o.curves is not None and o.curves.spans]
    rate, curves = one_each(small)
    shown, more = first_panels(curves)
    if not any(o.curves and o.curves.records for o in outcomes):
        return "no request was accepted"
    if not shown:
        return f"no run of at most {SPANS_OF} requests"
    columns = min(3, len(shown)) if len(shown) != 4 else 2
    rows = -(-len(shown) // columns)
    most = max(len(run.records) for _, run in shown)
    figure, axes = grid(rows, columns, 9.0 / columns + 1, min(1.8 + most * 0.035, max(3.2, 13 / rows)))
    end = max(span[1] for _, run in shown for spans in run.spans.values() for span in spans)
    for axis, (policy, run) in zip(axes, shown, strict=False):
        _panel(axis, run)
        axis.set(title=label(policy), xlim=(0, end), ylim=(len(run.records), -1))
    for axis in axes[::columns]:
        axis.set_ylabel("request, by arrival")
    for axis in axes[max(0, len(shown) - columns) : len(shown)]:
        axis.set_xlabel("seconds")
    for axis in axes[len(shown) :]:
        axis.remove()
    seen = {span[2] for _, run in shown for spans in run.spans.values() for span in spans}
    legend(figure, [Patch(color=colour, label=phase) for phase, (colour, _) in PHASES.items() if phase in seen])
    titles(
        figure,
        f"What every request went through{at(rate)}",
        "One line per request. Bars are high while it computes, lower while it is out after a preemption, lowest "
        f"while it waits.{more}",
    )
    return figure


def _panel(axis: Axes, run: Curves) -> None:
    axis.grid(False, axis="y")
    for phase, (colour, height) in PHASES.items():
        bars = [
            (place, start, end)
            for place, record in enumerate(run.records)
            for start, end, what in run.spans.get(record.id, ())
            if what == phase
        ]
        corners = [
            [
                (start, place - height / 2),
                (end, place - height / 2),
                (end, place + height / 2),
                (start, place + height / 2),
            ]
            for place, start, end in bars
        ]
        # one collection is quicker than a patch per bar; snapped to pixels, thin bars would differ in height
        axis.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0, snap=False), autolim=False)
