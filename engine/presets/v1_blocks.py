"""V1Blocks: block tables as vLLM V1 keeps them."""

from __future__ import annotations

from vtop.engine.blocks.manager import BlockManager, PrefixHit
from vtop.engine.presets.pools import FrontPool
from vtop.engine.request import Sequence


class V1Blocks(BlockManager):
    """A hit never covers the last token: of a prompt that is cached to its end the last block is computed again.

    So no block that others read is ever written, and none is ever copied.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.pool = FrontPool(num_blocks)

    def match(self, seq: Sequence) -> PrefixHit:
        hit = super().match(seq)
        whole = len(hit.blocks) * self.block_size >= seq.num_tokens
        return self.without_copy(hit) if hit.blocks and whole else hit
