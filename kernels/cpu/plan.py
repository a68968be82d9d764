"""Cuts a step into units of work for the numba kernel, on the host, once per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vtop.kernels.api import AttentionBatch, IntArray
from vtop.kernels.cpu.layout import (
    CHUNK,
    COUNTER,
    DECODE,
    FIRST_HEAD,
    FIRST_PART,
    HIGH,
    KIND,
    LAST_HEAD,
    LOW,
    PART,
    PART_COUNT,
    POSITION,
    PREFILL,
    SEQUENCE,
    TOKEN,
    TOKENS,
    UNIT_FIELDS,
)

DECODE_TOKENS = 2  # so many new tokens of a sequence are decoded one by one; packing keys for so few does not pay
PREFILL_ROWS = 96
UNITS_PER_THREAD = 2  # while there are fewer decode units, KV heads become units of their own


@dataclass(slots=True)
class Units:
    """table: int64 [units, UNIT_FIELDS], costly ones first. parts, counters: how many its units refer to.

    keys: K rows read per KV head by decode units. products: scores computed, over all heads, by prefill units.
    """

    table: IntArray
    parts: int
    counters: int
    keys: int
    products: int


def plan_units(batch: AttentionBatch, kv_heads: int, group: int, window: int | None, threads: int) -> Units:
    """`group` query heads share each of `kv_heads`; `threads` will work on the units."""
    chunks = np.flatnonzero(batch.query_lens > DECODE_TOKENS)
    tables, products = [], 0
    for sequence in chunks.tolist():
        table = _prefill(batch, sequence, kv_heads, group, window)
        products += int((table[:, TOKENS] * (table[:, HIGH] - table[:, LOW])).sum()) * group
        tables.append(table)
    if len(tables) > 1 or (tables and len(chunks) == batch.num_sequences):
        joined = np.concatenate(tables)
        cost = joined[:, TOKENS] * (joined[:, HIGH] - joined[:, LOW])
        tables = [joined[np.argsort(-cost, kind="stable")]]
    parts = counters = keys = 0
    if len(chunks) < batch.num_sequences:
        decodes, parts, counters = _decode(batch, kv_heads, window, threads)
        keys = int((decodes[:, HIGH] - decodes[:, LOW]).sum())
        tables.append(decodes)
    return Units(tables[0] if len(tables) == 1 else np.concatenate(tables), parts, counters, keys, products)


def _prefill(batch: AttentionBatch, sequence: int, kv_heads: int, group: int, window: int | None) -> IntArray:
    count, context = int(batch.query_lens[sequence]), int(batch.context_lens[sequence])
    step = max(1, PREFILL_ROWS // group)
    begin = np.repeat(np.arange(0, count, step), kv_heads)[::-1]  # the last ones see the most
    table = np.zeros((len(begin), UNIT_FIELDS), dtype=np.int64)
    table[:, KIND] = PREFILL
    table[:, SEQUENCE] = sequence
    table[:, TOKEN] = batch.query_starts[sequence] + begin
    table[:, TOKENS] = np.minimum(step, count - begin)
    table[:, POSITION] = context - count + begin
    if window is not None:
        table[:, LOW] = np.maximum(table[:, POSITION] - window + 1, 0)
    table[:, HIGH] = table[:, POSITION] + table[:, TOKENS]
    table[:, FIRST_HEAD] = np.arange(len(begin)) % kv_heads
    table[:, LAST_HEAD] = table[:, FIRST_HEAD] + 1
    return table


def _decode(batch: AttentionBatch, kv_heads: int, window: int | None, threads: int) -> tuple[IntArray, int, int]:
    """Units, parts, counters. Chunks begin at fixed places of a sequence, whatever else is in the batch."""
    if batch.num_tokens == batch.num_sequences:
        sequences = tokens = np.arange(batch.num_sequences)
    else:
        owner = np.repeat(np.arange(batch.num_sequences), batch.query_lens)
        tokens = np.flatnonzero(batch.query_lens[owner] <= DECODE_TOKENS)
        sequences = owner[tokens]
    high = batch.positions[tokens] + 1
    low = np.zeros_like(high) if window is None else np.maximum(high - window, 0)
    first = low // CHUNK
    counts = (high - 1) // CHUNK - first + 1
    total = int(counts.sum())
    splits = 1
    if threads > 1 and total < UNITS_PER_THREAD * threads:
        splits = min(kv_heads, -(-UNITS_PER_THREAD * threads // total))
    item = np.repeat(np.arange(len(tokens)), counts * splits)
    nth = np.arange(total * splits)
    starts = np.cumsum(counts) - counts
    within = nth - (starts * splits)[item]
    chunk, split = within // splits, within % splits
    table = np.zeros((len(item), UNIT_FIELDS), dtype=np.int64)
    table[:, KIND] = DECODE
    table[:, SEQUENCE] = sequences[item]
    table[:, TOKEN] = tokens[item]
    table[:, TOKENS] = 1
    begin = (first[item] + chunk) * CHUNK
    table[:, LOW] = np.maximum(begin, low[item])
    table[:, HIGH] = np.minimum(begin + CHUNK, high[item])
    table[:, FIRST_HEAD] = split * kv_heads // splits
    table[:, LAST_HEAD] = (split + 1) * kv_heads // splits
    parted = counts > 1
    part_counts = np.where(parted, counts, 0)
    first_parts = np.where(parted, np.cumsum(part_counts) - part_counts, -1)
    table[:, FIRST_PART] = first_parts[item]
    table[:, PART] = np.where(parted[item], first_parts[item] + chunk, -1)
    table[:, PART_COUNT] = counts[item]
    table[:, COUNTER] = item * splits + split
    return table, int(part_counts.sum()), len(tokens) * splits
