"""BlockList: a list of block ids in which taking from the front, putting at either end and taking out are O(1)."""

from __future__ import annotations

from collections.abc import Iterator

_OUT = -1


class BlockList:
    """Doubly linked through two lists of neighbours; entry `size` is the sentinel before the front and after the back.

    A block is in the list at most once; membership of ids 0 … size - 1 is asked with `in`.
    """

    def __init__(self, size: int) -> None:
        self._next = [_OUT] * size + [size]
        self._prev = [_OUT] * size + [size]
        self._sentinel = size
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: int) -> bool:
        return self._next[block] != _OUT

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._sentinel]
        while block != self._sentinel:
            yield block
            block = self._next[block]

    def push_back(self, block: int) -> None:
        self._insert(self._prev[self._sentinel], block, self._sentinel)

    def push_front(self, block: int) -> None:
        self._insert(self._sentinel, block, self._next[self._sentinel])

    def pop_front(self) -> int:
        block = self._next[self._sentinel]
        if block == self._sentinel:
            raise IndexError("the list is empty")
        self.remove(block)
        return block

    def remove(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = _OUT
        self._count -= 1

    def _insert(self, before: int, block: int, after: int) -> None:
        self._next[before] = block
        self._prev[block] = before
        self._next[block] = after
        self._prev[after] = block
        self._count += 1
