"""Fairness between groups by virtual token counters (VTC, arXiv 2401.00588)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from vtop.engine import events as ev
from vtop.engine.policies.base import Policy
from vtop.engine.request import Key, Request, RequestStatus

PROMPT_COST = 1.0  # per prompt token; the paper's w_p
OUTPUT_COST = 2.0  # per output token; the paper's w_q


class Fair(Policy):
    """The group with the least service first. Service = (prompt tokens + 2 · output tokens) / weight of the group.

    A prompt is charged when it is admitted, so that one group cannot fill a batch before it is charged at all; only
    once, and only what is not cached, so tokens computed again after a preemption or taken from the prefix cache cost
    nothing. A group that queues again after it had nothing queued is lifted: to the least counter of those that are
    queued, or, when nobody is, to that of the group that left the queue last. So nobody saves up service by being idle.

    Counters only grow, which is what lets the queue find the least one lazily (`FairQueue`).
    """

    name = "fair"
    width = 0  # the counter is put in by `order_key`: it changes for the whole group at once
    urgent = False  # counters cross all the time; throwing out for it would never end

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.counters: dict[str, float] = {}
        self._weights = dict(weights)
        self._queued: dict[str, int] = {}  # group -> how many of it wait
        self._least: list[tuple[float, str]] = []  # heap; holds each group at most once, possibly with an old counter
        self._in_heap: set[str] = set()
        self._left_last: str | None = None
        self._changed: dict[str, None] = {}
        self._told: list[ev.AnyEvent] = []

    def key(self, request: Request) -> Key:
        return ()

    def rank(self, request: Request) -> Key:
        return (self.counters.get(request.group, 0.0),)

    def on_arrival(self, request: Request, now: float) -> None:
        group = request.group
        if group not in self._queued:
            self._lift(group)
        self._enqueue(group)

    def on_admit(self, request: Request, now: float, cached: int) -> None:
        self._dequeue(request.group)
        if not request.preemptions:
            self._charge(request.group, PROMPT_COST * max(0, request.prompt_len - cached))

    def on_tokens(self, request: Request, computed: int, outputs: int) -> None:
        if outputs:
            self._charge(request.group, OUTPUT_COST * outputs)

    def on_preempt(self, request: Request, now: float) -> None:
        self._enqueue(request.group)  # no lift: it was being served, its counter is up to date

    def on_finish(self, request: Request) -> None:
        if request.status is not RequestStatus.RUNNING:
            self._dequeue(request.group)

    def adopt(self, waiting: Sequence[Request], running: Sequence[Request], now: float, old: Policy | None) -> None:
        if isinstance(old, Fair):
            self.counters = dict(old.counters)
            self._left_last = old._left_last
        for request in (*waiting, *running):
            self.counters.setdefault(request.group, 0.0)
        for request in waiting:
            self._enqueue(request.group)

    def take_events(self) -> list[ev.AnyEvent]:
        told, self._told = self._told, []
        if self._changed:
            told.append(ev.GroupService({group: self.counters[group] for group in self._changed}))
            self._changed = {}
        return told

    def _charge(self, group: str, cost: float) -> None:
        weight = self._weights.get(group, 1.0)
        self.counters[group] = self.counters.get(group, 0.0) + cost / weight
        self._changed[group] = None

    def _lift(self, group: str) -> None:
        if group not in self.counters:
            self.counters[group] = 0.0
            self._changed[group] = None
        before = self.counters[group]
        floor = self._least_queued()
        if floor is None and self._left_last is not None:
            floor = self.counters[self._left_last]
        if floor is not None and floor > before:
            self.counters[group] = floor
            self._changed[group] = None
            self._told.append(ev.Lifted(group, before, floor))

    def _least_queued(self) -> float | None:
        """The least counter of groups that are queued. What the heap holds may be old, but is never too large."""
        heap = self._least
        while heap:
            counter, group = heap[0]
            if group not in self._queued:
                heapq.heappop(heap)
                self._in_heap.discard(group)
            elif counter != self.counters[group]:
                heapq.heapreplace(heap, (self.counters[group], group))
            else:
                return counter
        return None

    def _enqueue(self, group: str) -> None:
        self._queued[group] = self._queued.get(group, 0) + 1
        if group not in self._in_heap:
            self._in_heap.add(group)
            heapq.heappush(self._least, (self.counters.setdefault(group, 0.0), group))

    def _dequeue(self, group: str) -> None:
        self._queued[group] -= 1
        if not self._queued[group]:
            del self._queued[group]
            self._left_last = group
