"""Decode: one token's queries over a chunk of its context.

Keys lie row by row, so a score is a dot product, and the lanes are added up for four keys at once. Up to three query
heads that share a KV head go through together, for a row is read once for all of them. While the scores are computed
the same tile's values are prefetched, and with the values the next tile's keys; a tile of either fits the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vtop.kernels.cpu.layout import (
    BLOCK_SIZE,
    CAP,
    COUNTER,
    FINISHED,
    FIRST_HEAD,
    FIRST_PART,
    GROUP,
    HEAD_DIM,
    HIGH,
    KV_HEADS,
    LAST_HEAD,
    LOW,
    OUTPUT,
    PART,
    PART_COUNT,
    PART_STATS,
    PARTS,
    QUERIES,
    QUERY_FACTOR,
    QUERY_HEAD_STRIDE,
    QUERY_TOKEN_STRIDE,
    SCORE_BYTES,
    SCRATCH_ROWS,
    SEQUENCE,
    SINKS,
    TABLE_BYTES,
    TILE,
    TOKEN,
)
from vtop.kernels.cpu.rows import (
    add_scaled,
    cap_row,
    fill_row,
    floor_between,
    load_scaled,
    row_addresses,
    softmax_row,
    start_softmax,
    store_scaled,
)
from vtop.kernels.cpu.vectors import CACHE_LINE, FLOOR, Cell, Emitter, Int, Record

AT_ONCE = 3  # query heads
WIDE = 4  # vectors of a value row


@dataclass(slots=True)
class Ahead:
    """What to prefetch for row j: `lines` cache lines at the address that the table names `entries` after row j's,
    plus `offset`."""

    entries: int
    offset: Int
    lines: Int


def _scores(emit: Emitter, heads: int, queries: Int, rows: Int, offset: Int, target: Int, size: Int) -> None:
    """target[h, j] = queries[h] · key j, for four keys. rows: four row addresses, to which `offset` is added."""
    keys = [emit.get_int(rows, 8 * j) + offset for j in range(4)]
    starts = [queries + size * (4 * h) for h in range(heads)]

    def body(i: Int, sums: list[Any]) -> list[Any]:
        key = [emit.load_element(address + i * (emit.lanes * emit.bytes)) for address in keys]
        query = [emit.load(address + i * (emit.lanes * 4)) for address in starts]
        return [emit.fma(query[h], key[j], sums[4 * h + j]) for h in range(heads) for j in range(4)]

    sums = emit.loop(size // emit.lanes, [emit.fixed(0.0)] * (4 * heads), body)
    for h in range(heads):
        emit.store(_four_totals(emit, sums[4 * h : 4 * h + 4]), target, h * SCORE_BYTES)


def _four_totals(emit: Emitter, v: list[Any]) -> Any:
    """Four vectors to one <4 x float> of their totals."""
    builder, count = emit.builder, emit.lanes

    def pairs(a: Any, b: Any, low: tuple[int, ...], high: tuple[int, ...]) -> Any:
        """Add two shuffles; `low` and `high` say what a group of four lanes takes, from a (0-3) and b (4-7)."""

        def lanes_of(pick: tuple[int, ...]) -> list[int]:
            return [group + (i if i < 4 else count + i - 4) for group in range(0, count, 4) for i in pick]

        return builder.fadd(emit.shuffle(a, b, lanes_of(low)), emit.shuffle(a, b, lanes_of(high)))

    first = pairs(v[0], v[1], (0, 4, 1, 5), (2, 6, 3, 7))
    second = pairs(v[2], v[3], (0, 4, 1, 5), (2, 6, 3, 7))
    total = pairs(first, second, (0, 1, 4, 5), (2, 3, 6, 7))
    while count > 4:
        count //= 2
        total = builder.fadd(*(emit.shuffle(total, total, range(start, start + count)) for start in (0, count)))
    return total


def _values(
    emit: Emitter,
    heads: int,
    vectors: int,
    weights: Int,
    rows: Int,
    offset: Int,
    sums: Int,
    size: Int,
    count: Int,
    ahead: Ahead,
) -> None:
    """sums[h] += Σ_j weights[h, j] * value j for j < count, `vectors` vectors wide."""
    starts = [sums + size * (4 * h) for h in range(heads)]
    width = emit.lanes
    initial = [emit.load(start, v * width * 4) for start in starts for v in range(vectors)]

    def body(j: Int, carried: list[Any]) -> list[Any]:
        place = rows + j * 8
        _prefetch(emit, place, ahead)
        address = emit.get_int(place) + offset
        value = [emit.load_element(address, v * width * emit.bytes) for v in range(vectors)]
        out = []
        for h in range(heads):
            weight = emit.splat(emit.get_float(weights + j * 4, h * SCORE_BYTES))
            out += [emit.fma(weight, value[v], carried[h * vectors + v]) for v in range(vectors)]
        return out

    final = emit.loop(count, initial, body)
    for h, start in enumerate(starts):
        for v in range(vectors):
            emit.store(final[h * vectors + v], start, v * width * 4)


def _prefetch(emit: Emitter, place: Int, ahead: Ahead) -> None:
    start = emit.get_int(place, 8 * ahead.entries) + ahead.offset
    with emit.range(0, ahead.lines) as line:
        emit.prefetch(start + line * CACHE_LINE)


def _head_blocks(emit: Emitter, heads: Int, write: Callable[[int, Int], None]) -> None:
    """`write(n, first)` writes code for heads first … first + n - 1; together they are 0 … heads - 1.

    Threes, then pairs (a last four is two of them): a single head leaves multiply-add units waiting for each other.
    """
    fours = emit.choose((heads % AT_ONCE).equals(1), emit.min(heads // AT_ONCE, 1), 0)
    whole = (heads // AT_ONCE - fours) * AT_ONCE
    with emit.range(0, whole, AT_ONCE) as first:
        write(AT_ONCE, first)
    paired = whole + (heads - whole) // 2 * 2
    with emit.range(whole, paired, 2) as first:
        write(2, first)
    with emit.builder.if_then(paired < heads):
        write(1, paired)


def decode_unit(emit: Emitter, a: Record, unit: Record, scratch: Int) -> None:
    """Code for a unit: write its output, or its part and, as the last of its token, the merge."""
    size, group, total = a[HEAD_DIM], a[GROUP], a[SCRATCH_ROWS]
    row = size * 4
    rows = scratch
    queries = rows + TABLE_BYTES
    sums = queries + total * row
    stats = sums + total * row
    scores = stats + total * 8
    low, high, token, part = unit[LOW], unit[HIGH], unit[TOKEN], unit[PART]
    first_head, last_head = unit[FIRST_HEAD], unit[LAST_HEAD]
    first, last = first_head * group, last_head * group
    count = high - low
    row_addresses(emit, a, rows, unit[SEQUENCE], low, high, count.rounded_up(TILE))
    head_bytes = a[BLOCK_SIZE] * size * emit.bytes
    values_at = a[KV_HEADS] * head_bytes
    lines = (size * emit.bytes).rounded_up(CACHE_LINE) // CACHE_LINE
    cap, factor = a.number(CAP), a.number(QUERY_FACTOR)
    sinks = emit.choose(part.equals(unit[FIRST_PART]), a[SINKS], 0)

    source, stride = a[QUERIES] + token * a[QUERY_TOKEN_STRIDE], a[QUERY_HEAD_STRIDE]
    with emit.range(first, last) as head:
        load_scaled(emit, queries + head * row, source + head * stride, size, factor)
        start_softmax(emit, stats + head * 8, sinks, head)
    fill_row(emit, sums + first * row, (last - first) * size, 0.0)

    with emit.range(0, count, TILE) as start:
        now = emit.min(count - start, TILE)
        tile = rows + start * 8
        with emit.range(first_head, last_head) as kv_head:
            offset, mine = kv_head * head_bytes, kv_head * group
            with emit.range(0, now, 4) as j:
                place = tile + j * 8
                for i in range(4):
                    _prefetch(emit, place, Ahead(i, offset + values_at, lines))

                def score(heads: int, h: Int, mine: Int = mine, place: Int = place, offset: Int = offset) -> None:
                    target = scores + (mine + h) * SCORE_BYTES + j * 4
                    _scores(emit, heads, queries + (mine + h) * row, place, offset, target, size)

                _head_blocks(emit, group, score)
        padded = now.rounded_up(emit.lanes)
        with emit.range(first, last) as head:
            line = scores + head * SCORE_BYTES
            cap_row(emit, line, padded, cap)
            floor_between(emit, line, now, padded)
            softmax_row(emit, line, padded, stats + head * 8, sums + head * row, size)
        more = emit.choose(start + TILE < count, lines, 0)
        with emit.range(first_head, last_head) as kv_head:
            _sum_values(emit, tile, kv_head, group, size, now, head_bytes, values_at, scores, sums, more)

    heads = a[KV_HEADS] * group
    with emit.builder.if_else(part < 0) as (whole, parted):
        with whole:
            target = a[OUTPUT] + token * heads * (size * emit.bytes)
            with emit.range(first, last) as head:
                inverse = emit.builder.fdiv(emit.real(1.0), emit.get_float(stats + head * 8, 4))
                store_scaled(emit, target + head * (size * emit.bytes), sums + head * row, size, inverse)
        with parted:
            emit.copy(a[PARTS] + (part * heads + first) * row, sums + first * row, (last - first) * row)
            emit.copy(a[PART_STATS] + (part * heads + first) * 8, stats + first * 8, (last - first) * 8)
            counter = a[FINISHED] + unit[COUNTER] * 8
            with emit.builder.if_then(emit.fetch_add(counter, 1).equals(unit[PART_COUNT] - 1)):
                emit.put_int(emit.whole(0), counter)
                _merge(emit, a, unit, sums, first, last)


def _sum_values(
    emit: Emitter,
    tile: Int,
    kv_head: Int,
    group: Int,
    size: Int,
    now: Int,
    head_bytes: Int,
    values_at: Int,
    scores: Int,
    sums: Int,
    lines: Int,
) -> None:
    """Add a tile's weighted values of one KV head. The first pass over the rows prefetches the next tile's keys."""
    offset, mine = kv_head * head_bytes, kv_head * group
    width = WIDE * emit.lanes
    whole = size // width * width
    later = Cell(emit, lines)

    def columns(heads: int, h: Int) -> None:
        def some(vectors: int, column: Int) -> None:
            ahead = Ahead(TILE, offset, later.get())
            later.set(emit.whole(0))
            at = scores + (mine + h) * SCORE_BYTES
            to = sums + (mine + h) * size * 4 + column * 4
            _values(emit, heads, vectors, at, tile, values_at + offset + column * emit.bytes, to, size, now, ahead)

        with emit.range(0, whole, width) as column:
            some(WIDE, column)
        with emit.range(whole, size, emit.lanes) as column:
            some(1, column)

    _head_blocks(emit, group, columns)


def _merge(emit: Emitter, a: Record, unit: Record, sums: Int, first: Int, last: Int) -> None:
    """Join the parts of a token, always in the same order, into its output. sums: scratch for a row."""
    builder = emit.builder
    size = a[HEAD_DIM]
    heads = a[KV_HEADS] * a[GROUP]
    parts = unit[PART_COUNT]
    values = a[PARTS] + unit[FIRST_PART] * heads * size * 4
    notes = a[PART_STATS] + unit[FIRST_PART] * heads * 8
    target = a[OUTPUT] + unit[TOKEN] * heads * (size * emit.bytes)
    with emit.range(first, last) as head:

        def most(part: Int, found: list[Any], head: Int = head) -> list[Any]:
            return [emit.larger(emit.get_float(notes + (part * heads + head) * 8), found[0])]

        (top,) = Emitter(builder).loop(parts, [emit.real(FLOOR)], most)
        fill_row(emit, sums, size, 0.0)

        def add(part: Int, found: list[Any], head: Int = head, top: Any = top) -> list[Any]:
            note = notes + (part * heads + head) * 8
            share = Emitter(builder).exp2(builder.fsub(emit.get_float(note), top))
            add_scaled(emit, sums, values + (part * heads + head) * size * 4, size, share)
            return [builder.fadd(found[0], builder.fmul(share, emit.get_float(note, 4)))]

        (total,) = emit.loop(parts, [emit.real(0.0)], add)
        inverse = builder.fdiv(emit.real(1.0), total)
        store_scaled(emit, target + head * (size * emit.bytes), sums, size, inverse)
