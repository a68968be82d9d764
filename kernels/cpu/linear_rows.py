"""What lies between the linear layers, in one pass over memory each: RMS norms and rotary embeddings.

Addresses are int64; `half` arguments say bfloat16 instead of float32. Arithmetic is in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, float32, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from vtop.kernels.cpu.cache import c_function
from vtop.kernels.cpu.linear_vectors import F32, I16, I64, LANES, Vectors

_FLOATS, _HALVES = (0,), (0, 0)


class _Rows(Vectors):
    """Vectors of consecutive elements in either dtype."""

    def __init__(self, builder: ir.IRBuilder, half: bool) -> None:
        super().__init__(builder)
        self.half = half
        self.item = 2 if half else 4

    def get(self, address: ir.Value) -> ir.Value:
        if not self.half:
            return self.load(address)
        raw = self.b.load(self.pointer(address, ir.VectorType(I16, self.lanes)), align=2)
        return self.b.bitcast(self.b.shl(self.b.zext(raw, self.words), self.word(16)), self.floats)

    def put(self, value: ir.Value, address: ir.Value) -> None:
        self.store(self.to_half(value) if self.half else value, address)

    def round(self, value: ir.Value) -> ir.Value:
        if not self.half:
            return value
        raw = self.b.zext(self.to_half(value), self.words)
        return self.b.bitcast(self.b.shl(raw, self.word(16)), self.floats)

    def splat(self, value: ir.Value) -> ir.Value:
        empty = ir.Constant(self.floats, ir.Undefined)
        one = self.b.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
        return self.shuffle(one, empty, [0] * self.lanes)

    def each(self, size: ir.Value) -> Any:
        return cgutils.for_range(self.b, self.b.udiv(size, ir.Constant(I64, self.lanes)), intp=I64)

    def place(self, address: ir.Value, index: ir.Value, item: int) -> ir.Value:
        return self.b.add(address, self.b.mul(index, ir.Constant(I64, item * self.lanes)))


@intrinsic  # type: ignore[untyped-decorator]
def _square_sum(context: Any, x: Any, size: Any, halves: Any) -> Any:
    """Sum of the squares of x [size]."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Rows(builder, half)
        total = cgutils.alloca_once_value(builder, v.number(0.0))
        with v.each(args[1]) as loop:
            value = v.get(v.place(args[0], loop.index, v.item))
            builder.store(v.fma(value, value, builder.load(total)), total)
        kind = ir.FunctionType(F32, [F32, v.floats])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        return builder.call(reduce, [ir.Constant(F32, 0.0), builder.load(total)], fastmath=("reassoc",))

    return types.float32(types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def _scaled(context: Any, x: Any, factor: Any, weight: Any, size: Any, out: Any, halves: Any) -> Any:
    """out [size] = round(x [size] * factor) * weight [size]; the weight is float32."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Rows(builder, half)
        factor_ = v.splat(args[1])
        with v.each(args[3]) as loop:
            value = v.round(builder.fmul(v.get(v.place(args[0], loop.index, v.item)), factor_))
            value = builder.fmul(value, v.load(v.place(args[2], loop.index, 4)))
            v.put(value, v.place(args[4], loop.index, v.item))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def _number(context: Any, address: Any) -> Any:
    """The float32 there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(Vectors(builder).pointer(args[0], F32), align=4)

    return types.float32(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _rotated(context: Any, x: Any, cos: Any, sin: Any, size: Any, out: Any, halves: Any) -> Any:
    """out [size] = x * cos + (-x[size / 2:], x[: size / 2]) * sin."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Rows(builder, half)
        middle = builder.udiv(args[3], ir.Constant(I64, 2))
        offset = builder.mul(middle, ir.Constant(I64, v.item))
        with v.each(middle) as loop:
            low = [v.place(address, loop.index, v.item) for address in (*args[:3], args[4])]
            high = [builder.add(address, offset) for address in low]
            x_low, x_high = v.get(low[0]), v.get(high[0])
            first = builder.fmul(builder.fneg(x_high), v.get(low[2]))
            second = builder.fmul(x_low, v.get(high[2]))
            v.put(builder.fadd(builder.fmul(x_low, v.get(low[1])), first), low[3])
            v.put(builder.fadd(builder.fmul(x_high, v.get(high[1])), second), high[3])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, types.int64, halves), generate


NORM_FIELDS = 7
"""x, bytes between rows of x, rows, size, weight, out, half. The float32 after the weight's last is epsilon."""
ROTATE_FIELDS = 10
"""x, bytes between tokens, between heads, tokens, heads, size, cos, sin, out, half."""


def _norm_rows(fields):  # type: ignore[no-untyped-def]
    """out [rows, size] = x / sqrt(mean(x ** 2) + epsilon) * weight."""
    f = carray(fields, NORM_FIELDS)
    x, x_step, rows, size, weight, out, half = f[0], f[1], f[2], f[3], f[4], f[5], f[6]
    for row in range(rows):
        source = x + row * x_step
        if half != 0:
            scale = _scale(_square_sum(source, size, _HALVES), size, weight)
            _scaled(source, scale, weight, size, out + row * size * 2, _HALVES)
        else:
            scale = _scale(_square_sum(source, size, _FLOATS), size, weight)
            _scaled(source, scale, weight, size, out + row * size * 4, _FLOATS)


@njit(nogil=True)
def _scale(squares, size, weight):  # type: ignore[no-untyped-def]
    return float32(1.0) / np.sqrt(squares / float32(size) + _number(weight + 4 * size))


def _rotate_rows(fields):  # type: ignore[no-untyped-def]
    """out [tokens, heads, size] = x * cos + (-x[size / 2:], x[: size / 2]) * sin; cos, sin [tokens, size]."""
    f = carray(fields, ROTATE_FIELDS)
    x, token_step, head_step, tokens, heads, size = f[0], f[1], f[2], f[3], f[4], f[5]
    cos, sin, out, half = f[6], f[7], f[8], f[9]
    item = 2 if half != 0 else 4
    for token in range(tokens):
        angle = token * size * item
        for head in range(heads):
            source = x + token * token_step + head * head_step
            target = out + (token * heads + head) * size * item
            if half != 0:
                _rotated(source, cos + angle, sin + angle, size, target, _HALVES)
            else:
                _rotated(source, cos + angle, sin + angle, size, target, _FLOATS)


norm_rows = c_function(_norm_rows, types.CPointer(types.int64)).ctypes
rotate_rows = c_function(_rotate_rows, types.CPointer(types.int64)).ctypes
