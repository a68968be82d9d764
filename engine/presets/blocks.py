"""Block tables and pools as vLLM keeps them: which block is handed out next, and who shares one.

Numbers are those of `RULES.md`: of V0's list in V0Blocks and StackPool, of V1's in V1Blocks and FrontPool.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from enum import Enum

from vtop.engine.blocks.host import HostPool, Pairs
from vtop.engine.blocks.manager import BlockManager, PrefixHit
from vtop.engine.blocks.pool import BlockPool
from vtop.engine.blocks.prefix import BlockKey, extend_keys
from vtop.engine.errors import NoFreeBlocks
from vtop.engine.request import Request, Sequence


class FrontPool(BlockPool):
    """V1: freed blocks without content go to the front in the order given, so they are handed out first (11)."""

    def release(self, blocks: Sequence_[int]) -> None:
        super().release(blocks)
        self._to_front(reversed(blocks))

    def _to_front(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._free:
                self._free.move_to_end(block, last=False)


class StackPool(FrontPool):
    """V0: the block that was freed last is handed out first. Cached ones go by last use, then by depth (28)."""

    def __init__(self, total: int, *, highest_first: bool = False) -> None:
        super().__init__(total)
        self._used_at: dict[int, int] = {}
        if highest_first:
            self._to_front(range(total))

    def release(self, blocks: Sequence_[int]) -> None:
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


class V1Blocks(BlockManager):
    """A hit never covers the last token: of a prompt that is cached to its end the last block is computed again (8).

    So no block that others read is ever written, and none is ever copied.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.pool = FrontPool(num_blocks)

    def match(self, seq: Sequence) -> PrefixHit:
        hit = super().match(seq)
        whole = len(hit.blocks) * self.block_size >= seq.num_tokens
        return self.without_copy(hit) if hit.blocks and whole else hit


