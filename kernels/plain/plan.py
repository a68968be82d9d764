"""What the torch backend derives from a batch once per step: gather indices, slots to clear, masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from vtop.kernels.api import AttentionBatch, IntArray

GROUP_BYTES = 8 << 20  # gathered K/V per group of decodes; past the caches a gather is slower than smaller groups
GROUP_PADDING = 1.25  # slots gathered per slot needed, at most, unless the group is small anyway
SMALL_GROUP_BYTES = 256 << 10


class Geometry(NamedTuple):
    """Sizes of a layer view [num_blocks, 2, kv_heads, block_size, head_dim], and its two flat readings.

    block_pieces: pieces (one head's K or V of one block) from a block to the next one of the same layer.
    """

    kv_heads: int
    block_size: int
    head_dim: int
    block_pieces: int

    @classmethod
    def of(cls, layer: torch.Tensor) -> Geometry:
        _, _, kv_heads, block_size, head_dim = layer.shape
        return cls(kv_heads, block_size, head_dim, layer.stride(0) // (block_size * head_dim))

    def pieces(self, layer: torch.Tensor) -> torch.Tensor:
        """[pieces, block_size * head_dim]: piece block * block_pieces + c * kv_heads + h is K (c 0) or V of head h."""
        size = self.block_size * self.head_dim
        count = (layer.shape[0] - 1) * self.block_pieces + 2 * self.kv_heads
        return layer.as_strided((count, size), (size, 1))

    def token_rows(self, layer: torch.Tensor) -> torch.Tensor:
        """[pieces * block_size, head_dim]: row `piece * block_size + offset` is one token's K or V of one head."""
        count = ((layer.shape[0] - 1) * self.block_pieces + 2 * self.kv_heads) * self.block_size
        return layer.as_strided((count, self.head_dim), (self.head_dim, 1))


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one new token each, attended together.

    tokens [B]: their places among the packed tokens. pieces [B * 2 * kv_heads * blocks]: what to gather.
    slots: gathered slots per sequence (blocks * block_size). keep: the slots that hold tokens, when they are the same
    for all; otherwise `mask` [B, 1, 1, slots] (additive, 0 or -inf) and `clear`, rows of the gathered copy to zero.
    """

    tokens: torch.Tensor
    pieces: torch.Tensor
    slots: int
    keep: tuple[int, int] | None
    mask: torch.Tensor | None
    clear: torch.Tensor | None


@dataclass(slots=True)
class ChunkPlan:
    """A run of new tokens of one sequence, packed tokens first … last - 1.

    keep: gathered slots that are attended. mask [Q, kept] is additive; None means plain causal with Q == kept.
    """

    first: int
    last: int
    pieces: torch.Tensor
    slots: int
    keep: tuple[int, int]
    mask: torch.Tensor | None

    def explicit_mask(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self.mask is None:
            length = self.last - self.first
            visible = np.tri(length, dtype=np.bool_)
            self.mask = _additive(visible, dtype, device)
        return self.mask


@dataclass(slots=True)
class WindowPlan:
    """How a batch is attended under one sliding window (or none). whole_group: all of it is that group, in order."""

    groups: list[DecodeGroup]
    chunks: list[ChunkPlan]
    whole_group: DecodeGroup | None


def write_rows(batch: AttentionBatch, geometry: Geometry) -> torch.Tensor:
    """[T * 2 * kv_heads] rows of `Geometry.token_rows` for the tokens' K and V, token by token, K before V."""
    blocks, offsets = np.divmod(batch.slots, geometry.block_size)
    heads = np.arange(2 * geometry.kv_heads)
    rows = (blocks[:, None] * geometry.block_pieces + heads) * geometry.block_size + offsets[:, None]
    return torch.from_numpy(rows.reshape(-1)).to(batch.device)


def plan_window(batch: AttentionBatch, geometry: Geometry, window: int | None, dtype: torch.dtype) -> WindowPlan:
    """Split the batch into groups of decodes and single chunks."""
    decodes = np.flatnonzero(batch.query_lens == 1)
    lows = np.zeros_like(batch.context_lens)
    if window is not None:
        # the first position that any of the sequence's new tokens sees
        lows = np.maximum(batch.context_lens - batch.query_lens - window + 1, 0)
    groups = [
        _plan_group(batch, geometry, members, lows, dtype)
        for members in _split(decodes, batch.context_lens - lows, geometry, dtype.itemsize)
    ]
    chunks = [
        _plan_chunk(batch, geometry, int(i), int(lows[i]), window, dtype) for i in np.flatnonzero(batch.query_lens > 1)
    ]
    whole = groups[0] if len(groups) == 1 and not chunks else None
    return WindowPlan(groups, chunks, whole)


def _split(decodes: IntArray, lengths: IntArray, geometry: Geometry, itemsize: int) -> list[IntArray]:
    """Groups of sequences whose gathered K/V fit the caches and are padded little."""
    if len(decodes) == 0:
        return []
    token_bytes = 2 * geometry.kv_heads * geometry.head_dim * itemsize
    sizes = lengths[decodes]
    if _fits(int(sizes.max()) * len(sizes), int(sizes.sum()), token_bytes):
        return [decodes]
    order = np.argsort(sizes, kind="stable")
    groups: list[IntArray] = []
    begin, total = 0, 0
    for i, index in enumerate(order.tolist()):
        size = int(sizes[index])
        if i > begin and not _fits(size * (i - begin + 1), total + size, token_bytes):
            groups.append(decodes[order[begin:i]])
            begin, total = i, 0
        total += size
    groups.append(decodes[order[begin:]])
    return groups


def _fits(padded: int, needed: int, token_bytes: int) -> bool:
    padded_bytes = padded * token_bytes
    if padded_bytes > GROUP_BYTES:
        return False
    return padded <= needed * GROUP_PADDING or padded_bytes <= SMALL_GROUP_BYTES


def _plan_group(
    batch: AttentionBatch, geometry: Geometry, members: IntArray, lows: IntArray, dtype: torch.dtype
) -> DecodeGroup:
    size = geometry.block_size
    low, high = lows[members], batch.context_lens[members]
    first_block = low // size
    blocks = int((-(-high // size) - first_block).max())
    columns = first_block[:, None] + np.arange(blocks)
    tables = batch.tables[members[:, None], np.minimum(columns, batch.tables.shape[1] - 1)]
    # Columns past a sequence's own blocks read its first one again: any real block will do, the slots are masked.
    past = columns * size >= high[:, None]
    tables = np.where(past, tables[:, :1], tables)
    low, high = low - first_block * size, high - first_block * size
    slots = blocks * size
    tokens = torch.from_numpy(batch.query_starts[members]).to(batch.device)
    pieces = _pieces(tables, geometry, batch.device)
    if (low == low[0]).all() and (high == high[0]).all():
        return DecodeGroup(tokens, pieces, slots, (int(low[0]), int(high[0])), None, None)
    columns = np.arange(slots)
    used = (columns >= low[:, None]) & (columns < high[:, None])
    # Never written are the slots after the last token, and padding that reads a first block with such slots again.
    unwritten = (columns >= high[:, None]) & ((columns < (-(-high // size) * size)[:, None]) | (high < size)[:, None])
    row, column = np.nonzero(unwritten)
    heads = np.arange(2 * geometry.kv_heads)
    clear = (row[:, None] * (2 * geometry.kv_heads) + heads) * slots + column[:, None]
    mask = _additive(used, dtype, batch.device).view(len(members), 1, 1, slots)
    return DecodeGroup(tokens, pieces, slots, None, mask, torch.from_numpy(clear.reshape(-1)).to(batch.device))


def _plan_chunk(
    batch: AttentionBatch, geometry: Geometry, index: int, low: int, window: int | None, dtype: torch.dtype
) -> ChunkPlan:
    size = geometry.block_size
    context, count = int(batch.context_lens[index]), int(batch.query_lens[index])
    first_block = low // size
    blocks = -(-context // size) - first_block
    table = batch.tables[index : index + 1, first_block : first_block + blocks]
    mask = None
    if context != count or (window is not None and window < context):
        queries = np.arange(context - count, context)[:, None]
        keys = np.arange(low, context)[None, :]
        visible = keys <= queries
        if window is not None:
            visible &= keys > queries - window
        mask = _additive(visible, dtype, batch.device)
    first = int(batch.query_starts[index])
    keep = (low - first_block * size, context - first_block * size)
    pieces = _pieces(table, geometry, batch.device)
    return ChunkPlan(first, first + count, pieces, blocks * size, keep, mask)


def _pieces(tables: IntArray, geometry: Geometry, device: torch.device) -> torch.Tensor:
    """Indices into `Geometry.pieces` in the order (sequence, K/V and head, block)."""
    heads = np.arange(2 * geometry.kv_heads)
    index = tables[:, None, :] * geometry.block_pieces + heads[None, :, None]
    return torch.from_numpy(index.reshape(-1)).to(device)


def _additive(visible: np.typing.NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    hidden = torch.from_numpy(~visible)
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).to(device)
