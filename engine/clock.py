"""Where time comes from. Engine time is seconds (float) on a clock that never goes back and can be stopped.

It stops while the engine is paused or waits for a subscriber (`hold`, `go_on`), and while the process is suspended
(Ctrl+Z, SIGSTOP, a frozen container; see `MonotonicClock.watched`). It runs on under a cap of steps per second: a cap
makes the engine slower, for latencies, time-outs and deadlines too, so that they agree with what is seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

SUSPENDED_AFTER = 1.0  # seconds in which the process did nothing at all: it was suspended
BEAT = 0.25  # seconds between two signs of life
BUSY_SHARE = 0.1  # of such a gap: with more processor time than that the process was busy, not suspended


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since an arbitrary origin; never decreases."""
        ...

    def unix_time(self) -> float | None:
        """The wall clock (seconds since 1970); None where time is virtual."""
        ...

    def hold(self) -> None:
        """Let time stop until `go_on`. Does nothing when it is stopped already."""
        ...

    def go_on(self) -> None:
        """Let time run again. Does nothing when it runs."""
        ...

    def watched(self) -> AbstractContextManager[None]:
        """Let time stop while the process is suspended, for as long as the context lasts."""
        ...


class MonotonicClock:
    """The machine's monotonic clock, less the time in which it was stopped. Any thread may use it."""

    def __init__(
        self, real: Callable[[], float] = time.monotonic, processor: Callable[[], float] = time.process_time
    ) -> None:
        """`real` and `processor` tell seconds that passed and processor seconds that the process took."""
        self._real, self._processor = real, processor
        self._changed = threading.Condition()
        self._stopped = 0.0  # seconds so far that do not count
        self._held: float | None = None  # `real` when time was stopped
        self._watchers = 0
        self._seen = 0.0, 0.0  # `real` and `processor` at the latest sign of life, while watched

    def now(self) -> float:
        with self._changed:
            return (self._look() if self._held is None else self._held) - self._stopped

    def unix_time(self) -> float | None:
        return time.time()

    def hold(self) -> None:
        with self._changed:
            if self._held is None:
                self._held = self._look()

    def go_on(self) -> None:
        with self._changed:
            if self._held is not None:
                self._see()
                self._stopped += self._seen[0] - self._held
                self._held = None
                self._changed.notify_all()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As Clock.watched. What is shorter than SUSPENDED_AFTER goes unnoticed.

        A thread gives signs of life meanwhile, so that a long wait of the engine (a step on a GPU) is no gap. It sleeps
        while time is held.
        """
        with self._changed:
            self._watchers += 1
            self._see()
            if self._watchers == 1:
                threading.Thread(target=self._beat, name="vtop-clock", daemon=True).start()
        try:
            yield
        finally:
            with self._changed:
                self._watchers -= 1
                self._changed.notify_all()

    def _see(self) -> None:
        self._seen = self._real(), self._processor()

    def _look(self) -> float:
        """What `real` tells; a gap since the latest sign of life in which the process did nothing does not count."""
        if not self._watchers:
            return self._real()
        before, busy_before = self._seen
        self._see()
        real, busy = self._seen
        gap = real - before
        if gap >= SUSPENDED_AFTER and busy - busy_before < BUSY_SHARE * gap:
            self._stopped += gap
        return real

    def _beat(self) -> None:
        with self._changed:
            while self._watchers:
                self._changed.wait(BEAT if self._held is None else None)
                if self._held is None:
                    self._look()


class ManualClock:
    """A clock that moves only when told to: tests and virtual time. Whoever moves it stops it by not doing so."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def unix_time(self) -> float | None:
        return None

    def hold(self) -> None:
        pass

    def go_on(self) -> None:
        pass

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock never goes back (advance by {seconds})")
        self._now += seconds
