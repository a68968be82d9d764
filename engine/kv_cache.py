"""The tensor of the device pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtop.kernels.api import allocate_cache, copy_blocks


class KVCache:
    """K and V of `num_blocks` blocks: one tensor [num_blocks, layers, 2, kv_heads, block_size, head_dim].

    Starts as zeros. On CPU the pages are taken from the machine when they are first written.
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
    ) -> None:
        self._shape = (num_layers, num_kv_heads, block_size, head_dim)
        self._dtype = dtype
        self._device = device
        self.tensor = self._allocate(num_blocks)

    @property
    def num_blocks(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def bytes_per_block(self) -> int:
        return int(self.tensor.stride(0)) * self.tensor.element_size()

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), every source read before any target is written."""
        copy_blocks(self.tensor, pairs)

    def resize(self, num_blocks: int) -> None:
        """Another number of blocks; the contents of blocks below both numbers stay. `tensor` is a new tensor then."""
        if num_blocks == self.num_blocks:
            return
        kept = min(num_blocks, self.num_blocks)
        resized = self._allocate(num_blocks)
        resized[:kept] = self.tensor[:kept]
        self.tensor = resized

    def _allocate(self, num_blocks: int) -> torch.Tensor:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        layers, kv_heads, block_size, head_dim = self._shape
        return allocate_cache(num_blocks, layers, kv_heads, block_size, head_dim, self._dtype, self._device)
