"""BlockManager: block tables of sequences over a pool. Queries (`missing`, `match` …) change nothing in the pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine.blocks.host import HostPool, Pairs
from vtop.engine.blocks.pool import BlockPool
from vtop.engine.blocks.prefix import BlockKey, Hasher, blake2_hash, extend_keys
from vtop.engine.request import Request, Sequence


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What a prefix lookup found: blocks in table order, and how many tokens need not be computed.

    `copy_last`: the whole sequence is cached, and others hold its last block. That block is copied, because the last
    token must be computed for its logits and is not to be written where others read.
    """

    blocks: list[int] = field(default_factory=list)
    tokens: int = 0
    copy_last: bool = False


NO_HIT = PrefixHit()


class BlockManager:
    """Gives blocks to sequences and takes them back. `block_size` is tokens per block.

    With `prefix_caching`, full written blocks can be hit by later sequences with the same beginning and salt.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = False,
        hasher: Hasher = blake2_hash,
        host_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_blocks)
        self.host = HostPool(host_blocks)
        self._hasher = hasher
        self._keys: dict[Sequence, list[BlockKey]] = {}  # of the sequence's full blocks, as far as asked for

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` slots take."""
        return -(-tokens // self.block_size)

    def missing(self, seq: Sequence, tokens: int) -> int:
        """Blocks the sequence lacks to have slots for its first `tokens` tokens."""
        return max(0, -(-tokens // self.block_size) - len(seq.blocks))

    def lacks(self, seq: Sequence, tokens: int) -> int:
        """As `missing`; of a sample that waits for its prompt, without the blocks that it is going to share."""
        waits = not seq.blocks and not seq.host_blocks and seq is not seq.request.computing[0]
        return self.missing(seq, tokens) - (seq.prompt_len // self.block_size if waits else 0)

    def holds_beyond(self, request: Request, num_blocks: int) -> bool:
        """Whether the request holds a block that a pool of `num_blocks` would not have."""
        return any(block >= num_blocks for seq in request.sequences for block in seq.blocks)

    def least_blocks(self, request: Request) -> int:
        """Blocks that the known tokens of a request take when its samples share the prompt's whole blocks only."""
        leader, *others = request.computing
        shared = leader.prompt_len // self.block_size
        return self.blocks_for(leader.num_tokens) + sum(self.blocks_for(seq.num_tokens) - shared for seq in others)

    def ever_returns(self, request: Request) -> bool:
        """Whether a request that holds no device block fits in the whole pool."""
        host = {block for seq in request.sequences for block in seq.host_blocks}
        return max(self.least_blocks(request), len(host)) <= self.pool.total

    def only_held_by(self, request: Request) -> set[int]:
        """Blocks that nobody else holds: what preempting the request would give back."""
        ref_count = self.pool.ref_count
        return {block for seq in request.sequences for block in seq.blocks if ref_count(block) == 1}

    # --- prefix ----------------------------------------------------------------------------------------------------

    def looks_up(self, seq: Sequence) -> bool:
        """Whether cached blocks may take the place of computing the sequence's tokens."""
        return self.prefix_caching and not seq.tells_prompt

    def match(self, seq: Sequence) -> PrefixHit:
        """The longest cached beginning of an unallocated sequence. At least one token is left to compute."""
        if not self.looks_up(seq):
            return NO_HIT
        keys = self._keys.setdefault(seq, [])
        full = len(seq.token_ids) // self.block_size
        blocks: list[int] = []
        for index in range(full):
            if index == len(keys):
                extend_keys(keys, seq.token_ids, self.block_size, index + 1, seq.salt, self._hasher)
            block = self.pool.index.find(keys[index])
            if block is None:
                break
            stored = self.pool.index.key_of(block)
            if stored is not None:
                keys[index] = stored  # one chain for equal content: the next comparison ends at once
            blocks.append(block)
        tokens = len(blocks) * self.block_size
        if tokens < len(seq.token_ids):
            return PrefixHit(blocks, tokens)
        return PrefixHit(blocks, tokens - 1, copy_last=self.pool.ref_count(blocks[-1]) > 0)

    def cost(self, hit: PrefixHit) -> int:
        """What adopting a hit takes from `available`: its blocks that nobody holds, and the copy."""
        return sum(self.pool.ref_count(block) == 0 for block in hit.blocks) + hit.copy_last

    def without_copy(self, hit: PrefixHit) -> PrefixHit:
        """The same hit without its last block, where a copy of it does not fit."""
        blocks = hit.blocks[:-1]
        return PrefixHit(blocks, len(blocks) * self.block_size)

    def adopt(self, seq: Sequence, hit: PrefixHit) -> tuple[int, int] | None:
        """Begin the sequence's table with the blocks of a hit. Returns the (source, target) of the copy, if any.

        Raises NoFreeBlocks, with nothing changed, when the copy finds no block.
        """
        for block in hit.blocks:
            self.pool.share(block)
        seq.blocks.extend(hit.blocks)
        seq.num_computed = hit.tokens
        if not hit.copy_last:
            return None
        try:
            return self.copy_on_write(seq, hit.tokens)
        except Exception:
            self.free(seq)
            raise

    def index_written(self, seq: Sequence, computed: int) -> list[int]:
        """K/V of the first `computed` tokens are written: full blocks can be hit from now on. Returns new ones."""
        if not self.prefix_caching:
            return []
        full = computed // self.block_size
        keys = self._keys.setdefault(seq, [])
        extend_keys(keys, seq.token_ids, self.block_size, full, seq.salt, self._hasher)
        new = []
        for index in range(seq.num_indexed, full):
            block = seq.blocks[index]
            if block not in self.pool.index:
                self.pool.put(block, keys[index])
                new.append(block)
        seq.num_indexed = max(seq.num_indexed, full)
        return new

    def forget_sequence(self, seq: Sequence) -> None:
        """The sequence ended: its keys are needed no more."""
        self._keys.pop(seq, None)

    # --- host pool -------------------------------------------------------------------------------------------------

    def return_hit(self, seq: Sequence) -> PrefixHit:
        """What of a swapped-out sequence is still cached on the device: whole blocks that need no copy."""
        hit = self.match(seq)
        blocks = hit.blocks[: seq.num_computed // self.block_size]
        return PrefixHit(blocks, len(blocks) * self.block_size)

    def swap_out(self, request: Request) -> Pairs:
        """Move a request's tables to the host pool; returns (device, host) blocks to copy. Raises NoFreeBlocks."""
        pairs = self.host.swap_out(request.sequences, self.pool)
        for seq in request.sequences:
            seq.num_indexed = 0
        return pairs

    def swap_in(self, request: Request) -> Pairs:
        """Move tables back; returns (host, device) blocks to copy. Raises NoFreeBlocks.

        Blocks whose content is still cached are shared instead of copied, so that sharing is as it was.
        """
        hits = {seq: self.return_hit(seq) for seq in request.computing if seq.host_blocks}
        pairs = self.host.swap_in(hits, self.pool, kept={seq: hit.blocks for seq, hit in hits.items()})
        for seq, hit in hits.items():
            seq.num_indexed = len(hit.blocks)
        return pairs

    # --- tables ----------------------------------------------------------------------------------------------------

    def grow(self, seq: Sequence, tokens: int) -> list[int]:
        """Give the sequence slots for its first `tokens` tokens; returns the new blocks. Raises NoFreeBlocks."""
        taken = self.pool.allocate(self.missing(seq, tokens))
        seq.blocks.extend(taken)
        return taken

    def fork(self, parent: Sequence, child: Sequence) -> list[int]:
        """The child shares every block of the parent; returns them."""
        for block in parent.blocks:
            self.pool.share(block)
        child.blocks = list(parent.blocks)
        child.num_computed = parent.num_computed
        child.num_indexed = parent.num_indexed
        self._keys[child] = list(self._keys.get(parent, ()))
        return list(child.blocks)

    def share_prompt(self, parent: Sequence, child: Sequence) -> list[int]:
        """A child without blocks takes over whole blocks of the prompt that the parent has computed; returns them."""
        full = min(parent.num_computed, parent.prompt_len) // self.block_size
        child.blocks = parent.blocks[:full]
        for block in child.blocks:
            self.pool.share(block)
        child.num_computed = full * self.block_size
        child.num_indexed = min(full, parent.num_indexed)
        return list(child.blocks)

    def must_copy(self, seq: Sequence, position: int) -> bool:
        """Whether the block that holds slot `position` is shared, so that writing there needs a copy first."""
        index = position // self.block_size
        return index < len(seq.blocks) and self.pool.ref_count(seq.blocks[index]) > 1

    def copy_on_write(self, seq: Sequence, position: int) -> tuple[int, int]:
        """Give the sequence a block of its own for slot `position`; returns (source, target). Raises NoFreeBlocks."""
        index = position // self.block_size
        source = seq.blocks[index]
        [target] = self.pool.allocate(1)
        seq.blocks[index] = target
        self.pool.release([source])
        return source, target

    def free(self, seq: Sequence) -> list[int]:
        """Take all blocks of the sequence back, tail first, so that a prefix is reused last. Returns them."""
        blocks = seq.blocks[::-1]
        self.pool.release(blocks)
        seq.blocks.clear()
        seq.num_computed = 0
        seq.num_indexed = 0
        return blocks
