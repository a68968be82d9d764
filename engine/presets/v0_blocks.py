"""V0Blocks: block tables as vLLM 0.6 keeps them. A table knows its tokens: new ones come in when they are scheduled."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from vtop.engine.blocks.host import HostPool, Pairs
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.blocks.prefix import BlockKey, extend_keys
from vtop.engine.presets.pools import StackPool
from vtop.engine.request import Request, Sequence


class Room(Enum):
    """Whether something fits: now, later, or never in this pool."""

    OK = "ok"
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
    """The newer manager of 0.6.

    Content is known from allocation on, so that equal prompts share blocks at once; but only written blocks count as
    computed. `faithful` is set by the conformance runner: then blocks count as written when their step is decided,
    and how much of a prompt is cached is looked up once, however long it waits (both can hand out wrong K/V).
    `half_full`: a last block with room counts as one that an append takes.
    """

    shares_on_swap = False  # a block that two sequences hold is copied for each of them

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool, host_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.stack = self.pool = StackPool(num_blocks)
        self.host = HostPool(host_blocks, StackPool(host_blocks) if host_blocks else None)
        self.faithful = False
        self.half_full = False
        self._filled: dict[Sequence, int] = {}  # tokens in the table
        self._looked_up: dict[Sequence, int] = {}
        self._written: set[int] = set()
        self._completing: set[int] = set()  # hashed by an append of this step: written when it is over
        self._used_at: dict[Sequence, int] = {}

    # --- what fits ---------------------------------------------------------------------------------------------------

    def filled(self, seq: Sequence) -> int:
        """Tokens in the table; the newest output is not, until it is scheduled."""
        return self._filled.get(seq, 0)

    def decodes(self, seq: Sequence) -> bool:
        """Whether the sequence is past its prefill: a token came that its table does not hold."""
        return 0 < self.filled(seq) < seq.num_tokens

    def room_for(self, blocks: int, watermark: int) -> Room:
        """Whether new tables of so many blocks fit, with the watermark; hits are not deducted."""
        return self._room(blocks, watermark, self.pool.total - watermark)

    def _room(self, need: int, watermark: int, most: int) -> Room:
        if need > most:
            return Room.NEVER
        return Room.OK if self.pool.available - need >= watermark else Room.LATER

    def touched(self, seq: Sequence, lookahead: int) -> int:
        """Blocks that the next append writes to, or (not half_full) takes."""
        filled, size = self.filled(seq), self.block_size
        unseen = seq.num_tokens - filled
        # a chunk that takes nothing needs nothing, unless faithful: it would never end in a full pool
        if self.half_full and (unseen or self.faithful):
            return max(0, 1 - (size - filled % size - unseen - lookahead) // size)
        copies = unseen > 0 and self.must_copy(seq, filled)
        return max(0, self.blocks_for(filled + unseen + lookahead) - len(seq.blocks)) + copies

    def can_append(self, seqs: list[Sequence], lookahead: int) -> bool:
        return sum(self.touched(seq, lookahead) for seq in seqs) <= self.pool.available

    def room_to_swap_out(self, seqs: list[Sequence]) -> bool:
        need = sum(len(seq.blocks) for seq in seqs)
        if self.faithful:  # more than it takes
            need = max(need, self._full_and_touched(seqs, 0))
        return need <= self.host.free

    def room_to_swap_in(self, seqs: list[Sequence], lookahead: int, watermark: int) -> Room:
        return self._room(self.swap_in_need(seqs, lookahead), watermark, self.pool.total)

    def swap_in_need(self, seqs: list[Sequence], lookahead: int) -> int:
        """Blocks that must be free for sequences to return and go on."""
        if self.faithful:
            return self._full_and_touched(seqs, lookahead)
        return sum(max(len(seq.host_blocks), self.blocks_for(seq.num_tokens + lookahead)) for seq in seqs)

    def _full_and_touched(self, seqs: list[Sequence], lookahead: int) -> int:
        return sum(self.filled(seq) // self.block_size + self.touched(seq, lookahead) for seq in seqs)

    # --- changes of tables -------------------------------------------------------------------------------------------

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting sequence that need not be computed."""
        if not self.looks_up(seq) or (self.filled(seq) and not self.faithful):
            return 0
        if self.faithful and seq in self._looked_up:
            return self._looked_up[seq]
        count = 0
        for key in self._keys_of(seq, seq.num_tokens):
            block = self.pool.index.find(key)
            if block is None or not self._is_written(block):
                break
            count += 1
        self._looked_up[seq] = count * self.block_size
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

    def append(self, seq: Sequence, lookahead: int) -> TableChange:
        """Room for the unseen tokens and the lookahead; a shared block that is written to is copied first."""
        change = TableChange()
        filled, end = self.filled(seq), seq.num_tokens
        self._fill_up(seq, change, end + lookahead)
        if end > filled and self.must_copy(seq, filled):
            logical = filled // self.block_size
            change.copied.append((logical, *self.copy_on_write(seq, filled)))
            self._written.discard(seq.blocks[logical])
        self._filled[seq] = end
        for logical in range(filled // self.block_size, end // self.block_size):
            if self.prefix_caching:
                self._complete(seq, logical, change)
        return change

    def _complete(self, seq: Sequence, logical: int, change: TableChange) -> None:
        key, own = self._keys_of(seq, seq.num_tokens)[logical], seq.blocks[logical]
        known = self.pool.index.find(key)
        if known is None:
            self.pool.put(own, key)
            self._completing.add(own)
            change.hashed.append(own)
        elif known != own and (self.faithful or known in self._completing or self._is_written(known)):
            self._share(known)
            seq.blocks[logical] = known
            self.pool.release([own])
            change.merged.append((logical, own, known))

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

    def decided(self, seqs: list[Sequence], serial: int) -> None:
        """A step with these sequences is decided."""
        self._used_at.update(dict.fromkeys(seqs, serial))
        if self.faithful:
            for seq in seqs:
                self._written.update(seq.blocks)

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
        self._looked_up.pop(seq, None)
        return blocks

    def _let_go(self, seq: Sequence) -> None:
        self.stack.touch(seq.blocks, self._used_at.pop(seq, -1))
        if not self.faithful:
            ref_count = self.pool.ref_count
            self.stack.evict(b for b in seq.blocks if ref_count(b) == 1 and b not in self._written)

    def fork(self, parent: Sequence, child: Sequence) -> list[int]:
        self._filled[child] = self.filled(parent)
        return super().fork(parent, child)

    def forget_sequence(self, seq: Sequence) -> None:
        super().forget_sequence(seq)
        self._filled.pop(seq, None)
        self._looked_up.pop(seq, None)

    def swap_out(self, request: Request) -> Pairs:
        for seq in request.sequences:
            if self.prefix_caching:
                self._let_go(seq)
        return self.host.swap_out(request.sequences, self.pool, share=self.shares_on_swap)

    def swap_in(self, request: Request) -> Pairs:
        pairs = self.host.swap_in(request.sequences, self.pool, share=self.shares_on_swap)
        self._written.difference_update(block for _, block in pairs)
        return pairs


class V0OlderBlocks(V0Blocks):
    """The older manager of 0.6.2: high block ids first, one free block for each sequence that appends, no lookahead."""

    shares_on_swap = True

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool, host_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching, host_blocks=host_blocks)
        self.stack = self.pool = StackPool(num_blocks, highest_first=True)
        self.host = HostPool(host_blocks, StackPool(host_blocks, highest_first=True) if host_blocks else None)

    def can_append(self, seqs: list[Sequence], lookahead: int) -> bool:
        return len(seqs) <= self.pool.available

    def room_to_swap_out(self, seqs: list[Sequence]) -> bool:
        return len({block for seq in seqs for block in seq.blocks}) <= self.host.free

    def swap_in_need(self, seqs: list[Sequence], lookahead: int) -> int:
        return len({block for seq in seqs for block in seq.host_blocks}) + len(seqs)
