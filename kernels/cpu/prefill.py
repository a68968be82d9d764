"""Prefill: a run of a sequence's new tokens over its context, for one KV head.

The queries of the group of heads that share the KV head are rows of one matrix: row i * group + g is head g of token
i. A tile of keys is transposed, and values widened, into scratch; then scores and sums are matrix products of six rows
at a time by two vectors, which keeps the multiply-add units busy. Rows are padded with zeros to a multiple of six.
"""

from __future__ import annotations

from typing import Any

from vtop.kernels.cpu.layout import (
    BLOCK_SIZE,
    CAP,
    FIRST_HEAD,
    GROUP,
    HEAD_DIM,
    HIGH,
    KV_HEADS,
    LOW,
    OUTPUT,
    POSITION,
    QUERIES,
    QUERY_FACTOR,
    QUERY_HEAD_STRIDE,
    QUERY_TOKEN_STRIDE,
    ROW_BLOCK,
    SCORE_BYTES,
    SCRATCH_ROWS,
    SEQUENCE,
    SINKS,
    TABLE_BYTES,
    TILE,
    TOKEN,
    TOKENS,
    WINDOW,
)
from vtop.kernels.cpu.rows import (
    cap_row,
    fill_row,
    floor_between,
    load_scaled,
    row_addresses,
    softmax_row,
    start_softmax,
    store_scaled,
)
from vtop.kernels.cpu.vectors import Emitter, Int, Record

KEYS_AT_ONCE = 8
UNROLL = 4


def _pack_keys(emit: Emitter, rows: Int, offset: Int, target: Int, size: Int) -> None:
    """target[d, j] = key j at d, for eight keys; target's rows are SCORE_BYTES apart."""
    narrow = emit.with_lanes(KEYS_AT_ONCE)
    keys = [emit.get_int(rows, 8 * j) + offset for j in range(KEYS_AT_ONCE)]
    with emit.range(0, size, KEYS_AT_ONCE) as d:
        loaded = [narrow.load_element(key + d * emit.bytes) for key in keys]
        for i, column in enumerate(_transposed(narrow, loaded)):
            narrow.store(column, target + d * SCORE_BYTES, i * SCORE_BYTES)


def _transposed(emit: Emitter, rows: list[Any]) -> list[Any]:
    """n vectors of n lanes: swap blocks of 1, 2, 4 … lanes across the diagonal."""
    count = len(rows)
    step = 1
    while step < count:
        for i in range(count):
            if not i & step:
                a, b = rows[i], rows[i | step]
                low = [j if not j & step else count + j - step for j in range(count)]
                high = [j + step if not j & step else count + j for j in range(count)]
                rows[i], rows[i | step] = emit.shuffle(a, b, low), emit.shuffle(a, b, high)
        step *= 2
    return rows


