"""The tensor of the host pool, and the moves of blocks between it and the device pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from vtop.engine.errors import BadValue


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
