"""Linear layers on CPU faster than torch's at few rows, on the weights as they lie: nothing is packed or copied.

`LinearTask` computes several linear layers of one input in one go. `supports` says for which weights there is a
kernel on this machine; everywhere else torch's own `nn.functional.linear` is to be used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from vtop.kernels.cpu.runtime import parallel_entry

_ROTATE_FIELDS = ctypes.c_int64 * 10
TINY_WORK = 1 << 17
"""Multiply-adds up to which one thread is as fast as several."""


@cache
def kernel() -> Any | None:
    """The module with the compiled kernel, None where there is none: no numba, or a processor without fused FMA."""
    try:
        import llvmlite.binding as llvm

        features = llvm.get_host_cpu_features()
        if "sse2" in features and not (features.get("fma") and features.get("avx2")):
            return None
        from vtop.kernels.cpu import linear_kernel as linear_numba
        from vtop.kernels.cpu import linear_rows  # noqa: F401
    except Exception:  # whatever a compiler can run into; torch serves as well
        return None
    return linear_numba


def supports(weight: torch.Tensor) -> bool:
    """Whether there is a kernel for this weight [N, K]."""
    found = kernel()
    if found is None or weight.device.type != "cpu" or weight.dim() != 2 or not weight.is_contiguous():
        return False
    step = {torch.float32: found.LANES, torch.bfloat16: 2 * found.LANES}.get(weight.dtype)
    return step is not None and weight.numel() > 0 and weight.shape[1] % step == 0


class Scratch:
    """Memory that the tasks of one model share; they run one after the other."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int) -> int:
        """The address of at least `count` bytes, good until the next call."""
        if self._memory.numel() < count:
            self._memory = torch.empty(count, dtype=torch.uint8)
        return self._memory.data_ptr()


