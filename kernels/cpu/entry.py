"""The attention kernel's entry: a C function that every thread of the pool runs, taking units until none is left."""

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
from vtop.kernels.cpu.vectors import I64, Emitter, Record, kernel_type


def _write_code(emit: Emitter, a: Record) -> None:
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
        _write_code(emit, Record(emit, emit.whole(builder.ptrtoint(arguments[0], I64))))
        return context.get_dummy_value()

    return types.void(a), generate


def _work(a: Any) -> None:
    _attention(a)


@cache
def attention_function(element: str, lanes: int) -> Any:
    """The compiled kernel for `element` (a key of ELEMENTS); takes seconds the first time on a machine."""
    return c_function(_work, kernel_type(element, lanes))
