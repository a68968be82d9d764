"""BlockPool: which blocks exist, who holds them, and in which order they are handed out.

A block is used (somebody holds it), cached (nobody does, but its content can be hit) or free. Free blocks are handed
out first, then cached ones, least recently used first; handing out a cached block evicts its content.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from vtop.engine.blocks.prefix import BlockKey, PrefixIndex
from vtop.engine.errors import NoFreeBlocks, PoolError


class BlockPool:
    """Blocks 0 … total - 1. `available` = free + cached is what can be handed out.

    Invariant I1: free + used + cached = total, and no count below 0. A call that raises has changed nothing.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise PoolError(f"a pool needs at least 1 block, not {total}")
        self.index = PrefixIndex()
        self._ref = [0] * total
        # in the order in which they are handed out; a linked list in C, so that either end and taking out are O(1)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._evicted: list[tuple[int, BlockKey, float]] = []
        self.now = 0.0  # engine time, as the scheduler says; only to tell when content was used last
        self._last_used = [0.0] * total

    @property
    def total(self) -> int:
        return len(self._ref)

    @property
    def free(self) -> int:
        """Blocks without holder and without content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks without holder whose content can be hit."""
        return len(self._cached)

    @property
    def available(self) -> int:
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        return len(self._ref) - self.available

    def ref_count(self, block: int) -> int:
        return self._ref[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with reference count 1, evicting cached ones when no free one is left.

        Raises NoFreeBlocks. What was evicted is told by `take_evicted`.
        """
        if count > self.available:
            raise NoFreeBlocks(count, self.available)
        taken = []
        for _ in range(count):
            if self._free:
                block, _ = self._free.popitem(last=False)
            else:
                block, _ = self._cached.popitem(last=False)
                self._evict(block)
            self._ref[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """Count one more holder of a block; one that nobody held leaves the list it was on, its content stays."""
        self._check(block)
        if self._ref[block] == 0:
            del (self._cached if block in self._cached else self._free)[block]
        self._ref[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Count one holder less per entry. Those without a holder become cached or free, in this order.

        Raises PoolError when a block would be released more often than it is held.
        """
        ref = self._ref
        wrong = sorted(b for b, n in Counter(blocks).items() if not 0 <= b < len(ref) or ref[b] < n)
        if wrong:
            raise PoolError(f"released more often than held: blocks {wrong}")
        for block in blocks:
            ref[block] -= 1
            if ref[block] == 0:
                self._last_used[block] = self.now
                (self._cached if block in self.index else self._free)[block] = None

    def put(self, block: int, key: BlockKey) -> None:
        """A held block is full and written: its content can be hit from now on."""
        self._check(block)
        if self._ref[block] == 0:
            raise PoolError(f"block {block} is held by nobody and cannot get content")
        self.index.put(block, key)

    def forget(self) -> int:
        """Drop all content: cached blocks become free, held ones can no longer be hit. Returns blocks forgotten."""
        forgotten = len(self.index)
        self.index.clear()
        self._free.update(self._cached)
        self._cached.clear()
        return forgotten

    def take_evicted(self) -> list[tuple[int, BlockKey, float]]:
        """Blocks whose content was evicted since the last call, with what they held and when they were held last."""
        taken, self._evicted = self._evicted, []
        return taken

    def resize(self, total: int) -> None:
        """Change the number of blocks. Those that go must not be held; their content is lost. Raises PoolError."""
        if total < 1:
            raise PoolError(f"a pool needs at least 1 block, not {total}")
        old = self.total
        held = [b for b in range(total, old) if self._ref[b]]
        if held:
            raise PoolError(f"blocks {held[:8]} are held and cannot go away")
        for block in range(total, old):
            if block in self.index:
                self._evict(block)
            self._free.pop(block, None)
            self._cached.pop(block, None)
        self._ref = self._ref[:total] + [0] * (total - old)
        self._last_used = self._last_used[:total] + [0.0] * (total - old)
        self._free.update(dict.fromkeys(range(old, total)))

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise PoolError unless counts equal the entries of `tables` and the lists hold exactly the rest."""
        held = Counter(block for table in tables for block in table)
        for block, count in enumerate(self._ref):
            if count != held.get(block, 0):
                raise PoolError(f"block {block}: reference count {count}, {held.get(block, 0)} table entries")
            if (block in self._free) + (block in self._cached) != (count == 0):
                raise PoolError(f"block {block} with {count} holders is on the wrong list")
            if count == 0 and (block in self.index) != (block in self._cached):
                raise PoolError(f"block {block}: content and list disagree")
        if self.available != self._ref.count(0):
            raise PoolError("a list holds a block that does not exist")

    def _check(self, block: int) -> None:
        if not 0 <= block < len(self._ref):
            raise PoolError(f"no block {block} in a pool of {len(self._ref)}")

    def _evict(self, block: int) -> None:
        key = self.index.drop(block)
        if key is not None:
            self._evicted.append((block, key, self._last_used[block]))
