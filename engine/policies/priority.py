"""Priority, with optional aging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vtop.engine import events as ev
from vtop.engine.policies.base import KeyChange, Policy
from vtop.engine.request import Key, Request, RequestStatus


class Priority(Policy):
    """By priority; with `aging_rate` a request gains that much priority per second since it was queued.

    Everybody ages at the same rate, so the order of two requests never changes with time: priority - rate · (now -
    queued) orders as priority + rate · queued does, and nobody is ever sorted again. A preempted request keeps the time
    at which it was first queued. Whom a waiting request may displace goes by the aged priority too, or who was admitted
    for having waited would be thrown out at once. When blocks run out, victims are chosen by the raw priority: there,
    having waited protects nobody.
    """

    name = "priority"

    def __init__(self, aging_rate: float = 0.0, high_first: bool = True) -> None:
        self._rate = aging_rate
        self._sign = -1 if high_first else 1
        self._waiting: Counter[float] = Counter()  # raw rank -> how many wait

    def key(self, request: Request) -> Key:
        rank = self._sign * request.priority
        if not self._rate:
            return (rank,)
        return (round(rank + self._rate * request.queued, 6),)  # equals are to be ordered by arrival, not by rounding

    def rank(self, request: Request) -> Key:
        return (self._sign * request.priority,)

    def urgency(self, request: Request) -> Key:
        return self.key(request)

    def on_arrival(self, request: Request, now: float) -> None:
        self._count(request, 1)

    def on_admit(self, request: Request, now: float, cached: int) -> KeyChange | None:
        self._count(request, -1)
        rank = self._sign * request.priority
        if not self._rate or not self._waiting or min(self._waiting) >= rank:
            return None
        return KeyChange(ev.MoveCause.AGING, rank, rank - self._rate * (now - request.queued))

    def on_preempt(self, request: Request, now: float) -> None:
        self._count(request, 1)

    def on_priority(self, request: Request, before: float) -> None:
        if request.status is not RequestStatus.RUNNING:
            self._count_rank(self._sign * before, -1)
            self._count(request, 1)

    def on_finish(self, request: Request) -> None:
        if request.status is not RequestStatus.RUNNING:
            self._count(request, -1)

    def adopt(self, waiting: Sequence[Request], running: Sequence[Request], now: float, old: Policy | None) -> None:
        self._waiting = Counter(self._sign * request.priority for request in waiting)

    def _count(self, request: Request, by: int) -> None:
        self._count_rank(self._sign * request.priority, by)

    def _count_rank(self, rank: float, by: int) -> None:
        self._waiting[rank] += by
        if not self._waiting[rank]:
            del self._waiting[rank]
