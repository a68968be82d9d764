"""Series for the charts: one point per fixed span of engine time."""

from __future__ import annotations

from vtop.app.view import History
from vtop.engine.state import EngineState

SPAN = 0.25  # seconds of engine time per point


class HistoryWriter:
    """Adds a point to a History whenever a span of engine time has passed."""

    def __init__(self, history: History, state: EngineState, span: float = SPAN) -> None:
        self.history = history
        self._span = span
        self._next = state.time  # a point at once, so that the charts agree with the header from the start
        self._tokens = state.totals.output_tokens
        self._steps = state.totals.steps

    def update(self, state: EngineState) -> None:
        """Look at the state after a Frame. Spans in which nothing happened get points too, so that gaps are seen."""
        if state.time < self._next:
            return
        spans = int((state.time - self._next) / self._span) + 1
        self._next += spans * self._span
        tokens = state.totals.output_tokens
        rate = (tokens - self._tokens) / (self._span * spans)
        self._tokens = tokens
        # what the latest step of the span held; a request of one step holds nothing any more when its Frame is told
        blocks = state.last_step.used if state.totals.steps > self._steps else state.used
        self._steps = state.totals.steps
        used = blocks / state.num_blocks if state.num_blocks else 0.0
        for _ in range(min(spans, self.history.capacity)):
            self._point(state, rate, used)

    def _point(self, state: EngineState, rate: float, used: float) -> None:
        history = self.history
        for series, value in (
            (history.kv_used, used),
            (history.running, float(len(state.running))),
            (history.waiting, float(len(state.waiting))),
            (history.tokens_per_second, rate),
        ):
            series.append(value)
            if len(series) > history.capacity:
                del series[: len(series) - history.capacity]
