"""Series for the charts: one point per fixed span of engine time that the engine did not stand still."""

from __future__ import annotations

from vtop.app.live.view import History
from vtop.engine.state.fold import EngineState

SPAN = 0.25  # seconds of engine time per point

Levels = tuple[float, float, float]  # share of the pool in use, running, waiting


class HistoryWriter:
    """Adds a point to a History whenever a span of engine time has passed: what was in it, on average.

    Between two Frames everything is as the first of them left it; from when a step began to its end, as it was while
    it computed. Time in which the engine was paused is no part of any span.
    """

    def __init__(self, history: History, state: EngineState, span: float = SPAN) -> None:
        history.span = span
        self.history = history
        self._span = span
        self._passed = 0.0  # seconds of the open span, and sums over them
        self._sums = [0.0, 0.0, 0.0]
        self._tokens = 0.0
        self._look(state)
        self._point(self._levels, 0.0)  # at once, so that the charts agree with the header from the start

    def update(self, state: EngineState) -> None:
        """Take the time that passed up to the latest Frame of the state."""
        ended = max(self._time, state.time)
        began = min(max(self._time, state.began), ended)
        tokens = state.totals.output_tokens - self._counted_tokens
        levels, before, after = self._levels, 0.0 if self._paused else began - self._time, ended - began
        during = self._of(state)
        step = state.last_step
        if step.step == state.step != self._step and step.sequences:
            during = step.used / state.num_blocks, float(step.running), float(step.waiting)
        # a cap on speed, or a busy machine, makes a run slow; time in which there was no work does not
        early = tokens * before / (before + after) if self._busy and before + after > 0 else 0.0
        self._pass(before, levels, early)
        self._pass(after, during, tokens - early)
        self._look(state)
        self.history.rate = self._rate()

    def _rate(self) -> float:
        """Over a whole span as soon as there is one: the open one and the end of that before."""
        if len(self.history.tokens_per_second) < 2:
            return self._tokens / self._passed if self._passed else 0.0
        return (self._tokens + self.history.tokens_per_second[-1] * (self._span - self._passed)) / self._span

    def _look(self, state: EngineState) -> None:
        """Remember how the state is until the next Frame."""
        self._time, self._step = state.time, state.step
        self._levels = self._of(state)
        self._counted_tokens = state.totals.output_tokens
        self._paused, self._busy = state.paused, bool(state.running)

    def _of(self, state: EngineState) -> Levels:
        used = state.used / state.num_blocks if state.num_blocks else 0.0
        return used, float(len(state.running)), float(len(state.waiting))

    def _pass(self, seconds: float, levels: Levels, tokens: float) -> None:
        if seconds <= 0:
            self._tokens += tokens
            return
        rate = tokens / seconds
        seconds = min(seconds, self._span * (self.history.capacity + 1))  # more would go out at the other end
        while seconds > 0:
            part = min(seconds, self._span - self._passed)
            for index, level in enumerate(levels):
                self._sums[index] += level * part
            self._tokens += rate * part
            self._passed += part
            seconds -= part
            if self._passed >= self._span * (1 - 1e-9):
                used, running, waiting = (value / self._passed for value in self._sums)
                self._point((used, running, waiting), self._tokens / self._passed)
                self._passed, self._sums, self._tokens = 0.0, [0.0, 0.0, 0.0], 0.0

    def _point(self, levels: Levels, rate: float) -> None:
        history = self.history
        for series, value in (
            (history.kv_used, levels[0]),
            (history.running, levels[1]),
            (history.waiting, levels[2]),
            (history.tokens_per_second, rate),
        ):
            series.append(value)
            if len(series) > history.capacity:
                del series[: len(series) - history.capacity]
