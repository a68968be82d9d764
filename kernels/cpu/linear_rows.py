"""What lies between the linear layers, in one pass over memory each: RMS norms and rotary embeddings.

Addresses are int64; `half` arguments say bfloat16 instead of float32. Arithmetic is in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, float32, njit, types
from numba.extending import intrinsic

from vtop.kernels.cpu.linear_vectors import emitter
from vtop.kernels.cpu.runtime import c_function
from vtop.kernels.cpu.vectors import Cell

_FLOATS, _HALVES = (0,), (0, 0)


@intrinsic  # type: ignore[untyped-decorator]
def _square_sum(context: Any, x: Any, size: Any, halves: Any) -> Any:
    """Sum of the squares of x [size]."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, half)
        source, count = (emit.whole(arg) for arg in args[:2])
        total = Cell(emit, emit.fixed(0.0))
        with emit.range(0, count // emit.lanes) as i:
            value = emit.load_element(source + i * (emit.bytes * emit.lanes))
            total.set(emit.fma(value, value, total.get()))
        return emit.total(total.get())

    return types.float32(types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def _scaled(context: Any, x: Any, factor: Any, weight: Any, size: Any, out: Any, halves: Any) -> Any:
    """out [size] = round(x [size] * factor) * weight [size]; the weight is float32."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, half)
        source, weights, count, target = (emit.whole(args[i]) for i in (0, 2, 3, 4))
        factors = emit.splat(args[1])
        with emit.range(0, count // emit.lanes) as i:
            place = i * (emit.bytes * emit.lanes)
            product = builder.fmul(emit.load_element(source + place), factors)
            value = emit.widened(emit.narrowed(product))
            value = builder.fmul(value, emit.load(weights + i * (4 * emit.lanes)))
            emit.store_element(value, target + place)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64, types.int64, halves), generate


@intrinsic  # type: ignore[untyped-decorator]
def _number(context: Any, address: Any) -> Any:
    """The float32 there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, False)
        return emit.get_float(emit.whole(args[0]))

    return types.float32(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _rotated(context: Any, x: Any, cos: Any, sin: Any, size: Any, out: Any, halves: Any) -> Any:
    """out [size] = x * cos + (-x[size / 2:], x[: size / 2]) * sin."""
    half = halves.count == 2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = emitter(builder, half)
        x, cos, sin, size, out = (emit.whole(arg) for arg in args[:5])
        middle = size // 2
        with emit.range(0, middle // emit.lanes) as i:
            low = i * (emit.bytes * emit.lanes)
            high = low + middle * emit.bytes
            x_low, x_high = emit.load_element(x + low), emit.load_element(x + high)
            first = builder.fmul(builder.fneg(x_high), emit.load_element(sin + low))
            second = builder.fmul(x_low, emit.load_element(sin + high))
            first = builder.fadd(builder.fmul(x_low, emit.load_element(cos + low)), first)
            second = builder.fadd(builder.fmul(x_high, emit.load_element(cos + high)), second)
            emit.store_element(first, out + low)
            emit.store_element(second, out + high)
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