class Fit(Enum):
    """Whether something fits: now, later, or never in this pool."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(slots=True)
class TableChange:
    """What happened to one table: blocks added at its end, replaced by copies, merged into equal ones, given content.

    `copied` and `merged` are (logical index, old block, new block).
    """

    taken: list[int] = field(default_factory=list)
    copied: list[tuple[int, int, int]] = field(default_factory=list)
    merged: list[tuple[int, int, int]] = field(default_factory=list)
    hashed: list[int] = field(default_factory=list)


class V0Blocks(BlockManager):
    """The newer block manager of 0.6. A table knows its tokens: new ones come in when they are scheduled.

    Content is known from allocation on, so that equal prompts share blocks at once; but only written blocks count as
    computed (26). `half_full`, a fault: a last block with room counts as one that an append takes (13).
    """

    pool: StackPool
    shares_on_swap = False  # a block that two sequences hold is copied for each of them (19)

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool, host_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.pool = StackPool(num_blocks)
        self.host = HostPool(host_blocks, StackPool(host_blocks) if host_blocks else None)
        self.half_full = False
        self._filled: dict[Sequence, int] = {}  # tokens in the table
        self._written: set[int] = set()
        self._completing: set[int] = set()  # hashed by an append of this step: written when it is over
        self._used_at: dict[Sequence, int] = {}  # step
        self._steps = 0

    # --- what fits ---------------------------------------------------------------------------------------------------

    def filled(self, seq: Sequence) -> int:
        """Tokens in the table; the newest output is not, until it is scheduled."""
        return self._filled.get(seq, 0)

    def decodes(self, seq: Sequence) -> bool:
        """Whether the sequence is past its prefill: a token came that its table does not hold."""
        return 0 < self.filled(seq) < seq.num_tokens

    def can_allocate(self, blocks: int, watermark: int) -> Fit:
        """Whether new tables of so many blocks fit, with the watermark; hits are not deducted (8)."""
        return self._fit(blocks, watermark, self.pool.total - watermark)

    def _fit(self, need: int, watermark: int, most: int) -> Fit:
        if need > most:
            return Fit.NEVER
        return Fit.NOW if self.pool.available - need >= watermark else Fit.LATER

    def touched(self, seq: Sequence) -> int:
        """Blocks that the next append takes; with `half_full` also one that it only writes to (13)."""
        filled, size = self.filled(seq), self.block_size
        unseen = seq.num_tokens - filled
        if self.half_full and unseen:
            return max(0, 1 - (size - filled % size - unseen) // size)
        copies = unseen > 0 and self.must_copy(seq, filled)
        return self.missing(seq, seq.num_tokens) + copies

    def can_append(self, seqs: list[Sequence]) -> bool:
        return sum(self.touched(seq) for seq in seqs) <= self.pool.available

    def can_swap_out(self, seqs: list[Sequence]) -> bool:
        return sum(len(seq.blocks) for seq in seqs) <= self.host.free

    def can_swap_in(self, seqs: list[Sequence], watermark: int) -> Fit:
        return self._fit(self.swap_in_need(seqs), watermark, self.pool.total)

    def swap_in_need(self, seqs: list[Sequence]) -> int:
        """Blocks that must be free for sequences to return and go on (18)."""
        return sum(max(len(seq.host_blocks), self.blocks_for(seq.num_tokens)) for seq in seqs)

    # --- changes of tables -------------------------------------------------------------------------------------------

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting sequence that need not be computed."""
        return 0 if self.filled(seq) or not self.looks_up(seq) else self._find_cached(seq)

    def _find_cached(self, seq: Sequence) -> int:
        count = 0
        for key in self._keys_of(seq, seq.num_tokens):
            block = self.pool.index.find(key)
            if block is None or not self._is_written(block):
                break
            count += 1
        return count * self.block_size

    def allocate(self, seq: Sequence) -> TableChange:
        """Give a new table all blocks of its tokens, sharing those whose content is known."""
        change = TableChange()
        for key in self._keys_of(seq, seq.num_tokens):
            known = self.pool.index.find(key)
            if known is not None:
                self._share(known)
                change.taken.append(known)
                seq.blocks.append(known)
            else:
                block = self._take(seq, change)
                self.pool.put(block, key)
                change.hashed.append(block)
        self._fill_up(seq, change, seq.num_tokens)
        self._filled[seq] = seq.num_tokens
        return change

    def append(self, seq: Sequence) -> TableChange:
        """Slots for the unseen tokens; a shared block that is written to is copied first (23)."""
        change = TableChange()
        filled, end = self.filled(seq), seq.num_tokens
        self._fill_up(seq, change, self._slots(seq))
        if end > filled and self.must_copy(seq, filled):
            logical = filled // self.block_size
            change.copied.append((logical, *self.copy_on_write(seq, filled)))
            self._written.discard(seq.blocks[logical])
        self._filled[seq] = end
        for logical in range(filled // self.block_size, end // self.block_size):
            if self.prefix_caching:
                self._complete(seq, logical, change)
        return change

    def _slots(self, seq: Sequence) -> int:
        """Slots that a sequence has after an append."""
        return seq.num_tokens

    def _complete(self, seq: Sequence, logical: int, change: TableChange) -> None:
        """A block is full: others can share it, or it is freed for an equal one that is there already (27)."""
        key, own = self._keys_of(seq, seq.num_tokens)[logical], seq.blocks[logical]
        known = self.pool.index.find(key)
        if known is None:
            self.pool.put(own, key)
            self._completing.add(own)
            change.hashed.append(own)
        elif known != own and self._is_shareable(known):
            self._share(known)
            seq.blocks[logical] = known
            self.pool.release([own])
            change.merged.append((logical, own, known))

    def _is_shareable(self, block: int) -> bool:
        """Whether a decode may take this block for its own: written when its step runs, at the latest."""
        return block in self._completing or self._is_written(block)

    def _fill_up(self, seq: Sequence, change: TableChange, tokens: int) -> None:
        for _ in range(self.missing(seq, tokens)):
            self._take(seq, change)

    def _take(self, seq: Sequence, change: TableChange) -> int:
        [block] = self.pool.allocate(1)
        self._written.discard(block)
        seq.blocks.append(block)
        change.taken.append(block)
        return block

    def _share(self, block: int) -> None:
        if self._is_written(block):
            self._written.add(block)
        self.pool.share(block)

    def _keys_of(self, seq: Sequence, tokens: int) -> list[BlockKey]:
        if not self.prefix_caching:
            return []
        keys = self._keys.setdefault(seq, [])
        full = tokens // self.block_size
        extend_keys(keys, seq.token_ids, self.block_size, full, seq.salt, self._hasher)
        return keys[:full]

    # --- written, used, gone -----------------------------------------------------------------------------------------

    def _is_written(self, block: int) -> bool:
        return block in self._written or self.pool.ref_count(block) == 0

    def decided(self, seqs: list[Sequence]) -> None:
        """A step with these sequences is decided."""
        self._steps += 1
        self._used_at.update(dict.fromkeys(seqs, self._steps))

    def written(self, seq: Sequence) -> None:
        """K/V of the computed tokens are there."""
        self._written.update(seq.blocks[: seq.num_computed // self.block_size])
        self._completing.difference_update(seq.blocks)

    def free(self, seq: Sequence) -> list[int]:
        """As in the base, but head first: the pool hands out the block that was freed last.

        Content that was promised and is not going to be written is evicted.
        """
        blocks = list(seq.blocks)
        if self.prefix_caching:
            self._let_go(seq)
        self.pool.release(blocks)
        seq.blocks.clear()
        seq.num_computed = seq.num_indexed = 0
        self._filled.pop(seq, None)
        return blocks

    def _let_go(self, seq: Sequence) -> None:
        self.pool.touch(seq.blocks, self._used_at.pop(seq, -1))
        self._forget_unwritten(seq)

    def _forget_unwritten(self, seq: Sequence) -> None:
        ref_count = self.pool.ref_count
        self.pool.evict(b for b in seq.blocks if ref_count(b) == 1 and b not in self._written)

    def fork(self, parent: Sequence, child: Sequence) -> list[int]:
        self._filled[child] = self.filled(parent)
        return super().fork(parent, child)

    def forget_sequence(self, seq: Sequence) -> None:
        super().forget_sequence(seq)
        self._filled.pop(seq, None)

    def swap_out(self, request: Request) -> Pairs:
        for seq in request.sequences:
            if self.prefix_caching:
                self._let_go(seq)
        return self.host.swap_out(request.sequences, self.pool, share=self.shares_on_swap)

    def swap_in(self, request: Request) -> Pairs:
        pairs = self.host.swap_in(request.sequences, self.pool, share=self.shares_on_swap)
        self._written.difference_update(block for _, block in pairs)
        return pairs
