"""The two entries of the compiled code, C functions that every thread of the pool runs, taking work until none is left.

`attention_function` computes attention (what it is given: `layout`). `write_function` puts K and V of new tokens into
their slots: its arguments are KEYS … ROW_BYTES; rows are copied as bytes, so one compiled function serves all.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from vtop.kernels.cpu.decode import decode_unit
from vtop.kernels.cpu.layout import (
    KIND,
    NEXT_THREAD,
    NEXT_UNIT,
    PREFILL,
    SCRATCH,
    SCRATCH_STRIDE,
    UNIT_COUNT,
    UNIT_FIELDS,
    UNITS,
)
from vtop.kernels.cpu.prefill import prefill_unit
from vtop.kernels.cpu.runtime import c_function
from vtop.kernels.cpu.vectors import I64, Emitter, Int, Record, kernel_type

(
    KEYS,  # k [T, kv_heads, head_dim]
    KEY_TOKEN_STRIDE,
    KEY_HEAD_STRIDE,
    VALUES,
    VALUE_TOKEN_STRIDE,
    VALUE_HEAD_STRIDE,
    LAYER,
    LAYER_BLOCK_STRIDE,
    SLOTS,  # int64 [T]
    SLOT_COUNT,
    SLOT_BLOCK_SIZE,
    HEADS,
    ROW_BYTES,
) = range(13)
NEXT_RUN = 32
WRITE_ARGUMENTS = 40
RUN = 32  # tokens that a thread takes at a time


def _take_units(emit: Emitter, a: Record) -> None:
    scratch = a[SCRATCH] + emit.fetch_add(a.address + 8 * NEXT_THREAD, 1) * a[SCRATCH_STRIDE]
    with emit.taking(a.address + 8 * NEXT_UNIT, a[UNIT_COUNT]) as index:
        unit = Record(emit, a[UNITS] + index * (8 * UNIT_FIELDS))
        with emit.builder.if_else(unit[KIND].equals(PREFILL)) as (prefill, decode):
            with prefill:
                prefill_unit(emit, a, unit, scratch)
            with decode:
                decode_unit(emit, a, unit, scratch)


@intrinsic  # type: ignore[untyped-decorator]
def _attention(typing: Any, a: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emitter.of(builder, a)
        _take_units(emit, Record(emit, emit.whole(builder.ptrtoint(arguments[0], I64))))
        return context.get_dummy_value()

    return types.void(a), generate


def _work(a: Any) -> None:
    _attention(a)


@cache
def attention_function(element: str, lanes: int) -> Any:
    """The compiled kernel for `element` (a key of ELEMENTS); takes seconds the first time on a machine."""
    return c_function(_work, kernel_type(element, lanes))


def _write_rows(emit: Emitter, a: Record) -> None:
    count, size, heads, row = a[SLOT_COUNT], a[SLOT_BLOCK_SIZE], a[HEADS], a[ROW_BYTES]

    def copy_token(token: Int) -> None:
        slot = emit.get_int(a[SLOTS] + token * 8)
        target = a[LAYER] + slot // size * a[LAYER_BLOCK_STRIDE] + slot % size * row
        key = a[KEYS] + token * a[KEY_TOKEN_STRIDE]
        value = a[VALUES] + token * a[VALUE_TOKEN_STRIDE]
        with emit.range(0, heads) as head:
            emit.copy(target + head * size * row, key + head * a[KEY_HEAD_STRIDE], row)
            emit.copy(target + (heads + head) * size * row, value + head * a[VALUE_HEAD_STRIDE], row)

    with emit.taking(a.address + 8 * NEXT_RUN, (count + (RUN - 1)) // RUN) as run:
        first = run * RUN
        with emit.range(first, emit.min(first + RUN, count)) as token:
            copy_token(token)


@intrinsic  # type: ignore[untyped-decorator]
def _copy_rows(typing: Any, a: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit = Emitter.of(builder, a)
        _write_rows(emit, Record(emit, emit.whole(builder.ptrtoint(arguments[0], I64))))
        return context.get_dummy_value()

    return types.void(a), generate


def _write(a: Any) -> None:
    _copy_rows(a)


@cache
def write_function() -> Any:
    return c_function(_write, kernel_type("float32", 8))
