"""What the app is told about the run it shows, beside the Frames."""

from __future__ import annotations

from dataclasses import dataclass

from vtop.app.screens.look_bar import Look


@dataclass(frozen=True, slots=True)
class Playing:
    """`look`: the scenario that is played. `time_scale`: virtual seconds per real one at most (0: no bound) in a
    simulation, None for a real engine."""

    look: Look | None = None
    time_scale: float | None = None

    @property
    def clock(self) -> str:
        """What kind of time the header shows; empty for a real engine."""
        if self.time_scale is None:
            return ""
        return f"virtual \u00d7{self.time_scale:g}" if self.time_scale else "virtual \u00d7max"
