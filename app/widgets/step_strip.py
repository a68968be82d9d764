"""What the last step did: its tokens out of the budget, what limited it, and where the time went."""

from __future__ import annotations

from rich.segment import Segment

from vtop.app.live.view import View
from vtop.app.widgets.panel import Panel, Rows
from vtop.app.widgets.reasons import limit_text
from vtop.app.widgets.rows import Piece, Row, heading, join_fitting
from vtop.app.widgets.units import count, duration
from vtop.engine.events import Limit, StepTimes
from vtop.engine.state.fold import StepView

PARTS = ("schedule", "prepare", "model", "sample", "commit")


class StepStrip(Panel):
    """Heading, a bar of the token budget, and the times of the parts of the step. One row high, all in a line."""

    DEFAULT_CSS = """
    StepStrip { height: 3; }
    """

    def build(self, view: View, width: int, height: int) -> Rows:
        palette = self.palette
        state = view.state
        if height == 1:
            return [self._one_line(view, width)]
        if state is None:
            return [heading("LAST STEP", [], [], width, palette, False, view.ascii)]
        step = state.last_step
        facts = [(f"  {count(step.step)}", palette.base), *self._facts(step)]
        rows: Rows = [heading("LAST STEP", facts, self._limit(step), width, palette, False, view.ascii)]
        rows.append(self._budget(step, view, Row(width, view.ascii).gap(palette.base)))
        rows.append(self._times(step.times, view, Row(width, view.ascii).gap(palette.base)))
        return rows

    def _facts(self, step: StepView) -> list[Piece]:
        palette = self.palette
        pieces: list[Piece] = [(f"  {step.sequences} sequence{'' if step.sequences == 1 else 's'}", palette.muted)]
        if step.preemptions:
            pieces.append((f"  {self.glyphs.preempt} {step.preemptions} preempted", palette.bad))
        return pieces

    def _limit(self, step: StepView) -> list[Piece]:
        palette = self.palette
        style = palette.muted if step.limit is Limit.NONE else palette.warn
        return [("limit: ", palette.muted), (limit_text(step.limit), style)]

    def _one_line(self, view: View, width: int) -> list[Segment]:
        palette = self.palette
        row = Row(width, view.ascii).gap(palette.base)
        if view.state is None:
            return row.done(palette.base)
        step = view.state.last_step
        groups: list[list[Piece]] = [
            [("last step ", palette.muted), (count(step.step), palette.strong)],
            *self._token_groups(step, view.ascii),
            self._limit(step),
            [(text.lstrip(), style) for text, style in self._facts(step)[1:]],
            *self._time_groups(step.times),
        ]
        join_fitting([g for g in groups if g], row.left, ("  ", palette.base), row)
        return row.done(palette.base)

    def _token_groups(self, step: StepView, ascii: bool) -> list[list[Piece]]:
        palette = self.palette
        full, part, _ = _bar_glyphs(ascii)
        decode = step.tokens - step.prefill_tokens
        return [
            [(count(step.tokens), palette.strong), (f"/{count(step.budget)} tok", palette.muted)],
            [(full, palette.accent), (f" prefill {count(step.prefill_tokens)}", palette.base)],
            [(part, palette.good), (f" decode {count(decode)}", palette.base)],
        ]

    def _time_groups(self, times: StepTimes | None) -> list[list[Piece]]:
        palette = self.palette
        if times is None:
            return []
        parts = [(name, float(getattr(times, name))) for name in PARTS]
        slowest = max(seconds for _, seconds in parts)
        groups: list[list[Piece]] = [
            [(duration(sum(seconds for _, seconds in parts)), palette.strong), (" total", palette.muted)]
        ]
        for name, seconds in parts:
            style = palette.accent if seconds == slowest and seconds else palette.base
            groups.append([(f"{name} ", palette.muted), (duration(seconds), style)])
        return groups

    def _budget(self, step: StepView, view: View, row: Row) -> list[Segment]:
        palette = self.palette
        full, part, rest = _bar_glyphs(view.ascii)
        decode = step.tokens - step.prefill_tokens
        join_fitting(self._token_groups(step, view.ascii), row.left, ("  ", palette.base), row)
        room = row.left - 3
        if room >= 8 and step.budget > 0:
            row.gap(palette.base, 2)
            prefill = min(room, -(-room * step.prefill_tokens // step.budget))
            decoded = min(room - prefill, -(-room * decode // step.budget))
            row.put(full * prefill, palette.accent).put(part * decoded, palette.good)
            row.put(rest * (room - prefill - decoded), palette.faint)
        return row.done(palette.base)

    def _times(self, times: StepTimes | None, view: View, row: Row) -> list[Segment]:
        palette = self.palette
        if times is None:
            return row.put("no times", palette.faint).done(palette.base)
        join_fitting(self._time_groups(times), row.left, ("  ", palette.base), row)
        return row.done(palette.base)


def _bar_glyphs(ascii: bool) -> tuple[str, str, str]:
    """Prefill, decode, and what is left of the budget."""
    return ("#", "=", ".") if ascii else ("█", "▒", "·")
