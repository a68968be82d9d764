"""An emitter of LLVM vector code, with which the CPU kernels are written.

numba's own loops over arrays reach half of what the memory gives, and its front end needs ten seconds for kernels like
these. So they are Python functions that *write* the code: an `Int` stands for an int64 that will be known when it runs,
arithmetic on it appends instructions, and `Emitter` has what else is needed (vectors, loops, conditions). numba turns
the result into a C function and keeps it on disk.

Addresses and strides are bytes. What differs between compiled variants travels in the type of the kernels' argument, so
that it is part of numba's cache key: see `kernel_type`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import types as numba_types

types: Any = numba_types  # its stub knows only some
F32, F16, I1, I8 = ir.FloatType(), ir.HalfType(), ir.IntType(1), ir.IntType(8)
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)

LOG2E = 1.4426950408889634
CACHE_LINE = 64

FLOOR = -3.0e38
"""Stands for minus infinity among scores: differences of two of them are numbers."""

_EXP2 = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
_TANH_ODD = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_EVEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_TANH_BOUND = 7.90531110763549805

ELEMENTS: dict[str, Any] = {"float32": types.float32, "bfloat16": types.uint16, "float16": types.int16}
"""Element types of cache and queries by torch's name; 16-bit integers stand for what numba has no type for."""


def kernel_type(element: str, lanes: int) -> Any:
    """The type of the argument pointer of kernels for `element` (a key of ELEMENTS) with vectors of `lanes` floats."""
    return types.CPointer(types.Tuple((ELEMENTS[element], types.UniTuple(types.int8, lanes))))


class Int:
    """An int64 of the running code. Division and remainder are unsigned, comparisons signed (and give an i1)."""

    __slots__ = ("builder", "ir")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.ir = ir.Constant(I64, value) if isinstance(value, int) else value

    def _of(self, other: Int | int) -> Any:
        return other.ir if isinstance(other, Int) else ir.Constant(I64, other)

    def __add__(self, other: Int | int) -> Int:
        return Int(self.builder, self.builder.add(self.ir, self._of(other)))

    def __sub__(self, other: Int | int) -> Int:
        return Int(self.builder, self.builder.sub(self.ir, self._of(other)))

    def __mul__(self, other: Int | int) -> Int:
        return Int(self.builder, self.builder.mul(self.ir, self._of(other)))

    def __floordiv__(self, other: Int | int) -> Int:
        return Int(self.builder, self.builder.udiv(self.ir, self._of(other)))

    def __mod__(self, other: Int | int) -> Int:
        return Int(self.builder, self.builder.urem(self.ir, self._of(other)))

    def __lt__(self, other: Int | int) -> Any:
        return self.builder.icmp_signed("<", self.ir, self._of(other))

    def __le__(self, other: Int | int) -> Any:
        return self.builder.icmp_signed("<=", self.ir, self._of(other))

    def __gt__(self, other: Int | int) -> Any:
        return self.builder.icmp_signed(">", self.ir, self._of(other))

    def __ge__(self, other: Int | int) -> Any:
        return self.builder.icmp_signed(">=", self.ir, self._of(other))

    def equals(self, other: Int | int) -> Any:
        return self.builder.icmp_signed("==", self.ir, self._of(other))

    def rounded_up(self, multiple: int) -> Int:
        return (self + (multiple - 1)) // multiple * multiple


class Cell:
    """An int64 or float32 variable of the running code, for what changes inside loops and conditions."""

    def __init__(self, emit: Emitter, value: Any) -> None:
        self._emit = emit
        self._int = isinstance(value, Int)
        raw = value.ir if self._int else value
        with emit.builder.goto_entry_block():
            self._place = emit.builder.alloca(raw.type)
        emit.builder.store(raw, self._place)

    def get(self) -> Any:
        raw = self._emit.builder.load(self._place)
        return Int(self._emit.builder, raw) if self._int else raw

    def set(self, value: Any) -> None:
        self._emit.builder.store(value.ir if self._int else value, self._place)


class Record:
    """int64 (or float32) fields, 8 bytes apart, at an address; they are read where they are named."""

    def __init__(self, emit: Emitter, address: Int) -> None:
        self.emit = emit
        self.address = address

    def __getitem__(self, field: int) -> Int:
        return self.emit.get_int(self.address + 8 * field)

    def number(self, field: int) -> Any:
        return self.emit.get_float(self.address + 8 * field)


