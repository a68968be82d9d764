"""The order of a queue, without sorting ten thousand requests to show thirty."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Literal

from vtop.engine.state import EngineState, RequestView

QueueKind = Literal["waiting", "running", "finished"]
HEAP_UP_TO = 200  # a longer start of the queue is cheaper to sort


class QueueOrder:
    """One queue of one state, as it is now. Make a new one when the state has changed."""

    def __init__(self, state: EngineState, kind: QueueKind) -> None:
        self._state = state
        self._kind = kind
        self._sorted: Sequence[RequestView] | None = None

    @property
    def _members(self) -> dict[str, RequestView]:
        return self._state.waiting if self._kind == "waiting" else self._state.running

    def __len__(self) -> int:
        return len(self._state.finished) if self._kind == "finished" else len(self._members)

    def _all(self) -> Sequence[RequestView]:
        if self._sorted is None:
            if self._kind == "waiting":
                self._sorted = self._state.waiting_order()
            elif self._kind == "running":
                self._sorted = self._state.running_order()
            else:
                self._sorted = list(reversed(self._state.finished))
        return self._sorted

    def window(self, first: int, number: int) -> Sequence[RequestView]:
        """Requests `first` … `first + number - 1` of the queue."""
        if self._sorted is None and self._kind != "finished" and first + number <= HEAP_UP_TO < len(self):
            start = heapq.nsmallest(first + number, self._members.values(), key=lambda r: r.key)
            return start[first:]
        if self._sorted is None and self._kind == "finished":
            return list(islice(reversed(self._state.finished), first, first + number))
        return self._all()[first : first + number]

    def index(self, request_id: str) -> int | None:
        """Place of a request in the queue."""
        if self._kind == "finished":
            return next((i for i, r in enumerate(reversed(self._state.finished)) if r.id == request_id), None)
        request = self._members.get(request_id)
        if request is None:
            return None
        key = request.key
        return sum(1 for r in self._members.values() if r.key < key)
