"""Tile sizes, warps and pipeline stages of the Triton kernels, by shape. A table instead of tuning at run time.

Chosen so that nothing spills to local memory on sm_80 and sm_90 (the tests compile every entry and look), and so that
a tile's K and V fit twice into shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Capability = tuple[int, int]
HOPPER: Capability = (9, 0)
LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True)
class KernelShape:
    """`rows` of queries (tokens times heads of a group) meet `tile` tokens of K and V at a time."""

    rows: int
    tile: int
    warps: int
    stages: int


def padded(size: int) -> int:
    """The power of two, 16 or more, that a tile dimension of `size` needs."""
    return max(16, 1 << (size - 1).bit_length())


def heads_per_program(group: int, rows: int) -> int:
    """How many of the `group` query heads of one KV head share a program of `rows` rows."""
    return min(group, rows)


class ShapeTable:
    """The shapes that ship. Replace it to try others: `TritonPagedAttention(shapes=...)`."""

    def decode(self, head_dim: int, group: int, dtype: torch.dtype, capability: Capability = HOPPER) -> KernelShape:
        """One token per sequence: rows are the query heads of one KV head, at most 32 of them in a program."""
        rows = min(padded(group), 32)
        dim = padded(head_dim)
        if dtype is torch.float32:
            return KernelShape(rows, 32 if dim <= 128 else 16, 4 if dim <= 64 else 8, 2)
        if dim <= 128:
            return KernelShape(rows, 64, 4, 3 if dim <= 64 else 2)
        return KernelShape(rows, 32, 4, 2)

    def prefill(
        self, head_dim: int, dtype: torch.dtype, *, windowed: bool = False, small: bool = False, block_size: int = 16,
        capability: Capability = HOPPER,
    ) -> KernelShape:  # fmt: skip
        """Several tokens per sequence. `small`: so little work that half the rows per program keep more of the
        device busy. Blocks of other than 16 tokens can take a few registers more, for addresses."""
        dim = padded(head_dim)
        if dtype is torch.float32:
            if dim <= 64:
                return KernelShape(32 if small else 64, 32, 8, 2)
            return KernelShape(32, 16, 8, 2) if dim <= 128 else KernelShape(16, 16, 8, 2)
        if dim <= 64:
            if small or capability < HOPPER:
                return KernelShape(64, 64, 4, 2)
            return KernelShape(128, 64, 8 if windowed else 4, 2)
        if dim <= 128:
            if (windowed or block_size != 16) and capability < HOPPER:
                return KernelShape(128, 32, 8, 2)
            return KernelShape(64, 64, 4, 2) if small and capability >= HOPPER else KernelShape(128, 64, 8, 2)
        return KernelShape(64, 32, 8, 2)
