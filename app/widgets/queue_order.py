"""The order of a queue, without sorting ten thousand requests to show thirty."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Literal

from vtop.engine.request import NO_FAIR, Key, RequestStatus
from vtop.engine.state.fold import EngineState, RequestView

QueueKind = Literal["waiting", "running", "finished"]
HEAP_UP_TO = 200  # a longer start of the queue is cheaper to sort


class QueueOrder:
    """One queue of one state, as it is now. Make a new one when the state has changed.

    Swapped requests come before the waiting ones: they return first.
    """

    def __init__(self, state: EngineState, kind: QueueKind) -> None:
        self._state = state
        self._kind = kind
        self._sorted: Sequence[RequestView] | None = None
        self._key = self._sort_key()

    def _sort_key(self) -> Callable[[RequestView], Any]:
        state = self._state
        if self._kind == "waiting" and state.swapped:
            return self.place
        return attrgetter("key") if state.fair_at == NO_FAIR else state.order

    @property
    def _members(self) -> Collection[RequestView]:
        state = self._state
        if self._kind == "running":
            return state.running.values()
        return [*state.swapped.values(), *state.waiting.values()] if state.swapped else state.waiting.values()

    def __len__(self) -> int:
        state = self._state
        if self._kind == "waiting":
            return len(state.waiting) + len(state.swapped)
        return len(state.finished if self._kind == "finished" else state.running)

    def _all(self) -> Sequence[RequestView]:
        if self._sorted is None:
            if self._kind == "waiting":
                self._sorted = [*self._state.swapped_order(), *self._state.waiting_order()]
            elif self._kind == "running":
                self._sorted = self._state.running_order()
            else:
                self._sorted = list(reversed(self._state.finished))
        return self._sorted

    def window(self, first: int, number: int) -> Sequence[RequestView]:
        """Requests `first` … `first + number - 1` of the queue."""
        if self._sorted is None and self._kind != "finished" and first + number <= HEAP_UP_TO < len(self):
            start = heapq.nsmallest(first + number, self._members, key=self._key)
            return start[first:]
        if self._sorted is None and self._kind == "finished":
            return list(islice(reversed(self._state.finished), first, first + number))
        return self._all()[first : first + number]

    def index(self, request_id: str) -> int | None:
        """Place of a request in the queue."""
        if self._kind == "finished":
            return next((i for i, r in enumerate(reversed(self._state.finished)) if r.id == request_id), None)
        state = self._state
        found = state.running.get(request_id)
        if self._kind == "waiting":
            found = state.waiting.get(request_id) or state.swapped.get(request_id)
        if found is None:
            return None
        key_of = self._key
        key = key_of(found)
        return sum(1 for r in self._members if key_of(r) < key)

    def place(self, request: RequestView) -> tuple[bool, Key]:
        """What a live request is sorted by: the smallest goes first. Of any two states they can be compared."""
        return request.status is not RequestStatus.SWAPPED, self._state.order(request)

    def following(self, place: tuple[bool, Key]) -> RequestView | None:
        """The first request behind `place` in a queue of live ones, else the last before it; None if it is empty."""
        behind = [request for request in self._members if self.place(request) > place]
        if behind:
            return min(behind, key=self.place)
        return max(self._members, key=self.place, default=None)
