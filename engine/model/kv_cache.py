"""The tensors of the device pool and the host pool, and the moves of blocks between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from vtop.engine.errors import BadValue
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


class HostCache:
    """K and V of `num_blocks` swapped-out blocks, as a tensor on the host of the device pool's layout and dtype:

        tensor [num_blocks, layers, 2, kv_heads, block_size, head_dim], contents undefined at first.

    `pin`: page-locked, so that a cuda device copies to and from it by itself; else pages are taken from the machine
    when they are first written. Copies to and from cuda are only queued on the current stream: whatever is queued
    there later, in particular the next swap, sees them done. Raises BadValue when there is no memory for it.
    """

    def __init__(self, num_blocks: int, device_pool: torch.Tensor, *, pin: bool = False) -> None:
        shape = (num_blocks, *device_pool.shape[1:])
        try:
            self.tensor = torch.empty(shape, dtype=device_pool.dtype, pin_memory=pin and num_blocks > 0)
        except RuntimeError as error:  # torch's allocator, or the system's bound on page-locked memory
            text = "such a host pool cannot be allocated; give a smaller swap_space"
            raise BadValue("num_host_blocks", num_blocks, text) from error

    @property
    def num_blocks(self) -> int:
        return self.tensor.shape[0]

    def swap_out(self, device_pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (device, host) of `device_pool` [num_blocks, …] to the host. A target may occur only once."""
        _move(device_pool, self.tensor, pairs)

    def swap_in(self, device_pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (host, device) to `device_pool` [num_blocks, …]. A target may occur only once."""
        _move(self.tensor, device_pool, pairs)


def _move(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """One contiguous copy per block, or per run of neighbours on both sides."""
    _check(pairs, source.shape[0], target.shape[0])
    for first, to, count in runs(pairs):
        target[to : to + count].copy_(source[first : first + count], non_blocking=True)


def _check(pairs: Sequence[tuple[int, int]], sources: int, targets: int) -> None:
    """Slices beyond the end would copy nothing, silently."""
    for source, target in pairs:
        if not (0 <= source < sources and 0 <= target < targets):
            raise IndexError(f"swap of block {source} of {sources} to block {target} of {targets}")


def runs(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(first source, first target, count) of each longest run of pairs that go up by one on both sides."""
    first = to = count = 0
    for source, target in pairs:
        if count and source == first + count and target == to + count:
            count += 1
            continue
        if count:
            yield first, to, count
        first, to, count = source, target, 1
    if count:
        yield first, to, count
