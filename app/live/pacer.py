"""How often the screen looks for news: at most `fps` times a second, less while looking costs too much."""

from __future__ import annotations

SLOWEST = 2.0  # times a second
TOO_DEAR, CHEAP = 0.4, 0.12  # shares of the period that a tick takes


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