class Emitter:
    """Writes instructions for vectors of `lanes` floats; `element` is what cache and queries consist of."""

    def __init__(self, builder: Any, lanes: int = 1, element: Any = types.float32) -> None:
        self.builder = builder
        self.lanes = lanes
        self.element = element
        self.bytes = 4 if element == types.float32 else 2
        self.vector = self.wide(F32)

    @classmethod
    def of(cls, builder: Any, kernel: Any) -> Emitter:
        """For a kernel whose argument has this `kernel_type`."""
        element, marker = kernel.dtype.types
        return cls(builder, marker.count, element)

    def with_lanes(self, lanes: int) -> Emitter:
        return Emitter(self.builder, lanes, self.element)

    # Numbers and control

    def whole(self, value: Any) -> Int:
        return Int(self.builder, value)

    def real(self, value: float) -> Any:
        return ir.Constant(F32, value)

    def min(self, a: Int, b: Int | int) -> Int:
        return self.choose(a < b, a, b)

    def max(self, a: Int, b: Int | int) -> Int:
        return self.choose(a > b, a, b)

    def choose(self, condition: Any, a: Int | int, b: Int | int) -> Int:
        one, other = (x if isinstance(x, Int) else self.whole(x) for x in (a, b))
        return self.whole(self.builder.select(condition, one.ir, other.ir))

    @contextmanager
    def range(self, start: Int | int, stop: Int, step: int = 1) -> Iterator[Int]:
        """The body of the `with` is run for start, start + step … below stop."""
        builder = self.builder
        before, (head, inside, after) = builder.block, self._blocks("range")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(start.ir if isinstance(start, Int) else ir.Constant(I64, start), before)
        builder.cbranch(builder.icmp_signed("<", index, stop.ir), inside, after)
        builder.position_at_end(inside)
        yield self.whole(index)
        index.add_incoming(builder.add(index, ir.Constant(I64, step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    @contextmanager
    def taking(self, counter: Int, count: Int) -> Iterator[Int]:
        """The body is run for each number below `count` that this thread takes from a counter all threads share."""
        builder = self.builder
        head, inside, after = self._blocks("taking")
        builder.branch(head)
        builder.position_at_end(head)
        number = self.fetch_add(counter, 1)
        builder.cbranch(number < count, inside, after)
        builder.position_at_end(inside)
        yield number
        builder.branch(head)
        builder.position_at_end(after)

    def loop(self, count: Int, carried: Sequence[Any], body: Callable[[Int, list[Any]], Sequence[Any]]) -> list[Any]:
        """Call `body(index, values)` for each index below count; it returns the values for the next turn."""
        builder = self.builder
        before, (head, inside, after) = builder.block, self._blocks("loop")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(ir.Constant(I64, 0), before)
        values = [builder.phi(value.type) for value in carried]
        for phi, value in zip(values, carried, strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", index, count.ir), inside, after)
        builder.position_at_end(inside)
        following = body(self.whole(index), list(values))
        index.add_incoming(builder.add(index, ir.Constant(I64, 1)), builder.block)
        for phi, value in zip(values, following, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return list(values)

    def _blocks(self, name: str) -> list[Any]:
        return [self.builder.append_basic_block(f"{name}.{part}") for part in ("head", "body", "after")]

    def call(self, name: str, result: Any, arguments: Sequence[Any], **how: Any) -> Any:
        function = self.builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, list(arguments), **how)

    # Memory

    def pointer(self, address: Int, kind: Any, offset: int = 0) -> Any:
        at = address + offset if offset else address
        return self.builder.inttoptr(at.ir, kind.as_pointer())

    def get_int(self, address: Int, offset: int = 0) -> Int:
        return self.whole(self.builder.load(self.pointer(address, I64, offset), align=8))

    def put_int(self, value: Int, address: Int) -> None:
        self.builder.store(value.ir, self.pointer(address, I64), align=8)

    def get_float(self, address: Int, offset: int = 0) -> Any:
        return self.builder.load(self.pointer(address, F32, offset), align=4)

    def fetch_add(self, address: Int, value: int) -> Int:
        """Add as one step for all threads; returns what was there. Orders memory both ways."""
        pointer = self.pointer(address, I64)
        return self.whole(self.builder.atomic_rmw("add", pointer, ir.Constant(I64, value), "acq_rel"))

    def load(self, address: Int, offset: int = 0) -> Any:
        """A vector of float32."""
        return self.builder.load(self.pointer(address, self.vector, offset), align=4)

    def store(self, value: Any, address: Int, offset: int = 0) -> None:
        """A vector of float32, or a single one."""
        self.builder.store(value, self.pointer(address, value.type, offset), align=4)

    def load_element(self, address: Int, offset: int = 0) -> Any:
        """A vector of the element type, widened to float32."""
        if self.element == types.float32:
            return self.load(address, offset)
        kind = self.wide(F16 if self.element == types.int16 else I16)
        return self.widened(self.builder.load(self.pointer(address, kind, offset), align=2))

    def store_element(self, value: Any, address: Int) -> None:
        """Round a vector of float32 to the element type, to nearest even."""
        value = self.narrowed(value)
        self.builder.store(value, self.pointer(address, value.type), align=self.bytes)

    def load_pairs(self, address: Int) -> tuple[Any, Any]:
        """2 * lanes bfloat16, widened: those at even places, those at odd ones."""
        raw = self.builder.load(self.pointer(address, self.wide(I32)), align=2)
        even = self.builder.shl(raw, self.fixed(16, I32))
        odd = self.builder.and_(raw, self.fixed(0xFFFF0000, I32))
        return self.builder.bitcast(even, self.vector), self.builder.bitcast(odd, self.vector)

    def widened(self, value: Any) -> Any:
        """Float32 of a vector of the element type."""
        if self.element == types.float32:
            return value
        if self.element == types.int16:
            return self.builder.fpext(value, self.vector)
        shifted = self.builder.shl(self.builder.zext(value, self.wide(I32)), self.fixed(16, I32))
        return self.builder.bitcast(shifted, self.vector)

    def narrowed(self, value: Any) -> Any:
        """The element type of a vector of float32, to nearest even."""
        builder = self.builder
        if self.element == types.float32:
            return value
        if self.element == types.int16:
            return builder.fptrunc(value, self.wide(F16))
        bits = builder.bitcast(value, self.wide(I32))
        odd = builder.and_(builder.lshr(bits, self.fixed(16, I32)), self.fixed(1, I32))
        rounded = builder.lshr(builder.add(builder.add(bits, odd), self.fixed(0x7FFF, I32)), self.fixed(16, I32))
        nan = builder.fcmp_unordered("uno", value, value)  # rounding up could turn a NaN into a number
        return builder.trunc(builder.select(nan, self.fixed(0x7FC0, I32), rounded), self.wide(I16))

    def prefetch(self, address: Int) -> None:
        pointer = self.pointer(address, I8)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        self.builder.call(function, [pointer, *(ir.Constant(I32, number) for number in (0, 3, 1))])

    def copy(self, target: Int, source: Int, count: Int) -> None:
        """Copy `count` bytes; the two pieces do not overlap."""
        pointers = [self.pointer(address, I8) for address in (target, source)]
        kinds = [pointers[0].type, pointers[1].type, I64]
        kind = ir.FunctionType(ir.VoidType(), [*kinds, I1])
        function = self.builder.module.declare_intrinsic("llvm.memcpy", kinds, kind)
        self.builder.call(function, [*pointers, count.ir, ir.Constant(I1, 0)])

    # Vectors

    def wide(self, scalar: Any) -> Any:
        return scalar if self.lanes == 1 else ir.VectorType(scalar, self.lanes)

    def fixed(self, value: float, scalar: Any = F32) -> Any:
        """The constant in every lane."""
        return ir.Constant(self.wide(scalar), value if self.lanes == 1 else [value] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(empty, scalar, ir.Constant(I32, 0))
        return self.shuffle(first, empty, [0] * self.lanes)

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Pick lanes of a (from 0) and b (from a's count)."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, in one instruction where there is one."""
        suffix = "f32" if self.lanes == 1 else f"v{self.lanes}f32"
        return self.call(f"llvm.fmuladd.{suffix}", self.vector, (a, b, c))

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of both; b where one is not a number."""
        return self.builder.select(self.builder.fcmp_ordered("ogt", a, b), a, b)

    def total(self, value: Any) -> Any:
        """Sum over lanes, in any order."""
        name = f"llvm.vector.reduce.fadd.v{self.lanes}f32"
        return self.call(name, F32, (self.real(0.0), value), fastmath=("reassoc",))

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        result = self.fixed(coefficients[0])
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, self.fixed(coefficient))
        return result

    def exp2(self, x: Any) -> Any:
        """2 ** x for x <= 0, relative error below 3e-7; exactly 0 below -125; NaN stays NaN."""
        builder = self.builder
        magic = self.fixed(12582912.0)  # 1.5 * 2 ** 23: adding it rounds to a whole number, kept in the low bits
        small = builder.fcmp_ordered("olt", x, self.fixed(-125.0))
        clamped = builder.select(small, self.fixed(-125.0), x)
        shifted = builder.fadd(clamped, magic)
        rest = builder.fsub(clamped, builder.fsub(shifted, magic))
        exponent = builder.shl(builder.bitcast(shifted, self.wide(I32)), self.fixed(23, I32))
        mantissa = builder.bitcast(self.polynomial(rest, _EXP2), self.wide(I32))
        result = builder.bitcast(builder.add(mantissa, exponent), self.vector)
        return builder.select(small, self.fixed(0.0), result)

    def tanh(self, x: Any) -> Any:
        """Rational approximation, relative error of a few units in the last place; NaN stays NaN."""
        builder = self.builder
        x = builder.select(builder.fcmp_ordered("ogt", x, self.fixed(_TANH_BOUND)), self.fixed(_TANH_BOUND), x)
        x = builder.select(builder.fcmp_ordered("olt", x, self.fixed(-_TANH_BOUND)), self.fixed(-_TANH_BOUND), x)
        square = builder.fmul(x, x)
        odd = builder.fmul(x, self.polynomial(square, _TANH_ODD))
        return builder.fdiv(odd, self.polynomial(square, _TANH_EVEN))
