"""BlockManager: block tables of sequences over a pool. `need`/`fits` queries change nothing."""

from __future__ import annotations

from vtop.engine.block_pool import BlockPool
from vtop.engine.request import Request, Sequence


class BlockManager:
    """Gives blocks to sequences and takes them back. `block_size` is tokens per block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` slots take."""
        return -(-tokens // self.block_size)

    def missing(self, seq: Sequence, tokens: int) -> int:
        """Blocks the sequence lacks to have slots for its first `tokens` tokens."""
        return max(0, -(-tokens // self.block_size) - len(seq.blocks))

    def ever_fits(self, tokens: int) -> bool:
        """Whether `tokens` slots fit in the whole pool."""
        return self.blocks_for(tokens) <= self.pool.total

    def fill_of_last_block(self, tokens: int) -> int:
        """Tokens in the last block of a table that holds `tokens`; 0 for an empty table."""
        return (tokens - 1) % self.block_size + 1 if tokens else 0

    def grow(self, seq: Sequence, tokens: int) -> list[int]:
        """Give the sequence slots for its first `tokens` tokens; returns the new blocks. Raises NoFreeBlocks."""
        taken = self.pool.allocate(self.missing(seq, tokens))
        seq.blocks.extend(taken)
        return taken

    def free(self, seq: Sequence) -> list[int]:
        """Take all blocks of the sequence back, tail first, so that a prefix is reused last. Returns them."""
        blocks = seq.blocks[::-1]
        self.pool.release(blocks)
        seq.blocks.clear()
        seq.num_computed = 0
        return blocks

    def holds_beyond(self, request: Request, num_blocks: int) -> bool:
        """Whether the request holds a block that a pool of `num_blocks` would not have."""
        return any(block >= num_blocks for seq in request.sequences for block in seq.blocks)
