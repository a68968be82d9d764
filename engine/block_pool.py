"""BlockPool: which blocks exist, who holds them, and in which order free ones are handed out.

The free list is a doubly linked list threaded through two lists of neighbours, so taking from the front, putting at
the back and taking out of the middle are O(1) and free blocks leave in the order in which they were last used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from vtop.engine.errors import NoFreeBlocks, PoolError

_OUT = -1  # in `_next`: the block is not on the free list


class BlockPool:
    """Blocks 0 … total - 1, each free (reference count 0, on the free list) or used (count above 0).

    Invariant I1: free + used = total, and no count below 0. A call that raises has changed nothing.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise PoolError(f"a pool needs at least 1 block, not {total}")
        self._ref = [0] * total
        self._link_all(total)

    def _link_all(self, total: int) -> None:
        # entry `total` is the sentinel: its next is the front, its previous the back
        self._next = [*range(1, total), total, 0]
        self._prev = [total, *range(total)]
        self._free = total

    @property
    def total(self) -> int:
        return len(self._ref)

    @property
    def free(self) -> int:
        return self._free

    @property
    def used(self) -> int:
        return len(self._ref) - self._free

    def ref_count(self, block: int) -> int:
        return self._ref[block]

    def free_order(self) -> Iterator[int]:
        """Free blocks, the next one to be handed out first."""
        sentinel = self.total
        block = self._next[sentinel]
        while block != sentinel:
            yield block
            block = self._next[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the front of the free list, each with reference count 1. Raises NoFreeBlocks."""
        if count > self._free:
            raise NoFreeBlocks(count, self._free)
        following, previous, ref = self._next, self._prev, self._ref
        sentinel = len(ref)
        taken = []
        block = following[sentinel]
        for _ in range(count):
            taken.append(block)
            ref[block] = 1
            after = following[block]
            following[block] = _OUT
            block = after
        following[sentinel] = block
        previous[block] = sentinel
        self._free -= count
        return taken

    def share(self, block: int) -> None:
        """Count one more holder of a block. A free block leaves the free list."""
        self._check(block)
        if self._ref[block] == 0:
            self._unlink(block)
        self._ref[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Count one holder less per entry; those without a holder go to the back of the free list, in this order.

        Raises PoolError when a block would be released more often than it is held.
        """
        ref = self._ref
        if len(set(blocks)) == len(blocks):
            ok = all(0 <= b < len(ref) and ref[b] > 0 for b in blocks)
        else:
            ok = all(0 <= b < len(ref) and ref[b] >= n for b, n in Counter(blocks).items())
        if not ok:
            wrong = sorted({b for b, n in Counter(blocks).items() if not 0 <= b < len(ref) or ref[b] < n})
            raise PoolError(f"released more often than held: blocks {wrong}")
        for block in blocks:
            ref[block] -= 1
            if ref[block] == 0:
                self._link_back(block)

    def resize(self, total: int) -> None:
        """Change the number of blocks. Blocks that go away must be free. Raises PoolError."""
        if total < 1:
            raise PoolError(f"a pool needs at least 1 block, not {total}")
        old = self.total
        held = [b for b in range(total, old) if self._ref[b]]
        if held:
            raise PoolError(f"blocks {held[:8]} are held and cannot go away")
        order = [b for b in self.free_order() if b < total] + list(range(old, total))
        self._ref = self._ref[:total] + [0] * (total - old)
        self._next = [_OUT] * (total + 1)
        self._prev = [_OUT] * (total + 1)
        self._next[total] = self._prev[total] = total
        self._free = 0
        for block in order:
            self._link_back(block)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise PoolError unless counts equal the entries of `tables` and the free list holds exactly the rest."""
        held = Counter(block for table in tables for block in table)
        for block, count in enumerate(self._ref):
            if count != held.get(block, 0):
                raise PoolError(f"block {block}: reference count {count}, {held.get(block, 0)} table entries")
        free = list(self.free_order())
        if len(free) != self._free or sorted(free) != [b for b, count in enumerate(self._ref) if count == 0]:
            raise PoolError(f"free list of {len(free)} entries does not match {self._free} free blocks")

    def _check(self, block: int) -> None:
        if not 0 <= block < len(self._ref):
            raise PoolError(f"no block {block} in a pool of {len(self._ref)}")

    def _link_back(self, block: int) -> None:
        sentinel = len(self._ref)
        last = self._prev[sentinel]
        self._next[last] = block
        self._prev[block] = last
        self._next[block] = sentinel
        self._prev[sentinel] = block
        self._free += 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = _OUT
        self._free -= 1
