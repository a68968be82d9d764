"""Pools whose blocks are handed out in the order in which vLLM's would be."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from vtop.engine.blocks.pool import BlockPool
from vtop.engine.errors import NoFreeBlocks


class FrontPool(BlockPool):
    """V1: freed blocks without content go to the front in the order given, so they are handed out before all others."""

    def release(self, blocks: Sequence[int]) -> None:
        super().release(blocks)
        self._to_front(reversed(blocks))

    def _to_front(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._free:
                self._free.move_to_end(block, last=False)


class StackPool(FrontPool):
    """V0: the block that was freed last is handed out first. Cached ones go by last use, then the deepest prefix."""

    def __init__(self, total: int, *, highest_first: bool = False) -> None:
        super().__init__(total)
        self._used_at: dict[int, int] = {}
        if highest_first:
            self._to_front(range(total))

    def release(self, blocks: Sequence[int]) -> None:
        BlockPool.release(self, blocks)
        self._to_front(blocks)

    def touch(self, blocks: Iterable[int], serial: int) -> None:
        """The blocks were last used in the step of that serial number."""
        self._used_at.update(dict.fromkeys(blocks, serial))

    def evict(self, blocks: Iterable[int]) -> None:
        """Drop the content of held blocks: it is not going to be written."""
        for block in blocks:
            self._evict(block)

    def allocate(self, count: int) -> list[int]:
        if count > self.available:
            raise NoFreeBlocks(count, self.available)
        if count > self.free:
            oldest = heapq.nsmallest(count - self.free, self._cached, key=self._eviction_key)
            for block in reversed(oldest):
                self._cached.move_to_end(block, last=False)
        taken = super().allocate(count)
        for block in taken:
            self._used_at.pop(block, None)
        return taken

    def _eviction_key(self, block: int) -> tuple[int, int]:
        key = self.index.key_of(block)
        return self._used_at.get(block, -1), -key.depth if key is not None else 0
