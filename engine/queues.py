"""Containers that a policy's keys order: requests that wait, and requests that run."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from vtop.engine.request import Request


class WaitingQueue(Protocol):
    """Requests that wait; the one with the smallest key is next. Nothing but `ordered` may look at all of them."""

    def push(self, request: Request) -> None: ...

    def peek(self) -> Request | None: ...

    def remove(self, request: Request) -> None: ...

    def ordered(self) -> list[Request]: ...

    def __len__(self) -> int: ...

    def __contains__(self, request: object) -> bool: ...


class HeapQueue:
    """A heap on `Request.key`. O(log n) to push and to pop, O(1) to remove: what was removed is skipped later."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], int, Request]] = []
        self._alive: dict[str, tuple[int, Request]] = {}  # id -> (entry serial, request)
        self._serial = 0

    def push(self, request: Request) -> None:
        self._serial += 1
        self._alive[request.request_id] = (self._serial, request)
        heapq.heappush(self._heap, (request.key, self._serial, request))

    def peek(self) -> Request | None:
        while self._heap:
            _, serial, request = self._heap[0]
            entry = self._alive.get(request.request_id)
            if entry is not None and entry[0] == serial:
                return request
            heapq.heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        del self._alive[request.request_id]
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._alive):
            self._heap = [entry for entry in self._heap if self._is_alive(entry)]
            heapq.heapify(self._heap)

    def _is_alive(self, entry: tuple[tuple[float, ...], int, Request]) -> bool:
        alive = self._alive.get(entry[2].request_id)
        return alive is not None and alive[0] == entry[1]

    def ordered(self) -> list[Request]:
        return [entry[2] for entry in sorted(e for e in self._heap if self._is_alive(e))]

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, request: object) -> bool:
        if not isinstance(request, Request):
            return False
        entry = self._alive.get(request.request_id)
        return entry is not None and entry[1] is request


class RunningList:
    """Requests that run, in order of their key. `seats` counts their sequences."""

    def __init__(self) -> None:
        self._items: list[tuple[tuple[float, ...], int, Request]] = []
        self.seats = 0

    def add(self, request: Request) -> None:
        self.seats += len(request.sequences)
        insort(self._items, (request.key, request.number, request))

    def remove(self, request: Request) -> None:
        index = bisect_left(self._items, (request.key, request.number), key=lambda item: item[:2])
        if index == len(self._items) or self._items[index][2] is not request:
            raise KeyError(request.request_id)
        del self._items[index]
        self.seats -= len(request.sequences)

    def snapshot(self) -> list[Request]:
        """A copy in policy order: a pass over it may add and remove without missing or repeating anybody."""
        return [item[2] for item in self._items]

    def __iter__(self) -> Iterator[Request]:
        return (item[2] for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and any(item[2] is request for item in self._items)
