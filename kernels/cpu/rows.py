"""Code for one row of numbers: loading queries, softmax of scores, scaling and storing sums.

Rows of float32 start at any multiple of 4 bytes; counts are multiples of the emitter's lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtop.kernels.cpu.layout import BLOCK_SIZE, BLOCK_STRIDE, CACHE, HEAD_DIM, TABLE_STRIDE, TABLES
from vtop.kernels.cpu.vectors import FLOOR, LOG2E, Emitter, Int, Record


def _each(emit: Emitter, count: Int, body: Callable[[Int], None]) -> None:
    """`body(i)` for the index i of each vector in a row of `count`."""

    def turn(i: Int, _: list[Any]) -> list[Any]:
        body(i)
        return []

    emit.loop(count // emit.lanes, [], turn)


def load_scaled(emit: Emitter, target: Int, source: Int, count: Int, factor: Any) -> None:
    """target[i] (float32) = source[i] (element type) * factor; None leaves them as they are."""
    wide = None if factor is None else emit.splat(factor)

    def body(i: Int) -> None:
        value = emit.load_element(source + i * (emit.lanes * emit.bytes))
        emit.store(value if wide is None else emit.builder.fmul(value, wide), target + i * (emit.lanes * 4))

    _each(emit, count, body)


def store_scaled(emit: Emitter, target: Int, source: Int, count: Int, factor: Any) -> None:
    """target[i] (element type) = source[i] (float32) * factor."""
    wide = emit.splat(factor)

    def body(i: Int) -> None:
        value = emit.builder.fmul(emit.load(source + i * (emit.lanes * 4)), wide)
        emit.store_element(value, target + i * (emit.lanes * emit.bytes))

    _each(emit, count, body)


def add_scaled(emit: Emitter, target: Int, source: Int, count: Int, factor: Any) -> None:
    """target[i] += source[i] * factor, float32."""
    wide = emit.splat(factor)

    def body(i: Int) -> None:
        to = target + i * (emit.lanes * 4)
        emit.store(emit.fma(emit.load(source + i * (emit.lanes * 4)), wide, emit.load(to)), to)

    _each(emit, count, body)


def scale_row(emit: Emitter, row: Int, count: Int, factor: Any) -> None:
    """row[i] *= factor."""
    wide = emit.splat(factor)

    def body(i: Int) -> None:
        place = row + i * (emit.lanes * 4)
        emit.store(emit.builder.fmul(emit.load(place), wide), place)

    _each(emit, count, body)


def fill_row(emit: Emitter, row: Int, count: Int, value: float) -> None:
    """row[i] = value."""
    _each(emit, count, lambda i: emit.store(emit.fixed(value), row + i * (emit.lanes * 4)))


def floor_between(emit: Emitter, row: Int, first: Int, last: Int) -> None:
    """row[i] = FLOOR for first <= i < last, any numbers."""
    with emit.range(first, last) as i:
        emit.store(emit.real(FLOOR), row + i * 4)


def cap_row(emit: Emitter, row: Int, count: Int, cap: Any) -> None:
    """row[i] = cap * tanh(row[i]), unless cap is 0."""
    with emit.builder.if_then(emit.builder.fcmp_ordered("one", cap, emit.real(0.0))):
        wide = emit.splat(cap)

        def body(i: Int) -> None:
            place = row + i * (emit.lanes * 4)
            emit.store(emit.builder.fmul(emit.tanh(emit.load(place)), wide), place)

        _each(emit, count, body)


def start_softmax(emit: Emitter, stats: Int, sinks: Int, head: Int) -> None:
    """Largest score and sum of weights, float32 at `stats`, before any key. sinks: float32 per head, or 0."""
    with emit.builder.if_else(sinks.equals(0)) as (without, with_sink):
        with without:
            emit.store(emit.real(FLOOR), stats)
            emit.store(emit.real(0.0), stats, 4)
        with with_sink:
            sink = emit.builder.fmul(emit.get_float(sinks + head * 4), emit.real(LOG2E))
            emit.store(sink, stats)
            emit.store(emit.real(1.0), stats, 4)


def softmax_row(emit: Emitter, row: Int, count: Int, stats: Int, sums: Int, size: Int) -> None:
    """Turn scores (base 2) into weights 2 ** (score - largest so far), and keep `stats` and `sums` up with them.

    stats: largest score and sum of weights. sums: `size` float32, the weighted values so far. FLOOR becomes 0.
    """
    builder = emit.builder
    before = emit.get_float(stats)

    def most(i: Int, values: list[Any]) -> list[Any]:
        return [emit.larger(emit.load(row + i * (emit.lanes * 4)), values[0])]

    (wide,) = emit.loop(count // emit.lanes, [emit.splat(before)], most)
    width = emit.lanes
    while width > 1:  # fold halves onto each other; lane 0 has the largest in the end
        width //= 2
        other = emit.shuffle(wide, wide, [(i + width) % emit.lanes for i in range(emit.lanes)])
        wide = emit.larger(other, wide)
    top = builder.extract_element(wide, emit.whole(0).ir)
    with builder.if_then(builder.fcmp_ordered("ogt", top, before)):
        shrink = Emitter(builder).exp2(builder.fsub(before, top))
        emit.store(top, stats)
        emit.store(builder.fmul(emit.get_float(stats, 4), shrink), stats, 4)
        scale_row(emit, sums, size, shrink)
    tops = emit.splat(top)

    def weigh(i: Int, values: list[Any]) -> list[Any]:
        place = row + i * (emit.lanes * 4)
        weight = emit.exp2(builder.fsub(emit.load(place), tops))
        emit.store(weight, place)
        return [builder.fadd(values[0], weight)]

    (total,) = emit.loop(count // emit.lanes, [emit.fixed(0.0)], weigh)
    emit.store(builder.fadd(emit.get_float(stats, 4), emit.total(total)), stats, 4)


def row_addresses(emit: Emitter, a: Record, target: Int, sequence: Int, low: Int, high: Int, padded: Int) -> None:
    """int64 addresses of the K rows (KV head 0) of tokens low … high - 1; the last one again up to `padded` of them.

    So every row that is read holds a token, and what lies in unused slots is never seen.
    """
    size, row = a[BLOCK_SIZE], a[HEAD_DIM] * emit.bytes
    table = a[TABLES] + sequence * a[TABLE_STRIDE]
    cache, stride = a[CACHE], a[BLOCK_STRIDE]
    block_of_low, block_of_last = low // size, (high - 1) // size
    with emit.range(block_of_low, block_of_last + 1) as block:
        first = emit.max(block * size, low)
        last = emit.min(block * size + size, high)
        start = cache + emit.get_int(table + block * 8) * stride - block * size * row
        with emit.range(first, last) as token:
            emit.put_int(start + token * row, target + (token - low) * 8)
    final = emit.get_int(target + (high - low - 1) * 8)
    with emit.range(high - low, padded) as i:
        emit.put_int(final, target + i * 8)