class LinearTask:
    """x @ weight.T + bias of up to three weights of one dtype and input size. One call at a time.

    weights: each [N_i, K], held and read where they are. biases: each [N_i] or None. With `gated` there are two
    weights of the same shape without biases, and the result is silu(first) * second alone. Raises ValueError for
    weights that `supports` refuses or that do not belong together.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        scratch: Scratch,
        gated: bool = False,
    ) -> None:
        module = kernel()
        first = weights[0]
        if module is None or not all(supports(weight) for weight in weights) or len(weights) > module.MAX_SEGMENTS:
            raise ValueError("there is no kernel for these weights")
        if any(weight.dtype != first.dtype or weight.shape[1] != first.shape[1] for weight in weights):
            raise ValueError("weights of different dtypes or input sizes")
        if gated and (len(weights) != 2 or weights[0].shape != weights[1].shape or any(b is not None for b in biases)):
            raise ValueError("a gate takes two equal weights without biases")
        self.weights = list(weights)
        self.dtype = first.dtype
        self.gated = gated
        self.columns = [weight.shape[0] for weight in weights]
        self._kernel = module
        self._scratch = scratch
        # read four at a time, so that the last read may go past the end
        self._biases = [None if bias is None else torch.cat((bias.detach().float(), torch.zeros(4))) for bias in biases]
        self._outs = self.columns[:1] if gated else self.columns
        self._item = first.element_size()
        self._size = first.shape[1]
        self._threads = self._used = self._scratch_size = 0
        self._rows = -1
        # begins with a line of the caches: threads count in it
        self._block = torch.zeros(module.BLOCK_LENGTH + 16, dtype=torch.int64)
        self._address = -(-self._block.data_ptr() // 64) * 64
        self._task = (ctypes.c_int64 * module.BLOCK_LENGTH).from_address(self._address)
        entry = parallel_entry()
        self._work = module.WORK_ADDRESS
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.WORK_ADDRESS)
        self._together = entry if entry is not None else lambda work, task, threads, flags: self._alone(task)
        field, segment = module.Field, module.SegmentField
        self._task[field.X_STEP] = self._size * self._item
        self._task[field.SIZE] = self._size
        self._task[field.HALF] = int(self.dtype == torch.bfloat16)
        self._task[field.GATED] = int(gated)
        self._task[field.SEGMENTS] = len(weights)
        self._places = [field.FIRST_SEGMENT + i * len(segment) for i in range(len(weights))]
        self._x_place, self._scratch_place = int(field.X), int(field.SCRATCH)
        self._out_places = [place + int(segment.OUT) for place in self._places[: len(self._outs)]]
        for place, weight, bias in zip(self._places, self.weights, self._biases, strict=True):
            self._task[place + segment.WEIGHT] = weight.data_ptr()
            self._task[place + segment.BIAS] = 0 if bias is None else bias.data_ptr()
            self._task[place + segment.COLUMNS] = weight.shape[0]

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """x [..., K] of the weights' dtype, on cpu -> one [..., N_i] for each weight; with `gated` a single one."""
        size = self._size
        if not x.is_contiguous():
            x = x.contiguous()
        rows = x.numel() // size
        lead = x.shape[:-1]
        outs = [torch.empty((*lead, columns), dtype=self.dtype) for columns in self._outs]
        if rows == 0:
            return outs
        threads = torch.get_num_threads()
        if rows != self._rows or threads != self._threads:
            self._share_out(rows, threads)
        task = self._task
        task[0] = task[1] = 0  # Field.NEXT_UNIT, Field.NEXT_THREAD
        task[self._x_place] = x.data_ptr()
        for place, out in zip(self._out_places, outs, strict=True):
            task[place] = out.data_ptr()
        task[self._scratch_place] = self._scratch.take(self._scratch_size)
        if self._used > 1:
            self._together(self._work, self._address, self._used, 0)
        else:
            self._alone(self._address)
        return outs

    def _share_out(self, rows: int, threads: int) -> None:
        """Cut the outputs into chunks: several for each thread, so that a slow one holds up little."""
        self._rows, self._threads = rows, threads
        task, field, segment = self._task, self._kernel.Field, self._kernel.SegmentField
        total = sum(self.columns[:1] if self.gated else self.columns)
        work = rows * self._size * sum(self.columns)
        self._used = used = 1 if work <= TINY_WORK else threads
        tile = self._kernel.TILE_COLUMNS
        width = total if used == 1 else max(tile, -(-total // (used * 8)))
        width = -(-width // tile) * tile
        chunks = 0
        for place, columns in zip(self._places, self.columns, strict=True):
            task[place + segment.OUT_STEP] = columns * self._item
            task[place + segment.FIRST_CHUNK] = 0 if self.gated else chunks
            chunks += -(-columns // width)
        if self.gated:
            chunks = -(-self.columns[0] // width)
        task[field.ROWS] = rows
        per_thread = self._kernel.scratch_bytes(self._size)
        task[field.SCRATCH_STEP] = per_thread
        self._scratch_size = per_thread * used
        task[field.CHUNKS] = chunks
        task[field.UNITS] = chunks * -(-rows // self._kernel.ROW_BLOCK)
        task[field.CHUNK_COLUMNS] = width


class RMSNorm:
    """x / sqrt(mean(x ** 2) + epsilon) * weight over the last axis, computed in float32.

    weight: [K], copied; K is one that `supports_rows` takes. x: [..., K] float32 or bfloat16 on cpu; it is rounded to
    its dtype before it meets the weight, as most models do.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._size = weight.shape[0]
        self._weight = torch.cat((weight.detach().float(), torch.tensor([epsilon])))
        self._address = self._weight.data_ptr()
        rows = _rows()
        self._call, self._fields = rows.norm_rows, ctypes.c_int64 * rows.NORM_FIELDS

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty_like(x)
        size, item = self._size, x.element_size()
        rows = x.numel() // size
        self._call(self._fields(x.data_ptr(), size * item, rows, size, self._address, out.data_ptr(), int(item == 2)))
        return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of halves: x * cos + (-x[D / 2:], x[:D / 2]) * sin.

    x: [1, H, T, D] float32 or bfloat16 on cpu, D with stride 1; cos, sin: [1, T, D] of the same dtype, contiguous.
    Returns [1, H, T, D], a view of memory [1, T, H, D]. D / 2 is one that `supports_rows` takes.
    """
    _, heads, tokens, size = x.shape
    out = torch.empty((1, tokens, heads, size), dtype=x.dtype)
    item = x.element_size()
    fields = _ROTATE_FIELDS(
        x.data_ptr(), x.stride(2) * item, x.stride(1) * item, tokens, heads, size, cos.data_ptr(), sin.data_ptr(),
        out.data_ptr(), int(item == 2),
    )  # fmt: skip
    _rows().rotate_rows(fields)
    return out.transpose(1, 2)


def supports_rows(size: int, dtype: torch.dtype) -> bool:
    """Whether `RMSNorm` and `rotate` take rows of this many elements."""
    found = kernel()
    return found is not None and dtype in (torch.float32, torch.bfloat16) and size > 0 and size % found.LANES == 0


@cache
def _rows() -> Any:
    from vtop.kernels.cpu import linear_rows

    return linear_rows
