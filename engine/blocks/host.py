"""HostPool: blocks in host memory, where the K/V of swapped-out sequences wait for room on the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vtop.engine import request as rq
from vtop.engine.blocks.pool import BlockPool
from vtop.engine.errors import NoFreeBlocks

Pairs = list[tuple[int, int]]
"""(source, target) blocks, in the order in which they are copied."""


class HostPool:
    """A second BlockPool, possibly of no blocks at all, with the two moves between it and the device pool.

    A moved sequence keeps what it computed: `blocks` and `host_blocks` exchange roles, nothing else changes.
    """

    def __init__(self, total: int, pool: BlockPool | None = None) -> None:
        self._pool = pool if pool is not None or total < 1 else BlockPool(total)

    @property
    def total(self) -> int:
        return self._pool.total if self._pool is not None else 0

    @property
    def free(self) -> int:
        return self._pool.available if self._pool is not None else 0

    @property
    def used(self) -> int:
        return self.total - self.free

    def ref_count(self, block: int) -> int:
        return self._pool.ref_count(block) if self._pool is not None else 0

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise PoolError unless counts equal the entries of `tables`, and the lists hold the rest."""
        if self._pool is not None:
            self._pool.check(tables)

    def swap_out(self, sequences: Iterable[rq.Sequence], device: BlockPool, *, share: bool = True) -> Pairs:
        """Move tables from the device to the host. Raises NoFreeBlocks, with nothing changed.

        A block that several tables hold is copied once; with share=False once for each of them.
        """
        moved = [seq for seq in sequences if seq.blocks]
        need = blocks_of((seq.blocks for seq in moved), share)
        if self._pool is None or need > self.free:
            raise NoFreeBlocks(need, self.free)
        return _move(moved, device, self._pool, share, to_host=True)

    def swap_in(
        self,
        sequences: Iterable[rq.Sequence],
        device: BlockPool,
        *,
        share: bool = True,
        kept: Mapping[rq.Sequence, Sequence[int]] | None = None,
    ) -> Pairs:
        """Move tables back to the device. Raises NoFreeBlocks, with nothing changed.

        `kept` are device blocks that still hold the beginning of a table: they are taken over without a copy.
        """
        kept = kept or {}
        moved = [seq for seq in sequences if seq.host_blocks]
        places = {host: block for seq in moved for host, block in zip(seq.host_blocks, kept.get(seq, ()), strict=False)}
        host = [block for seq in moved for block in (set(seq.host_blocks) if share else seq.host_blocks)]
        idle = {block for block in places.values() if device.ref_count(block) == 0}
        need = len(set(host) if share else host) - len(places) + len(idle)
        if self._pool is None or need > device.available:
            raise NoFreeBlocks(need, device.available)
        for block in places.values():
            device.share(block)
        pairs = _move(moved, self._pool, device, share, to_host=False, places=places)
        device.release(list(places.values()))
        return pairs

    def drop(self, seq: rq.Sequence) -> None:
        """The sequence ended while it was swapped out."""
        if self._pool is not None:
            self._pool.release(seq.host_blocks[::-1])
        seq.host_blocks.clear()


def blocks_of(tables: Iterable[Sequence[int]], share: bool) -> int:
    """How many blocks the tables take after a move."""
    blocks = [block for table in tables for block in table]
    return len(set(blocks)) if share else len(blocks)


def _move(
    moved: list[rq.Sequence],
    source: BlockPool,
    target: BlockPool,
    share: bool,
    *,
    to_host: bool,
    places: dict[int, int] | None = None,
) -> Pairs:
    """`places`: blocks of the target that stand for blocks of the source already, and need no copy."""
    pairs: Pairs = []
    places = dict(places or {})
    for seq in moved:
        old = list(seq.blocks if to_host else seq.host_blocks)
        new: list[int] = []
        if not share:
            places.clear()
        for block in old:
            if block in places:
                target.share(places[block])
            else:
                [places[block]] = target.allocate(1)
                pairs.append((block, places[block]))
            new.append(places[block])
        source.release(old)
        seq.blocks, seq.host_blocks = ([], new) if to_host else (new, [])
    return pairs
