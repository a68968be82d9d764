"""A bar per group of requests: what each was given so far, and how many of it wait. Nothing with one group only."""

from __future__ import annotations

from collections import Counter

from rich.segment import Segment

from vtop.app.live.view import View
from vtop.app.terminal import safe_text
from vtop.app.terminal.glyphs import thin_bar
from vtop.app.widgets.panel import Panel, Rows
from vtop.app.widgets.rows import Piece, Row, join_fitting
from vtop.app.widgets.units import count, share
from vtop.engine.state.fold import EngineState

MOST_ROWS = 4
NAME_CELLS = 12
BAR_CELLS = 12  # in a line with others
LONGEST_BAR = 60

Fact = tuple[str, int, int, float | None]  # group, tokens, waiting, counter


class ServiceBars(Panel):
    """One row high, all groups share the line; else a row for each. Those with most tokens stay when room is short."""

    DEFAULT_CSS = """
    ServiceBars { height: 1; }
    """

    @staticmethod
    def rows_wanted(view: View, tall: bool) -> int:
        """Rows it should get."""
        groups = 0 if view.state is None else len(view.state.totals.group_tokens)
        return 0 if groups < 2 else min(groups, MOST_ROWS) if tall else 1

    def build(self, view: View, width: int, height: int) -> Rows:
        state, palette = view.state, self.palette
        tokens = {} if state is None else state.totals.group_tokens
        if state is None or len(tokens) < 2:
            return [Row(width, view.ascii).done(palette.base) for _ in range(height)]
        facts = _facts(state)
        total = sum(tokens.values())
        if height == 1:
            return [self._one_line(facts, total, view, width)]
        most = sorted(facts, key=lambda fact: -fact[1])[: height if len(facts) <= height else height - 1]
        rows: Rows = [self._row(fact, total, view, width) for fact in facts if fact in most]
        if len(most) < len(facts):
            left = [fact for fact in facts if fact not in most]
            rest = f" and {count(len(left))} more groups, {count(sum(fact[1] for fact in left))} tok"
            rows.append(Row(width, view.ascii).put(rest, palette.muted).done(palette.base))
        while len(rows) < height:
            rows.append(Row(width, view.ascii).done(palette.base))
        return rows

    def _numbers(self, fact: Fact, total: int, wide: bool) -> list[Piece]:
        """Share, tokens, waiting and counter; columns when `wide`."""
        palette = self.palette
        _, tokens, waiting, counter = fact
        sizes = (4, 10, 7) if wide else (0, 0, 0)
        pieces: list[Piece] = [
            (" " + f"{100 * share(tokens, total):.0f}%".rjust(sizes[0]), palette.strong),
            (f" {count(tokens).rjust(sizes[1])} tok", palette.base),
        ]
        if waiting or wide:
            style = palette.warn if waiting else palette.faint
            pieces.append((f" {count(waiting).rjust(sizes[2])} waiting", style))
        if counter is not None and wide:
            pieces.append((f"   counter {count(counter)}", palette.muted))
        return pieces

    def _row(self, fact: Fact, total: int, view: View, width: int) -> list[Segment]:
        palette = self.palette
        row = Row(width, view.ascii).put(" group ", palette.muted)
        row.field(fact[0], palette.base, NAME_CELLS).gap(palette.base)
        done, rest = thin_bar(share(fact[1], total), max(6, min(LONGEST_BAR, width - 75)), view.ascii)
        row.put(done, palette.accent).put(rest, palette.faint)
        for text, style in self._numbers(fact, total, True):
            row.put(text, style)
        return row.done(palette.base)

    def _one_line(self, facts: list[Fact], total: int, view: View, width: int) -> list[Segment]:
        palette = self.palette
        row = Row(width, view.ascii).put(" groups  ", palette.muted)
        groups: list[list[Piece]] = []
        for fact in sorted(facts, key=lambda fact: -fact[1]):
            done, rest = thin_bar(share(fact[1], total), BAR_CELLS, view.ascii)
            name = safe_text.shorten(fact[0], NAME_CELLS, ascii=view.ascii)
            bar: list[Piece] = [(f"{name} ", palette.base), (done, palette.accent), (rest, palette.faint)]
            groups.append([*bar, *self._numbers(fact, total, False)])
        put = join_fitting(groups, row.left - 5, ("  ", palette.base), row)
        if put < len(groups):
            row.put(f"  +{len(groups) - put}", palette.muted)
        return row.done(palette.base)


def _facts(state: EngineState) -> list[Fact]:
    waiting = Counter(request.group for request in state.waiting.values())
    counters = state.counters if state.fair_at >= 0 else {}
    tokens = state.totals.group_tokens
    return [(group, number, waiting[group], counters.get(group)) for group, number in tokens.items()]
