"""The tensor of the device pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtop.kernels.api import BlockCopy, allocate_cache, copy_blocks


class KVCache:
    """K and V of `num_blocks` blocks: one tensor [num_blocks, layers, 2, kv_heads, block_size, head_dim].

    Its contents are undefined at first; on CPU, pages are taken from the machine when they are first written.
    `block_copy` is how blocks are copied within it.
    """

    def __init__(
        self,
        num_blocks: int,
        num_layers: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        block_copy: BlockCopy = copy_blocks,
    ) -> None:
        self._shape = (num_layers, num_kv_heads, block_size, head_dim)
        self._dtype = dtype
        self._device = device
        self._block_copy = block_copy
        self._written = 0  # blocks from here on were never written, so that resizing need not touch them
        self.tensor = self._allocate(num_blocks)

    @property
    def num_blocks(self) -> int:
        return self.tensor.shape[0]

    @property
    def bytes_per_block(self) -> int:
        return self.tensor.stride(0) * self.tensor.element_size()

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), every source read before any target is written."""
        if pairs:
            self._block_copy(self.tensor, self.tensor, pairs)
            self.written(max(target for _, target in pairs))

    def written(self, highest_block: int) -> None:
        """Blocks up to this one may hold K/V from now on."""
        self._written = max(self._written, highest_block + 1)

    def resize(self, num_blocks: int) -> None:
        """Another number of blocks, in a new `tensor`; what was written in blocks below both numbers stays."""
        if num_blocks == self.num_blocks:
            return
        kept = min(num_blocks, self.num_blocks, self._written)
        resized = self._allocate(num_blocks)
        resized[:kept] = self.tensor[:kept]
        self.tensor = resized
        self._written = kept

    def _allocate(self, num_blocks: int) -> torch.Tensor:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        layers, kv_heads, block_size, head_dim = self._shape
        return allocate_cache(num_blocks, layers, kv_heads, block_size, head_dim, self._dtype, self._device)
