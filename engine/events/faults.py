"""Frames that do not follow from those before them: one typed error, for everything that folds Frames."""

from __future__ import annotations

from vtop.engine.errors import VtopError
from vtop.engine.events import Event, Frame

MOST_SAMPLES = 1 << 16  # of one request in a recording

# what a handler can raise when an event names a request, a sequence, a block or a number that is not there
FAULTS = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, MemoryError)


class InconsistentFrame(VtopError, ValueError):
    """An event cannot have happened: `step`, `serial` and `event` (its kind) say where. What folds it is half done.

    A recording that says so was damaged or changed; of a running engine it is a bug.
    """

    def __init__(self, frame: Frame, event: Event | None, why: str) -> None:
        self.step, self.serial = frame.step, frame.serial
        self.event = "" if event is None else str(type(event).__struct_config__.tag)
        told = ""
        if event is not None:
            place = next(number for number, other in enumerate(frame.events, 1) if other is event)
            told = f", event {place} ({self.event})"
        why = "".join(c if c.isprintable() else "?" for c in why[:200])
        super().__init__(
            f"step {frame.step}, frame {frame.serial}{told} does not follow from what came before: {why}; "
            "the recording is damaged or was changed, record it again"
        )


def inconsistent(frame: Frame, event: Event, error: Exception) -> InconsistentFrame:
    """What `error`, one of FAULTS, says of an event."""
    return InconsistentFrame(frame, event, f"{type(error).__name__}: {error}")
