"""Takes Frames from the feed, folds them into what is shown, and says how often. Knows nothing of Textual."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from vtop.app.live.feed import Feed
from vtop.app.live.history import HistoryWriter
from vtop.app.live.view import View
from vtop.engine.events import Frame, Meta, Note, Paused, Refused
from vtop.engine.state.fold import EngineState

SLOWEST = 2.0  # times a second
TOO_DEAR, CHEAP = 0.4, 0.12  # shares of the period that a tick takes
CHUNK = 32  # frames between two looks at the clock, at most
KEPT_WHILE_FROZEN = 2000  # frames of the event log that wait for the view to go on


class Pacer:
    """Halves the rate when a tick takes more than 40 % of its period; doubles it when ticks are cheap for a while."""

    def __init__(self, fps: float) -> None:
        self._most = fps
        self.fps = fps
        self._cheap = 0

    @property
    def period(self) -> float:
        return 1.0 / self.fps

    def took(self, seconds: float) -> None:
        """Tell what a tick cost."""
        share = seconds / self.period
        if share > TOO_DEAR:
            self.fps = max(min(SLOWEST, self._most), self.fps / 2)
            self._cheap = 0
        elif self.fps < self._most and share < CHEAP:
            self._cheap += 1
            if self._cheap >= 8:
                self.fps = min(self._most, self.fps * 2)
                self._cheap = 0
        else:
            self._cheap = 0


def fallback_text(meta: Meta) -> str:
    """Why attention is not computed by the fastest backend for the device; empty when it is. Not cleaned."""
    return f"attention by {meta.backend}: {meta.backend_note}" if meta.backend_note else ""


class Pump:
    """Owns the live state. `view.state` is that state, or a copy that stands still while the view is frozen.

    `log` is called with every Frame that the event log should know, in order.
    """

    def __init__(
        self,
        feed: Feed,
        view: View,
        log: Callable[[Frame], None],
        *,
        budget: float = 0.03,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.feed = feed
        self.view = view
        self.live: EngineState | None = None
        self._log = log
        self._budget = budget
        self._monotonic = monotonic
        self._history: HistoryWriter | None = None
        self._charts = view.history
        self._alarms = 0
        self._alarm = ""
        self._news = ""
        self._kept: deque[Frame] = deque(maxlen=KEPT_WHILE_FROZEN)

    def pull(self) -> bool:
        """Fold what is there, for at most about `budget` seconds; true when anything was folded.

        What is left stays in the feed for the next call, so that keys are answered in between.
        """
        if self.live is None:
            meta = self.feed.meta
            if meta is None:
                return False
            self.live = EngineState(meta)
            self._history = HistoryWriter(self._charts, self.live)
            self.view.state = self.live
            self.view.now = self.live.time
            self.view.touch()
            self._tell_setup(meta)
        if not self.feed.pending:
            return False
        began = now = self._monotonic()
        chunk = 1
        while True:
            frames = self.feed.drain(chunk)
            for frame in frames:
                self._take(frame)
            before, now = now, self._monotonic()
            if len(frames) < chunk or now - began >= self._budget:
                break
            # a Frame of a thousand requests takes milliseconds: few at a time, so that the budget is kept
            if now - before < self._budget / 10:
                chunk = min(CHUNK, 2 * chunk)
        if not self.view.frozen:
            self.view.now = self.live.time
            self.view.touch()
        return True

    def _tell_setup(self, meta: Meta) -> None:
        for name, note in (("KV pool", meta.kv_note), ("host pool", meta.host_note)):
            if note:
                self.tell("info", f"{name}: {note}")
        if meta.compile_note:
            self.tell("warning" if meta.compile_note.startswith("not ") else "info", meta.compile_note)
        fallback = fallback_text(meta)
        if fallback:
            self.tell("warning", fallback)

    def alarm(self) -> str:
        """What went wrong since the last call and should be a notice: the latest, and how many more."""
        text, more = self._alarm, self._alarms - 1
        self._alarm, self._alarms = "", 0
        return f"{text} (and {more} more, see the event log)" if more > 0 else text

    def news(self) -> str:
        """What happened since the last call, is no trouble, and should be a notice all the same; the latest."""
        text, self._news = self._news, ""
        return text

    def tell(self, level: str, text: str) -> None:
        """Put a line of the program's own into the event log."""
        state = self.live
        step, now = (state.step, state.time) if state is not None else (0, 0.0)
        self._log(Frame(-1, step, now, False, [Note(level, text)]))
        self.view.touch()

    def freeze(self) -> None:
        """Let the view stand still."""
        if self.live is not None and not self.view.frozen:
            self.view.state = self.live.copy()
            self.view.history = self._charts.still()
            self.view.frozen = True
            self.view.touch()

    def thaw(self) -> None:
        """Show the live state again."""
        self.view.state = self.live
        self.view.history = self._charts
        self.view.frozen = False
        while self._kept:
            self._log(self._kept.popleft())
        if self.live is not None:
            self.view.now = self.live.time
        self.view.touch()

    def _take(self, frame: Frame) -> None:
        assert self.live is not None and self._history is not None
        self.live.apply(frame)
        self._history.update(self.live)
        for event in frame.events:
            if type(event) is Refused:
                self._alarms, self._alarm = self._alarms + 1, f"request {event.id} refused: {event.message}"
            elif type(event) is Note and event.level == "error":
                self._alarms, self._alarm = self._alarms + 1, event.text
            elif type(event) is Paused and event.text:
                self._news = event.text
        if self.view.frozen:
            self._kept.append(frame)
        else:
            self._log(frame)
