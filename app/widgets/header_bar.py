"""The two lines at the top: what runs, how it is set up, and how it is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.segment import Segment
from rich.style import Style

from vtop.app.live.view import View
from vtop.app.terminal.colours import Palette
from vtop.app.terminal.glyphs import Glyphs, thin_bar
from vtop.app.widgets.panel import Panel, Rows
from vtop.app.widgets.reasons import limit_text, short_id
from vtop.app.widgets.rows import Piece, Row, cells_of
from vtop.app.widgets.units import count, rate, share
from vtop.engine.state.fold import EngineState

Field = tuple[int, list[Piece]]  # rank (the highest is dropped first) and what it shows
GAP = "  "


SHORT = {" preempted": "", "swapped ": "", "waiting ": "wait ", "running ": "run "}
"""Labels that are shortened, one after the other, when the fields that always stay are too wide."""


def fit_fields(fields: Sequence[Field], width: int) -> list[list[Piece]]:
    """The fields that fit, in order; the highest rank goes first.

    Those of rank 0 stay: where they do not fit their labels are shortened, and only then the first ones go.
    """
    kept = list(fields)
    while _cells(kept) > width and (worst := max(kept, key=lambda field: field[0]))[0]:
        kept.remove(worst)
    for label, short in SHORT.items():
        if _cells(kept) > width:
            kept = [(rank, [(short if text == label else text, style) for text, style in p]) for rank, p in kept]
    while len(kept) > 1 and _cells(kept) > width:
        kept.pop(0)
    return [pieces for _, pieces in kept]


def _cells(fields: Sequence[Field]) -> int:
    return sum(cells_of(pieces) for _, pieces in fields) + len(GAP) * max(0, len(fields) - 1)


class HeaderBar(Panel):
    """First line: engine state, model, how it schedules. Second line: step, pool, queues, speed, what limited the step.

    Beside running requests stand their sequences where these are more. Fill is how many slots of the used blocks hold
    K/V; the rest is internal fragmentation.

    One row high, both are one line. The backend is in the colour of warnings where it stands in for a faster one.

    Dropped as it gets narrow, first line: watermark, budget, seats, admission, victim, batching, backend, dtype,
    device, policy, preset, model, vtop; second line: fill, prefix hit rate, cap, bar, host pool, limit, tok/s, the
    share in per cent. Preemptions are what one looks for: they stay.
    """

    DEFAULT_CSS = """
    HeaderBar { height: 2; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._status = ""

    def show(self, view: View, status: str = "") -> None:
        """`status` begins with LOADING, RUNNING, PAUSED, IDLE, STALLED, STUCK or FAILED; more may follow."""
        if status != self._status:
            self._status = status
            self._version = -1
        super().show(view)

    def build(self, view: View, width: int, height: int) -> Rows:
        first, second = self._setup(view), self._numbers(view)
        if height == 1:
            later = [(rank and rank + 10, pieces) for rank, pieces in first]  # numbers outlive names
            return [self._row([*later[:1], *later[1:3], *second, *later[3:]], view, width)]
        rows = [self._row(first, view, width)]
        if height > 1:
            rows.append(self._row(second, view, width) if second else Row(width, view.ascii).done(self.palette.base))
        return rows

    def _row(self, fields: Sequence[Field], view: View, width: int) -> list[Segment]:
        palette = self.palette
        row = Row(width, view.ascii).gap(palette.base)
        for number, pieces in enumerate(fit_fields(fields, width - 2)):
            if number:
                row.put(GAP, palette.base)
            for text, style in pieces:
                row.put(text, style)
        return row.done(palette.base)

    def _setup(self, view: View) -> list[Field]:
        palette, g = self.palette, self.glyphs
        glyph, style = _status_look(self._status, g, palette)
        status = short_id(self._status or "NO ENGINE", view.ascii, 40)
        fields: list[Field] = [(1, [("vtop", palette.title_focus)]), (0, [(f"{glyph} {status}", style)])]
        if view.frozen:
            fields.append((0, [(f"{g.pause} VIEW FROZEN", palette.warn)]))
        if view.state is None:
            return fields
        meta = view.state.meta
        options = view.state.options  # as they are now: some change while the engine runs

        def option(name: str) -> str:
            value: Any = options.get(name, "-")
            return short_id(str(value), view.ascii, 28)

        def labelled(rank: int, label: str, value: str) -> Field:
            return rank, [(f"{label} ", palette.muted), (value, palette.base)]

        plain = palette.base
        victim = f"{option('victim')}/{option('preemption_mode')}"
        fields += [
            (2, [(short_id(meta.model, view.ascii, 28), palette.strong)]),
            (4, [(short_id(meta.device, view.ascii, 16), plain)]),
            (5, [(short_id(meta.dtype, view.ascii, 16), plain)]),
            (6, [(short_id(meta.backend, view.ascii, 16), palette.warn if meta.backend_note else palette.muted)]),
            labelled(3, "policy", policy_text(options, view.ascii)),
            labelled(7, "batch", option("batching")),
            labelled(9, "admit", option("admission")),
            labelled(8, "victim", victim),
            *(labelled(rank, label, value) for rank, label, value in _limits(view.state)),
        ]
        if options.get("preset", "sensible") != "sensible":
            fields.insert(2, (3, [("preset ", palette.muted), (option("preset"), palette.accent)]))
        return fields

    def _numbers(self, view: View) -> list[Field]:
        state = view.state
        if state is None:
            return []
        palette, g = self.palette, self.glyphs
        used = share(state.used, state.num_blocks)
        level = palette.bad if used >= 0.95 else palette.warn if used >= 0.8 else palette.good
        done, rest = thin_bar(used, 12, view.ascii)
        cap = "no cap" if state.speed is None else f"cap {state.speed:g}/s"
        lost = _preempt_style(state, palette)
        return [
            (0, [("step ", palette.muted), (count(state.step), palette.strong)]),
            *self._time(view, state),
            (8, [(cap, palette.muted)]),
            (0, [("KV ", palette.muted), (f"{count(state.used)}/{count(state.num_blocks)}", palette.base)]),
            (7, [(done, level), (rest, palette.faint)]),
            (1, [(f"{100 * used:.0f}%", level)]),
            *self._fill(state),
            (0, [("running ", palette.muted), (count(len(state.running)), palette.good), *self._sequences(state)]),
            (0, [("waiting ", palette.muted), (count(len(state.waiting)), _queue_style(state, palette))]),
            *self._swapped(state),
            (2, [(rate(view.tokens_per_second), palette.base), (" tok/s", palette.muted)]),
            (3, [("limit: ", palette.muted), (limit_text(state.last_step.limit), palette.base)]),
            (0, [(f"{g.preempt} {count(state.totals.preemptions)}", lost), (" preempted", lost)]),
            *self._prefix(state),
        ]

    def _time(self, view: View, state: EngineState) -> list[Field]:
        """How far a simulation is. Real time is on everybody's wrist."""
        if not view.clock:
            return []
        palette, seconds = self.palette, max(0.0, view.now - state.meta.engine_time)
        clock = view.clock.replace("\u00d7", "x") if view.ascii else view.clock
        return [(1, [("t ", palette.muted), (f"{seconds:.1f} s", palette.strong), (f" {clock}", palette.accent)])]

    def _fill(self, state: EngineState) -> list[Field]:
        if not state.used:
            return []
        fill = share(state.filled, state.used * state.block_size)
        return [(11, [("fill ", self.palette.muted), (f"{100 * fill:.0f}%", self.palette.base)])]

    def _sequences(self, state: EngineState) -> list[Piece]:
        sequences = state.running_sequences
        return [(f" ({count(sequences)} seqs)", self.palette.muted)] if sequences != len(state.running) else []

    def _swapped(self, state: EngineState) -> list[Field]:
        """Requests that are swapped out, and how full the host pool is; nothing where there is no host pool."""
        palette, g = self.palette, self.glyphs
        total, out = len(state.host_ref_count), len(state.swapped)
        fields: list[Field] = []
        if out:
            fields.append(
                (0, [(f"{g.swap_out} ", palette.muted), ("swapped ", palette.muted), (count(out), palette.warn)])
            )
        if total and (out or state.totals.swapped_out_blocks):
            fields.append((6, [("host ", palette.muted), (f"{count(state.host_used)}/{count(total)}", palette.base)]))
        return fields

    def _prefix(self, state: EngineState) -> list[Field]:
        """Share of the prompt tokens that first admissions found in the prefix cache, once any were looked up."""
        palette, looked_up = self.palette, state.totals.looked_up_tokens
        if not looked_up or state.meta.config.get("enable_prefix_caching") is False:
            return []
        hits = share(state.totals.hit_tokens, looked_up)
        return [(10, [("prefix ", palette.muted), (f"{100 * hits:.0f}%", palette.base)])]


def policy_text(options: Mapping[str, Any], ascii: bool) -> str:
    """The policy, and which priorities go first where that matters."""
    policy = str(options.get("scheduling_policy", "-"))
    text = short_id(policy, ascii, 32)
    if "priority" in policy.split("+") and options.get("priority_order"):
        text += " (high first)" if options["priority_order"] == "high-first" else " (low first)"
    return text


def _limits(state: EngineState) -> list[tuple[int, str, str]]:
    """Rank, label and value of the caps, and of the watermark where there is one."""
    options = state.options
    watermark = options.get("watermark") or 0.0
    limits = [
        (10, "seats", str(options.get("max_num_seqs", state.meta.max_num_seqs))),
        (11, "budget", str(state.token_budget)),
    ]
    return [*limits, (12, "watermark", f"{100 * watermark:g}%")] if watermark else limits


def _queue_style(state: EngineState, palette: Palette) -> Style:
    return palette.warn if state.waiting else palette.base


def _preempt_style(state: EngineState, palette: Palette) -> Style:
    return palette.bad if state.totals.preemptions else palette.muted


def _status_look(status: str, g: Glyphs, palette: Palette) -> tuple[str, Style]:
    word = status.split("(")[0].split()[0].upper() if status.strip("( ") else ""
    return {
        "RUNNING": (g.run, palette.good),
        "PAUSED": (g.pause, palette.accent),
        "IDLE": (g.idle, palette.muted),
        "LOADING": (g.load, palette.accent),
        "STALLED": (g.stall, palette.alarm),
        "STUCK": (g.stall, palette.alarm),
        "FAILED": (g.fail, palette.alarm),
    }.get(word, (g.note, palette.muted))
