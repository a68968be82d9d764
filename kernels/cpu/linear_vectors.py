"""Vector code of the CPU linear kernel, as functions that numba's own code can call.

Every function takes addresses as int64. Numbers that shape the code travel as tuples, by their length, so that numba's
cache on disk holds the result. An element of the output is always one chain of multiply-adds over the input, in the
same order whatever the number of rows: results do not depend on what else is in a batch.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.extending import intrinsic

from vtop.kernels.cpu.vectors import I16, I32, LOG2E, Cell, Emitter

TILE_COLUMNS = 4
"""Weight rows, that is outputs, of a tile."""


def _lanes() -> int:
    try:
        return 16 if llvm.get_host_cpu_features().get("avx512f") else 8
    except RuntimeError:  # LLVM does not know this machine's features
        return 8


LANES = _lanes()
"""float32 lanes of a vector."""


def emitter(builder: Any, half: bool) -> Emitter:
    """Writes code for vectors of LANES; elements are bfloat16 with `half`, else float32."""
    return Emitter(builder, LANES, types.uint16 if half else types.float32)


def _sum_four(emit: Emitter, four: list[Any]) -> Any:
    """The sums over the lanes of four vectors, as one vector of four."""
    add, lanes = emit.builder.fadd, emit.lanes
    while lanes > 4:
        lanes //= 2
        low, high = list(range(lanes)), list(range(lanes, 2 * lanes))
        four = [add(emit.shuffle(x, x, low), emit.shuffle(x, x, high)) for x in four]
    pairs = [
        add(emit.shuffle(x, y, [0, 4, 2, 6]), emit.shuffle(x, y, [1, 5, 3, 7]))
        for x, y in ((four[0], four[1]), (four[2], four[3]))
    ]
    first, second = pairs
    return add(emit.shuffle(first, second, [0, 1, 4, 5]), emit.shuffle(first, second, [2, 3, 6, 7]))


def _exp(emit: Emitter, x: Any) -> Any:
    """e ** x to about 2 units in the last place; x is held within what float32 can express."""
    b, suffix = emit.builder, f"v{emit.lanes}f32"
    x = emit.call(f"llvm.maxnum.{suffix}", emit.vector, (x, emit.fixed(-87.3)))
    x = emit.call(f"llvm.minnum.{suffix}", emit.vector, (x, emit.fixed(88.3)))
    whole = emit.call(f"llvm.rint.{suffix}", emit.vector, (b.fmul(x, emit.fixed(LOG2E)),))
    rest = emit.fma(whole, emit.fixed(-0.693145751953125), x)
    rest = emit.fma(whole, emit.fixed(-1.428606765330187e-06), rest)
    power = emit.polynomial(rest, (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0))
    shift = b.shl(b.fptosi(whole, emit.wide(I32)), emit.fixed(23, I32))
    return b.bitcast(b.add(b.bitcast(power, emit.wide(I32)), shift), emit.vector)


def _silu(emit: Emitter, x: Any) -> Any:
    b = emit.builder
    return b.fdiv(x, b.fadd(emit.fixed(1.0), _exp(emit, b.fneg(x))))


@intrinsic  # type: ignore[untyped-decorator]
def tile(
    context: Any, x: Any, x_step: Any, w0: Any, w1: Any, w2: Any, w3: Any, ahead: Any, size: Any, out: Any,
    rows: Any, halves: Any,
) -> Any:  # fmt: skip
    """out [rows, 4] float32 = x [rows, size] @ (w0 … w3 [size]).T

    x: float32, rows x_step bytes apart. w0 … w3: addresses of float32, or with len(halves) == 2 of bfloat16; then x
    is in the order that `widen` makes. ahead: what lies so many bytes after w0 … w3 is prefetched. size is a multiple
    of LANES * len(halves).
    """
    count, half = rows.count, halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, half)
        address, step, *rest = [emit.whole(arg) for arg in args[:9]]
        weights, distance, total, target = rest[:4], rest[4], rest[5], rest[6]
        starts = [address]
        for _ in range(count - 1):
            starts.append(starts[-1] + step)
        sums = [[Cell(emit, emit.fixed(0.0)) for _ in range(TILE_COLUMNS)] for _ in range(count)]

        def accumulate(inputs: list[Any], n: int, weight: Any) -> None:
            for m in range(count):
                sums[m][n].set(emit.fma(inputs[m], weight, sums[m][n].get()))

        per_pass = LANES * (2 if half else 1)
        with emit.range(0, total // per_pass) as turn:
            in_x, in_w = turn * (4 * per_pass), turn * (4 * LANES)
            places = [weight + in_w for weight in weights]
            for place in places:
                emit.prefetch(place + distance)
            inputs = [emit.load(start + in_x) for start in starts]
            if half:
                pairs = [emit.load_pairs(place) for place in places]
                for n in range(TILE_COLUMNS):
                    accumulate(inputs, n, pairs[n][0])
                inputs = [emit.load(start + in_x, 4 * LANES) for start in starts]
                for n in range(TILE_COLUMNS):
                    accumulate(inputs, n, pairs[n][1])
            else:
                for n in range(TILE_COLUMNS):
                    accumulate(inputs, n, emit.load(places[n]))
        for m in range(count):
            emit.store(_sum_four(emit, [cell.get() for cell in sums[m]]), target, 16 * m)
        return context.get_dummy_value()

    numbers = (types.int64,) * 9
    return types.void(*numbers, rows, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def widen(context: Any, source: Any, size: Any, out: Any) -> Any:
    """out [size] float32 = source [size] bfloat16; of each 2 * LANES first those at even places, then the odd ones."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, True)
        source, total, target = (emit.whole(arg) for arg in args)
        with emit.range(0, total // (2 * LANES)) as turn:
            even, odd = emit.load_pairs(source + turn * (4 * LANES))
            emit.store(even, target + turn * (8 * LANES))
            emit.store(odd, target + turn * (8 * LANES), 4 * LANES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def finish(context: Any, sums: Any, bias: Any, out: Any, halves: Any) -> Any:
    """out [4] = sums [4] + bias [4], rounded to bfloat16 with len(halves) == 2. All but `out` are float32.

    bias may be 0, for none.
    """
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, half).with_lanes(TILE_COLUMNS)
        sums, bias, out = (emit.whole(arg) for arg in args[:3])
        value = Cell(emit, emit.load(sums))
        with builder.if_then(builder.not_(bias.equals(0))):
            value.set(builder.fadd(value.get(), emit.load(bias)))
        emit.store_element(value.get(), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def finish_gated(context: Any, gate: Any, up: Any, out: Any, halves: Any) -> Any:
    """out [4] = silu(gate [4]) * up [4], rounded to bfloat16 with len(halves) == 2; gate and up are float32."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, half).with_lanes(TILE_COLUMNS)
        gate, up, out = (emit.whole(arg) for arg in args[:3])
        emit.store_element(builder.fmul(_silu(emit, emit.load(gate)), emit.load(up)), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_some(context: Any, source: Any, count: Any, out: Any, halves: Any) -> Any:
    """out [count] = source [count], of float32 or with len(halves) == 2 of 16-bit numbers."""
    kind, size = (I16, 2) if halves.count == 2 else (I32, 4)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, False)
        source, total, target = (emit.whole(arg) for arg in args[:3])
        with emit.range(0, total) as i:
            value = builder.load(emit.pointer(source + i * size, kind), align=size)
            builder.store(value, emit.pointer(target + i * size, kind), align=size)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def take_ticket(context: Any, counter: Any) -> Any:
    """The int64 at `counter`, which grows by one; each thread gets another number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, False)
        return emit.fetch_add(emit.whole(args[0]), 1).ir

    return types.int64(types.int64), generate
