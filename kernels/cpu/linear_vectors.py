"""Vector code of the CPU linear kernel, written as LLVM IR because numba offers no vectors of its own.

Every function takes addresses as int64. Numbers that shape the code travel as tuples, by their length, so that numba's
cache on disk holds the result. An element of the output is always one chain of multiply-adds over the input, in the
same order whatever the number of rows: results do not depend on what else is in a batch.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
TILE_COLUMNS = 4
"""Weight rows, that is outputs, of a tile."""


def _lanes() -> int:
    try:
        return 16 if llvm.get_host_cpu_features().get("avx512f") else 8
    except RuntimeError:  # LLVM does not know this machine's features
        return 8


LANES = _lanes()
"""float32 lanes of a vector."""


class Vectors:
    """Loads, stores and arithmetic on vectors of `lanes` float32, around an IR builder."""

    def __init__(self, builder: ir.IRBuilder, lanes: int = LANES) -> None:
        self.b = builder
        self.lanes = lanes
        self.floats = ir.VectorType(F32, lanes)
        self.words = ir.VectorType(I32, lanes)

    def pointer(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        return self.b.inttoptr(address, kind.as_pointer())

    def plus(self, address: ir.Value, offset: int) -> ir.Value:
        return self.b.add(address, ir.Constant(I64, offset)) if offset else address

    def load(self, address: ir.Value) -> ir.Value:
        return self.b.load(self.pointer(address, self.floats), align=4)

    def store(self, value: ir.Value, address: ir.Value) -> None:
        self.b.store(value, self.pointer(address, value.type), align=2)

    def load_halves(self, address: ir.Value) -> tuple[ir.Value, ir.Value]:
        """2 * lanes bfloat16, widened: those at even places, those at odd ones."""
        raw = self.b.load(self.pointer(address, self.words), align=2)
        even = self.b.shl(raw, self.word(16))
        odd = self.b.and_(raw, self.word(0xFFFF0000))
        return self.b.bitcast(even, self.floats), self.b.bitcast(odd, self.floats)

    def word(self, value: int) -> ir.Constant:
        return ir.Constant(self.words, [value] * self.lanes)

    def number(self, value: float) -> ir.Constant:
        return ir.Constant(self.floats, [value] * self.lanes)

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        kind = ir.FunctionType(self.floats, [self.floats] * 3)
        function = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.fma.v{self.lanes}f32")
        return self.b.call(function, [x, y, z])

    def unary(self, name: str, x: ir.Value) -> ir.Value:
        kind = ir.FunctionType(self.floats, [self.floats])
        function = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.{name}.v{self.lanes}f32")
        return self.b.call(function, [x])

    def binary(self, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        kind = ir.FunctionType(self.floats, [self.floats] * 2)
        function = cgutils.get_or_insert_function(self.b.module, kind, f"llvm.{name}.v{self.lanes}f32")
        return self.b.call(function, [x, y])

    def prefetch(self, address: ir.Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(self.b.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        self.b.call(function, [self.pointer(address, I8), read, keep, data])

    def shuffle(self, x: ir.Value, y: ir.Value, order: list[int]) -> ir.Value:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), order))

    def exp(self, x: ir.Value) -> ir.Value:
        """e ** x to about 2 units in the last place; x is held within what float32 can express."""
        b = self.b
        x = self.binary("minnum", self.binary("maxnum", x, self.number(-87.3)), self.number(88.3))
        whole = self.unary("rint", b.fmul(x, self.number(1.4426950408889634)))
        rest = self.fma(whole, self.number(-0.693145751953125), x)
        rest = self.fma(whole, self.number(-1.428606765330187e-06), rest)
        power = self.number(1 / 5040)
        for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            power = self.fma(power, rest, self.number(factor))
        shift = b.shl(b.fptosi(whole, self.words), self.word(23))
        return b.bitcast(b.add(b.bitcast(power, self.words), shift), self.floats)

    def silu(self, x: ir.Value) -> ir.Value:
        e = self.exp(self.b.fneg(x))
        return self.b.fdiv(x, self.b.fadd(self.number(1.0), e))

    def to_half(self, x: ir.Value) -> ir.Value:
        """Round to nearest even bfloat16, as 16-bit integers."""
        b = self.b
        bits = b.bitcast(x, self.words)
        odd = b.and_(b.lshr(bits, self.word(16)), self.word(1))
        rounded = b.lshr(b.add(b.add(bits, self.word(0x7FFF)), odd), self.word(16))
        rounded = b.select(b.fcmp_unordered("uno", x, x), self.word(0x7FC0), rounded)
        return b.trunc(rounded, ir.VectorType(I16, self.lanes))


def _sum_four(v: Vectors, four: list[ir.Value]) -> ir.Value:
    """The sums over the lanes of four vectors, as one vector of four."""
    lanes = v.lanes
    while lanes > 4:
        lanes //= 2
        four = [
            v.b.fadd(v.shuffle(x, x, list(range(lanes))), v.shuffle(x, x, list(range(lanes, 2 * lanes)))) for x in four
        ]
    pairs = [
        v.b.fadd(v.shuffle(x, y, [0, 4, 2, 6]), v.shuffle(x, y, [1, 5, 3, 7]))
        for x, y in ((four[0], four[1]), (four[2], four[3]))
    ]
    return v.b.fadd(v.shuffle(pairs[0], pairs[1], [0, 1, 4, 5]), v.shuffle(pairs[0], pairs[1], [2, 3, 6, 7]))


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
        v = Vectors(builder)
        address, step, weights, distance, total, target = args[0], args[1], args[2:6], args[6], args[7], args[8]
        starts = [address]
        for _ in range(count - 1):
            starts.append(builder.add(starts[-1], step))
        sums = [[cgutils.alloca_once_value(builder, v.number(0.0)) for _ in range(TILE_COLUMNS)] for _ in range(count)]

        def accumulate(inputs: list[Any], n: int, weight: Any) -> None:
            for m in range(count):
                builder.store(v.fma(inputs[m], weight, builder.load(sums[m][n])), sums[m][n])

        per_pass = LANES * (2 if half else 1)
        passes = builder.udiv(total, ir.Constant(I64, per_pass))
        with cgutils.for_range(builder, passes, intp=I64) as loop:
            in_x = builder.mul(loop.index, ir.Constant(I64, 4 * per_pass))
            in_w = builder.mul(loop.index, ir.Constant(I64, 4 * LANES))
            places = [builder.add(weight, in_w) for weight in weights]
            for place in places:
                v.prefetch(builder.add(place, distance))
            inputs = [v.load(builder.add(start, in_x)) for start in starts]
            if half:
                pairs = [v.load_halves(place) for place in places]
                for n in range(TILE_COLUMNS):
                    accumulate(inputs, n, pairs[n][0])
                inputs = [v.load(v.plus(builder.add(start, in_x), 4 * LANES)) for start in starts]
                for n in range(TILE_COLUMNS):
                    accumulate(inputs, n, pairs[n][1])
            else:
                for n in range(TILE_COLUMNS):
                    accumulate(inputs, n, v.load(places[n]))
        for m in range(count):
            v.store(_sum_four(v, [builder.load(slot) for slot in sums[m]]), v.plus(target, 16 * m))
        return context.get_dummy_value()

    numbers = (types.int64,) * 9
    return types.void(*numbers, rows, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def widen(context: Any, source: Any, size: Any, out: Any) -> Any:
    """out [size] float32 = source [size] bfloat16; of each 2 * LANES first those at even places, then the odd ones."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        passes = builder.udiv(args[1], ir.Constant(I64, 2 * LANES))
        with cgutils.for_range(builder, passes, intp=I64) as loop:
            even, odd = v.load_halves(builder.add(args[0], builder.mul(loop.index, ir.Constant(I64, 4 * LANES))))
            target = builder.add(args[2], builder.mul(loop.index, ir.Constant(I64, 8 * LANES)))
            v.store(even, target)
            v.store(odd, v.plus(target, 4 * LANES))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def finish(context: Any, sums: Any, bias: Any, out: Any, halves: Any) -> Any:
    """out [4] = sums [4] + bias [4], rounded to bfloat16 with len(halves) == 2. All but `out` are float32.

    bias may be 0, for none.
    """
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder, TILE_COLUMNS)
        slot = cgutils.alloca_once_value(builder, v.load(args[0]))
        with builder.if_then(builder.icmp_signed("!=", args[1], ir.Constant(I64, 0))):
            builder.store(builder.fadd(builder.load(slot), v.load(args[1])), slot)
        value = builder.load(slot)
        v.store(v.to_half(value) if half else value, args[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def finish_gated(context: Any, gate: Any, up: Any, out: Any, halves: Any) -> Any:
    """out [4] = silu(gate [4]) * up [4], rounded to bfloat16 with len(halves) == 2; gate and up are float32."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder, TILE_COLUMNS)
        value = builder.fmul(v.silu(v.load(args[0])), v.load(args[1]))
        v.store(v.to_half(value) if half else value, args[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_some(context: Any, source: Any, count: Any, out: Any, halves: Any) -> Any:
    """out [count] = source [count], of float32 or with len(halves) == 2 of 16-bit numbers."""
    kind, size = (I16, 2) if halves.count == 2 else (I32, 4)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        with cgutils.for_range(builder, args[1], intp=I64) as loop:
            offset = builder.mul(loop.index, ir.Constant(I64, size))
            value = builder.load(v.pointer(builder.add(args[0], offset), kind), align=size)
            builder.store(value, v.pointer(builder.add(args[2], offset), kind), align=size)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def take_ticket(context: Any, counter: Any) -> Any:
    """The int64 at `counter`, which grows by one; each thread gets another number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        return builder.atomic_rmw("add", v.pointer(args[0], I64), ir.Constant(I64, 1), "monotonic")

    return types.int64(types.int64), generate
