"""What time does to a request: its priority under aging, and how far its deadline is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from vtop.app.terminal.glyphs import glyphs
from vtop.app.terminal.safe_text import cells
from vtop.app.widgets.units import duration
from vtop.engine.errors import BadValue
from vtop.engine.policy_spec import parse_spec
from vtop.engine.request import RequestStatus
from vtop.engine.state.fold import EngineState, RequestView

SOON = 0.2  # of the time until the deadline: less left than that is said


@dataclass(frozen=True, slots=True)
class Aging:
    """Priority that grows with waiting, as policy `priority` counts it now."""

    rate: float  # per second
    high_first: bool

    def effective(self, request: RequestView, now: float) -> float:
        """The priority that counts. A preempted request keeps the time that it was queued first."""
        gained = self.rate * max(0.0, now - request.arrival)
        return request.priority + gained if self.high_first else request.priority - gained

    def text(self, request: RequestView, now: float, width: int, ascii: bool) -> str:
        """`5→7.2`, with less of it where that is too wide."""
        counts, arrow = self.effective(request, now), glyphs(ascii).arrow
        for text in (f"{request.priority}{arrow}{counts:.1f}", f"{request.priority}{arrow}{counts:.0f}"):
            if cells(text) <= width:
                return text
        return f"{arrow}{counts:.0f}"

    def words(self, request: RequestView, now: float, ascii: bool) -> str:
        """How the number comes about."""
        waited = duration(max(0.0, now - request.arrival))
        sign, order = ("+", "high") if self.high_first else ("-", "low")
        return (
            f"{request.priority} {sign} {self.rate:g} a second {glyphs(ascii).times} {waited} since it was queued"
            f" = {self.effective(request, now):.1f}; {order} numbers go first"
        )


def aging_of(state: EngineState) -> Aging | None:
    """Aging, when the options as they are now have it. Presets order by place and have none."""
    options = state.options
    rate = options.get("aging_rate") or 0.0
    if not rate > 0 or options.get("preset", "sensible") != "sensible":
        return None
    try:
        names = parse_spec(options.get("scheduling_policy"))
    except BadValue:  # of a recording by another version
        return None
    return Aging(rate, options.get("priority_order") != "low-first") if "priority" in names else None


def waits(request: RequestView) -> bool:
    """Whether it is in a queue, so that aging decides when its turn is."""
    return request.status in (RequestStatus.WAITING, RequestStatus.SWAPPED)


class Slack(Enum):
    """How a request stands to its deadline."""

    ENOUGH = "enough"
    SOON = "soon"
    MISSED = "missed"


def slack_of(request: RequestView, now: float) -> tuple[float, Slack] | None:
    """Seconds left until the deadline, and what that means; None without a deadline (or one at infinity)."""
    if request.deadline is None or not math.isfinite(request.deadline):
        return None
    left = request.deadline - now
    if left < 0:
        return left, Slack.MISSED
    return left, Slack.SOON if left < SOON * (request.deadline - request.arrival) else Slack.ENOUGH


def slack_text(left: float, state: Slack) -> str:
    """`+3.2s`, `!+0.4s` when little is left, `-0.4s` when it was missed: at most 7 cells."""
    sign = "-" if state is Slack.MISSED else "!+" if state is Slack.SOON else "+"
    return sign + _span(abs(left))


def _span(seconds: float) -> str:
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    if seconds < 599.5:
        return f"{round(seconds) // 60}m{round(seconds) % 60:02d}s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f}m" if minutes < 119.5 else f"{hours:.0f}h" if hours < 999.5 else f"{hours / 24:.0f}d"


def any_deadline(state: EngineState) -> bool:
    """Whether a request that is alive has a deadline."""
    return any(request.deadline is not None for request in state.requests.values())
