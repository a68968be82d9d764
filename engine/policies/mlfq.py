"""Multi-level feedback queue with skip-join, as in FastServe (arXiv 2305.05920)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from vtop.engine import events as ev
from vtop.engine.policies.base import KeyChange, Policy
from vtop.engine.request import Key, Request, RequestStatus

RESCUES_PER_STEP = 64  # so that ten thousand that starve at once cost no step much; the rest follow in the next ones


@dataclass(slots=True)
class _Place:
    level: int
    serial: int  # order within the level
    used: int = 0  # tokens since it came to the level
    stint: int = 0  # counts its times in the waiting queue


class MultiLevel(Policy):
    """Short jobs first without knowing their lengths: who has used up the quantum of a level goes down one.

    The quantum of level i is `quantum` · 2^i tokens. Tokens, not seconds: a debugger that stands still between steps
    must not change the order. A request joins at the first level whose quantum holds its prompt, since its prefill
    alone would bring it there. Within a level: first in, first out; a preempted request keeps its place and so comes
    back to the front. One that waits for `starvation` seconds goes to the top. Victims come from the lowest level.
    """

    name = "mlfq"
    width = 2

    def __init__(self, quantum: int = 32, levels: int = 8, starvation: float = 3.0) -> None:
        self._quantum = quantum
        self._lowest = levels - 1
        self._starvation = starvation
        self._places: dict[Request, _Place] = {}
        self._serial = 0
        self._waits = 0  # in a waiting queue, so far
        self._starving: list[tuple[float, int, int, int, Request]] = []  # heap of (when, number, wait, stint, request)

    def key(self, request: Request) -> Key:
        place = self._places[request]
        return (place.level, place.serial)

    def rank(self, request: Request) -> Key:
        return (self._places[request].level,)

    def on_arrival(self, request: Request, now: float) -> None:
        self._places[request] = _Place(self._join_level(request.prompt_len), self._next_serial())
        self._wait(request, now)

    def on_tokens(self, request: Request, computed: int, outputs: int) -> KeyChange | None:
        place = self._places[request]
        place.used += computed
        if place.used <= self._quantum << place.level or place.level == self._lowest:
            return None
        before = place.level
        self._put(place, before + 1)
        return KeyChange(ev.MoveCause.QUANTUM, before, place.level)

    def on_preempt(self, request: Request, now: float) -> None:
        self._wait(request, now)

    def on_finish(self, request: Request) -> None:
        del self._places[request]

    def due(self, now: float) -> list[tuple[Request, KeyChange]]:
        rescued: list[tuple[Request, KeyChange]] = []
        heap = self._starving
        while heap and heap[0][0] <= now and len(rescued) < RESCUES_PER_STEP:
            *_, stint, request = heapq.heappop(heap)
            place = self._places.get(request)
            if place is None or place.stint != stint or request.status is RequestStatus.RUNNING:
                continue  # it ran meanwhile
            before = place.level
            self._put(place, 0)
            rescued.append((request, KeyChange(ev.MoveCause.STARVED, before, 0)))
        return rescued

    def adopt(self, waiting: Sequence[Request], running: Sequence[Request], now: float, old: Policy | None) -> None:
        known = old._places if isinstance(old, MultiLevel) else {}
        self._serial = old._serial if isinstance(old, MultiLevel) else 0
        for request in sorted((*waiting, *running), key=lambda r: r.number):
            place = known.get(request)
            if place is None:
                place = _Place(self._join_level(request.prompt_len), self._next_serial())
            level = min(place.level, self._lowest)
            self._places[request] = _Place(level, place.serial, place.used, place.stint)
        for request in waiting:
            self._wait(request, now)

    def _wait(self, request: Request, now: float) -> None:
        place = self._places[request]
        place.stint += 1
        if place.level:
            self._waits += 1  # a refused request leaves its number to the next one
            heapq.heappush(self._starving, (now + self._starvation, request.number, self._waits, place.stint, request))

    def _join_level(self, prompt: int) -> int:
        level = 0
        while level < self._lowest and self._quantum << level < prompt:
            level += 1
        return level

    def _put(self, place: _Place, level: int) -> None:
        place.level, place.serial, place.used = level, self._next_serial(), 0

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial
