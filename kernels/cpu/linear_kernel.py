"""The CPU linear kernel: x @ weight.T of one or several weights that lie as torch has them, shared out over threads.

A task is described by a block of int64 (`Field`, then `SegmentField` for each weight). Threads take units of it, a
range of outputs for a range of rows, until none is left. Weights are read once per ROW_BLOCK rows, at the rate that
memory gives; nothing is copied or packed beforehand.
"""

from __future__ import annotations

from enum import IntEnum

from numba import carray, int64, njit, types

from vtop.kernels.cpu.linear_vectors import LANES as LANES
from vtop.kernels.cpu.linear_vectors import (
    TILE_COLUMNS,
    copy_some,
    finish,
    finish_gated,
    take_ticket,
    tile,
    widen,
)
from vtop.kernels.cpu.runtime import c_function

ROW_BLOCK = 48
"""Rows computed per pass over the weights; with 1536 inputs they take 300 kB, which stays in a second-level cache."""
WIDEN_FROM = 7
"""Rows from which bfloat16 weights are widened once for all rows of a block instead of in each tile."""
MAX_SEGMENTS = 3


class Field(IntEnum):
    """Where what lies in a task's block. Addresses and sizes in bytes unless said otherwise."""

    NEXT_UNIT = 0
    NEXT_THREAD = 1
    X = 2
    X_STEP = 3  # between rows
    ROWS = 4  # count
    SIZE = 5  # elements of a row of x and of a weight
    HALF = 6  # 1: x, weights and output are bfloat16; 0: float32
    GATED = 7  # 1: the two segments become silu(first) * second in the first one's output
    SCRATCH = 8
    SCRATCH_STEP = 9  # between threads
    CHUNKS = 10  # per row block, over all segments
    UNITS = 11
    CHUNK_COLUMNS = 12  # outputs of a chunk
    SEGMENTS = 13  # count
    FIRST_SEGMENT = 14


class SegmentField(IntEnum):
    WEIGHT = 0
    BIAS = 1  # float32, or 0 for none
    COLUMNS = 2  # outputs, that is rows of the weight
    OUT = 3
    OUT_STEP = 4  # between rows
    FIRST_CHUNK = 5


BLOCK_LENGTH = Field.FIRST_SEGMENT + MAX_SEGMENTS * len(SegmentField)

_NEXT_UNIT, _NEXT_THREAD, _X, _X_STEP, _ROWS, _SIZE, _HALF, _GATED, _SCRATCH, _SCRATCH_STEP, _CHUNKS, _UNITS, \
    _CHUNK_COLUMNS, _SEGMENTS, _FIRST = (int(field) for field in Field)  # fmt: skip
_WEIGHT, _BIAS, _COLUMNS, _OUT, _OUT_STEP, _FIRST_CHUNK = (int(field) for field in SegmentField)
_SEGMENT_LENGTH = len(SegmentField)
_FLOATS, _HALVES = (0,), (0, 0)
_ONE, _TWO, _THREE = (0,), (0, 0), (0, 0, 0)


def scratch_bytes(size: int) -> int:
    """What a thread needs beside it to compute with rows of `size` elements."""
    return 4 * (ROW_BLOCK + TILE_COLUMNS) * size + 2 * ROW_BLOCK * TILE_COLUMNS * 4 + 256


@njit(nogil=True)
def _tiles(x, x_step, rows, w0, w1, w2, w3, ahead, size, out, half):  # type: ignore[no-untyped-def]
    """out [rows, 4] = x [rows, size] @ (w0 … w3).T; only the first tile prefetches."""
    row = 0
    while row < rows:
        left = rows - row
        start, target = x + row * x_step, out + row * 16
        if left >= 3:
            tile(start, x_step, w0, w1, w2, w3, ahead, size, target, _THREE, half)
            row += 3
        elif left == 2:
            tile(start, x_step, w0, w1, w2, w3, ahead, size, target, _TWO, half)
            row += 2
        else:
            tile(start, x_step, w0, w1, w2, w3, ahead, size, target, _ONE, half)
            row += 1


@njit(nogil=True)
def _columns(x, x_step, rows, weight, columns, column, size, half, wide, out):  # type: ignore[no-untyped-def]
    """out [rows, 4] float32: the sums of four outputs from `column` on; past the last one that one is repeated."""
    bytes_ = size * (2 if half else 4)
    last = columns - 1
    w0 = weight + column * bytes_
    w1 = weight + min(column + 1, last) * bytes_
    w2 = weight + min(column + 2, last) * bytes_
    w3 = weight + min(column + 3, last) * bytes_
    ahead = 4 * bytes_ if column + 7 < columns else 0
    if not half:
        _tiles(x, x_step, rows, w0, w1, w2, w3, ahead, size, out, _FLOATS)
    elif rows < WIDEN_FROM:
        _tiles(x, x_step, rows, w0, w1, w2, w3, ahead, size, out, _HALVES)
    else:
        step = 4 * size
        widen(w0, size, wide)
        widen(w1, size, wide + step)
        widen(w2, size, wide + 2 * step)
        widen(w3, size, wide + 3 * step)
        _tiles(x, x_step, rows, wide, wide + step, wide + 2 * step, wide + 3 * step, 0, size, out, _FLOATS)


@njit(nogil=True)
def _store(sums, row, other, bias, out, out_step, column, count, half, gated, spare):  # type: ignore[no-untyped-def]
    """Finish a row of four sums and write `count` of them."""
    item = 2 if half else 4
    target = out + row * out_step + column * item
    whole = count == TILE_COLUMNS
    place = target if whole else spare
    source = sums + row * 16
    if gated:
        if half:
            finish_gated(source, other + row * 16, place, _HALVES)
        else:
            finish_gated(source, other + row * 16, place, _FLOATS)
    else:
        start = 0 if bias == 0 else bias + column * 4
        if half:
            finish(source, start, place, _HALVES)
        else:
            finish(source, start, place, _FLOATS)
    if not whole:
        if half:
            copy_some(spare, count, target, _HALVES)
        else:
            copy_some(spare, count, target, _FLOATS)


@njit(nogil=True)
def run_units(task):  # type: ignore[no-untyped-def]
    """Take and compute units of a task (int64 [BLOCK_LENGTH] array) until there are none."""
    address = task.ctypes.data
    size, half, gated = task[_SIZE], task[_HALF] == 1, task[_GATED] == 1
    scratch = task[_SCRATCH] + take_ticket(address + 8 * _NEXT_THREAD) * task[_SCRATCH_STEP]
    wide = scratch + 4 * ROW_BLOCK * size
    sums = wide + 4 * TILE_COLUMNS * size
    others = sums + ROW_BLOCK * TILE_COLUMNS * 4
    spare = others + ROW_BLOCK * TILE_COLUMNS * 4
    chunks, units, chunk_columns = task[_CHUNKS], task[_UNITS], task[_CHUNK_COLUMNS]
    held = -1
    x, x_step, rows = int64(0), int64(0), int64(0)
    while True:
        unit = take_ticket(address + 8 * _NEXT_UNIT)
        if unit >= units:
            break
        block, chunk = unit // chunks, unit % chunks
        if block != held:
            held = block
            first = block * ROW_BLOCK
            rows = min(ROW_BLOCK, task[_ROWS] - first)
            x, x_step = task[_X] + first * task[_X_STEP], task[_X_STEP]
            if half:
                for row in range(rows):
                    widen(x + row * x_step, size, scratch + row * 4 * size)
                x, x_step = scratch, 4 * size
        index = _FIRST
        for _ in range(task[_SEGMENTS] - 1):
            if not gated and chunk >= task[index + _SEGMENT_LENGTH + _FIRST_CHUNK]:
                index += _SEGMENT_LENGTH
        weight, bias, columns = task[index + _WEIGHT], task[index + _BIAS], task[index + _COLUMNS]
        out_step = task[index + _OUT_STEP]
        out = task[index + _OUT] + held * ROW_BLOCK * out_step
        start = (chunk - task[index + _FIRST_CHUNK]) * chunk_columns
        for column in range(start, min(start + chunk_columns, columns), TILE_COLUMNS):
            _columns(x, x_step, rows, weight, columns, column, size, half, wide, sums)
            if gated:
                second = task[index + _SEGMENT_LENGTH + _WEIGHT]
                _columns(x, x_step, rows, second, columns, column, size, half, wide, others)
            count = min(TILE_COLUMNS, columns - column)
            for row in range(rows):
                _store(sums, row, others, bias, out, out_step, column, count, half, gated, spare)


def _work(task):  # type: ignore[no-untyped-def]
    run_units(carray(task, BLOCK_LENGTH))


WORK_ADDRESS = int(c_function(_work, types.CPointer(types.int64)).address)
"""void work(int64 *task): what each thread of a pool is to run."""
