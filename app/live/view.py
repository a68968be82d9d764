"""What the person looks at: the state that is shown, what is selected, how it is coloured. Widgets read from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vtop.engine.state.fold import EngineState, RequestView

Colouring = Literal["owner", "state", "age", "refs"]
COLOURINGS: tuple[Colouring, ...] = ("owner", "state", "age", "refs")


@dataclass(slots=True)
class History:
    """Series for the charts, one point per `span` seconds of engine time; bounded, oldest first."""

    capacity: int = 600
    span: float = 0.25
    rate: float | None = None  # tokens per second in the span up to now
    kv_used: list[float] = field(default_factory=list)  # share of the pool, 0 … 1
    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)

    def still(self) -> History:
        """A copy that stands still while this one goes on."""
        series = (list(values) for values in (self.kv_used, self.running, self.waiting, self.tokens_per_second))
        return History(self.capacity, self.span, self.rate, *series)


@dataclass(slots=True)
class View:
    """`state` is None until the engine is loaded. `now` is engine time (seconds) for ages.

    `version` grows whenever something a widget shows may have changed; a widget that drew this version draws nothing.
    """

    state: EngineState | None = None
    selected: str | None = None  # request id, lit everywhere
    selected_block: int | None = None
    colouring: Colouring = "owner"
    now: float = 0.0
    frozen: bool = False  # the view stands still while the engine goes on
    clock: str = ""  # what kind of time engine time is, for a simulation
    ascii: bool = False  # no braille, no box or block glyphs beyond ASCII
    history: History = field(default_factory=History)
    version: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second as of late; 0 when nothing runs, and unchanged by a pause."""
        history = self.history
        rate = latest(history.tokens_per_second) if history.rate is None else history.rate
        return rate if self.state is not None and self.state.running else 0.0

    def touch(self) -> None:
        self.version += 1

    @property
    def selected_request(self) -> RequestView | None:
        if self.state is None or self.selected is None:
            return None
        return self.state.find(self.selected)


def latest(values: Sequence[float]) -> float:
    """The last value; 0 when there is none or it is not finite."""
    return values[-1] if len(values) and math.isfinite(values[-1]) else 0.0