def _product(
    emit: Emitter,
    vectors: int,
    left: Int,
    left_stride: Int | int,
    right: Int,
    right_stride: Int | int,
    to: Int,
    to_stride: Int | int,
    count: Int,
    *,
    adding: bool,
) -> None:
    """to[r] = or += Σ_k left[r, k] * right[k], for six rows and `vectors` vectors; count is a multiple of UNROLL."""
    width = emit.lanes * 4
    lefts = [left + emit.whole(r) * left_stride for r in range(ROW_BLOCK)]
    outs = [to + emit.whole(r) * to_stride for r in range(ROW_BLOCK)]
    if adding:
        initial = [emit.load(out, v * width) for out in outs for v in range(vectors)]
    else:
        initial = [emit.fixed(0.0)] * (ROW_BLOCK * vectors)

    def body(i: Int, sums: list[Any]) -> list[Any]:
        line = right + i * UNROLL * right_stride
        for k in range(UNROLL):
            columns = [emit.load(line, v * width) for v in range(vectors)]
            line = line + right_stride
            for r in range(ROW_BLOCK):
                factor = emit.splat(emit.get_float(lefts[r] + i * (4 * UNROLL), 4 * k))
                for v in range(vectors):
                    sums[r * vectors + v] = emit.fma(factor, columns[v], sums[r * vectors + v])
        return sums

    sums = emit.loop(count // UNROLL, initial, body)
    for r in range(ROW_BLOCK):
        for v in range(vectors):
            emit.store(sums[r * vectors + v], outs[r], v * width)


def prefill_unit(emit: Emitter, a: Record, unit: Record, scratch: Int) -> None:
    """Code for a unit: compute it and write its output."""
    size, group, total = a[HEAD_DIM], a[GROUP], a[SCRATCH_ROWS]
    row = size * 4
    table = scratch
    queries = table + TABLE_BYTES
    sums = queries + total * row
    stats = sums + total * row
    scores = stats + total * 8
    keys = scores + total * SCORE_BYTES
    values = keys + row * TILE
    token, low, high, kv_head = unit[TOKEN], unit[LOW], unit[HIGH], unit[FIRST_HEAD]
    position, sequence, window = unit[POSITION], unit[SEQUENCE], a[WINDOW]
    rows = unit[TOKENS] * group
    padded_rows = rows.rounded_up(ROW_BLOCK)
    head_bytes = a[BLOCK_SIZE] * size * emit.bytes
    key_offset = kv_head * head_bytes
    value_offset = key_offset + a[KV_HEADS] * head_bytes
    cap, factor = a.number(CAP), a.number(QUERY_FACTOR)
    sinks = a[SINKS]

    with emit.range(0, rows) as r:
        head = kv_head * group + r % group
        source = a[QUERIES] + (token + r // group) * a[QUERY_TOKEN_STRIDE] + head * a[QUERY_HEAD_STRIDE]
        load_scaled(emit, queries + r * row, source, size, factor)
        start_softmax(emit, stats + r * 8, sinks, head)
    fill_row(emit, queries + rows * row, (padded_rows - rows) * size, 0.0)
    fill_row(emit, sums, padded_rows * size, 0.0)

    two = 2 * emit.lanes
    with emit.range(low, high, TILE) as start:
        now = emit.min(high - start, TILE)
        padded = now.rounded_up(two)
        row_addresses(emit, a, table, sequence, start, start + now, padded)
        with emit.range(0, padded, KEYS_AT_ONCE) as j:
            _pack_keys(emit, table + j * 8, key_offset, keys + j * 4, size)
        with emit.range(0, padded) as j:
            load_scaled(emit, values + j * row, emit.get_int(table + j * 8) + value_offset, size, None)
        with emit.range(0, padded_rows, ROW_BLOCK) as block:
            final = emit.min(block + (ROW_BLOCK - 1), rows - 1)
            seen = emit.min(position + final // group + 1 - start, now)  # columns that the block's last row sees
            with emit.builder.if_then(seen > 0):
                line, target = scores + block * SCORE_BYTES, sums + block * row
                with emit.range(0, seen, two) as j:
                    _product(
                        emit, 2, queries + block * row, row, keys + j * 4, SCORE_BYTES, line + j * 4, SCORE_BYTES, size,
                        adding=False,
                    )  # fmt: skip
                columns = seen.rounded_up(emit.lanes)
                with emit.range(block, final + 1) as r:
                    at = position + r // group - start
                    mine = scores + r * SCORE_BYTES
                    cap_row(emit, mine, columns, cap)
                    hidden = emit.choose(window > 0, emit.min(at - window + 1, columns), 0)
                    floor_between(emit, mine, emit.whole(0), hidden)
                    floor_between(emit, mine, emit.max(emit.min(at + 1, now), 0), columns)
                    softmax_row(emit, mine, columns, stats + r * 8, sums + r * row, size)
                fill_row(emit, scores + rows * SCORE_BYTES, (padded_rows - rows) * TILE, 0.0)
                used = seen.rounded_up(UNROLL)
                whole = size // two * two
                with emit.range(0, whole, two) as column:
                    _product(
                        emit,
                        2,
                        line,
                        SCORE_BYTES,
                        values + column * 4,
                        row,
                        target + column * 4,
                        row,
                        used,
                        adding=True,
                    )
                with emit.range(whole, size, emit.lanes) as column:
                    _product(
                        emit,
                        1,
                        line,
                        SCORE_BYTES,
                        values + column * 4,
                        row,
                        target + column * 4,
                        row,
                        used,
                        adding=True,
                    )

    heads = a[KV_HEADS] * group
    with emit.range(0, rows) as r:
        place = (token + r // group) * heads + kv_head * group + r % group
        inverse = emit.builder.fdiv(emit.real(1.0), emit.get_float(stats + r * 8, 4))
        store_scaled(emit, a[OUTPUT] + place * (size * emit.bytes), sums + r * row, size, inverse)
