"""Containers that a policy's keys order: requests that wait, and requests that run."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vtop.engine.request import Key, Request, order_key


class WaitingQueue(Protocol):
    """Requests that wait; the one with the smallest key is next. Nothing but `ordered` may look at all of them.

    The key of a request may only change while it is outside.
    """

    def push(self, request: Request) -> None: ...

    def peek(self) -> Request | None: ...

    def remove(self, request: Request) -> None: ...

    def ordered(self) -> list[Request]: ...

    def __len__(self) -> int: ...

    def __contains__(self, request: object) -> bool: ...


def peek_many(queue: WaitingQueue, count: int) -> list[Request]:
    """The next `count` requests in order, at O(log n) each. The queue is as before."""
    taken: list[Request] = []
    while len(taken) < count and (head := queue.peek()) is not None:
        queue.remove(head)
        taken.append(head)
    for request in taken:
        queue.push(request)
    return taken


class HeapQueue:
    """A heap on `Request.key`. O(log n) to push and to pop, O(1) to remove: what was removed is skipped later."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Request]] = []
        self._alive: dict[Request, int] = {}  # -> serial of its entry
        self._serial = 0

    def push(self, request: Request) -> None:
        self._serial += 1
        self._alive[request] = self._serial
        heapq.heappush(self._heap, (request.key, self._serial, request))

    def peek(self) -> Request | None:
        while self._heap:
            _, serial, request = self._heap[0]
            if self._alive.get(request) == serial:
                return request
            heapq.heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        del self._alive[request]
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._alive):
            self._heap = [entry for entry in self._heap if self._is_alive(entry)]
            heapq.heapify(self._heap)

    def _is_alive(self, entry: tuple[Key, int, Request]) -> bool:
        return self._alive.get(entry[2]) == entry[1]

    def ordered(self) -> list[Request]:
        return [entry[2] for entry in sorted(e for e in self._heap if self._is_alive(e))]

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, request: object) -> bool:
        return request in self._alive


@dataclass(slots=True)
class _Bucket:
    """Waiting requests of one group at one level of what is more significant than fairness."""

    queue: HeapQueue = field(default_factory=HeapQueue)
    version: int = 0  # of its entry in the level's heap; other entries count no more


@dataclass(slots=True)
class _Level:
    """Buckets by group, and a heap of (counter, key of the bucket's head, version, group) with one valid entry each."""

    buckets: dict[str, _Bucket] = field(default_factory=dict)
    heap: list[tuple[float, Key, int, str]] = field(default_factory=list)


class FairQueue:
    """Requests ordered by `order_key`: key[:at], then the counter of the group, then the rest of the key.

    A counter changes for all requests of its group at once, so each group has a bucket and only buckets are compared.
    Counters never fall, so what the heap of buckets remembers is never too large: the top is looked at again until it
    is up to date. O(log n) amortised; a step costs at most one look per group whose counter it changed.
    """

    def __init__(self, at: int, counters: Mapping[str, float]) -> None:
        self._at = at
        self._counters = counters
        self._levels: dict[Key, _Level] = {}
        self._heads: list[Key] = []  # heap of the levels' keys, each once; empty levels leave when they get to the top
        self._count = 0
        self._versions = 0

    def push(self, request: Request) -> None:
        above = request.key[: self._at]
        level = self._levels.get(above)
        if level is None:
            level = self._levels[above] = _Level()
            heapq.heappush(self._heads, above)
        bucket = level.buckets.get(request.group)
        if bucket is None:
            bucket = level.buckets[request.group] = _Bucket()
        head = bucket.queue.peek()
        bucket.queue.push(request)
        self._count += 1
        if head is None or request.key < head.key:
            self._enter(level, bucket, request)

    def _enter(self, level: _Level, bucket: _Bucket, head: Request) -> None:
        self._versions += 1
        bucket.version = self._versions
        counter = self._counters.get(head.group, 0.0)
        heapq.heappush(level.heap, (counter, head.key, bucket.version, head.group))
        if len(level.heap) > 64 and len(level.heap) > 4 * len(level.buckets):
            level.heap = [e for e in level.heap if (b := level.buckets.get(e[3])) is not None and b.version == e[2]]
            heapq.heapify(level.heap)

    def peek(self) -> Request | None:
        while self._heads:
            level = self._levels[self._heads[0]]
            head = self._head_of(level)
            if head is not None:
                return head
            del self._levels[heapq.heappop(self._heads)]
        return None

    def _head_of(self, level: _Level) -> Request | None:
        heap = level.heap
        while heap:
            counter, key, version, group = heap[0]
            bucket = level.buckets.get(group)
            head = bucket.queue.peek() if bucket is not None and bucket.version == version else None
            if head is None:
                heapq.heappop(heap)  # a newer entry counts, or the bucket is empty
                continue
            now = self._counters.get(group, 0.0)
            if now == counter and head.key == key:
                return head
            heapq.heapreplace(heap, (now, head.key, version, group))
        return None

    def remove(self, request: Request) -> None:
        level = self._levels[request.key[: self._at]]
        bucket = level.buckets[request.group]
        bucket.queue.remove(request)
        if not bucket.queue:
            del level.buckets[request.group]
        self._count -= 1

    def ordered(self) -> list[Request]:
        alive = [r for level in self._levels.values() for b in level.buckets.values() for r in b.queue.ordered()]
        return sorted(alive, key=lambda r: order_key(r.key, r.group, self._at, self._counters))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: object) -> bool:
        if not isinstance(request, Request):
            return False
        level = self._levels.get(request.key[: self._at])
        bucket = level.buckets.get(request.group) if level is not None else None
        return bucket is not None and request in bucket.queue


class RunningList:
    """Requests that run, in order of their key. `num_seqs` counts their sequences, which `max_num_seqs` caps.

    `order` gives what to sort by when that is more than the key, and changes by itself (group counters).
    """

    def __init__(self, order: Callable[[Request], Key] | None = None) -> None:
        self._items: list[tuple[Key, int, Request]] = []
        self._order = order
        self.num_seqs = 0

    def push(self, request: Request) -> None:
        self.num_seqs += len(request.sequences)
        insort(self._items, (request.key, request.number, request))

    def remove(self, request: Request) -> None:
        index = bisect_left(self._items, (request.key, request.number), key=lambda item: item[:2])
        if index == len(self._items) or self._items[index][2] is not request:
            raise KeyError(request.request_id)
        del self._items[index]
        self.num_seqs -= len(request.sequences)

    def snapshot(self) -> list[Request]:
        """A copy in policy order: a pass over it may add and remove without missing or repeating anybody."""
        requests = [item[2] for item in self._items]
        if self._order is not None:
            requests.sort(key=self._order)
        return requests

    def __iter__(self) -> Iterator[Request]:
        """In any order."""
        return (item[2] for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and any(item[2] is request for item in self._items)
