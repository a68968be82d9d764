"""Paged attention on the CPU in vector code compiled by numba, on torch's OpenMP threads.

What it has no kernel for goes to the torch backend, call by call: head sizes that are no multiple of the vector width,
and queries of another dtype than the cache; `note` says so. If the compiled code cannot be made, or fails its first
test against the torch backend, everything goes there and `name` says so too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba.core import registry as numba_registry

from vtop.kernels.api import AttentionBatch, BackendUnavailable, allocate_cache
from vtop.kernels.cpu import entry, layout
from vtop.kernels.cpu.plan import PREFILL_ROWS, plan_units
from vtop.kernels.cpu.runtime import parallel_entry
from vtop.kernels.cpu.vectors import LOG2E
from vtop.kernels.plain.paged import TorchPagedAttention

ELEMENT_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
SHARED_SECONDS = 25e-6  # estimated work below which waking the other threads costs more than they give
BYTES_PER_SECOND = 12e9  # read by one thread, for that estimate
FLOPS_PER_SECOND = 50e9
TEST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class _Step:
    """A step as the kernel sees it: argument array, and what it points to."""

    __slots__ = ("arguments", "call", "entry", "floats", "held", "ints", "key_bytes", "threads")

    def __init__(self, size: int, call: Callable[[int], None], entry: int, threads: int) -> None:
        # memoryviews take plain numbers several times faster than arrays do
        self.held: list[Any] = [np.zeros(size, dtype=np.int64)]
        self.ints = memoryview(self.held[0])
        self.floats: Any = memoryview(self.held[0].view(np.float32))
        self.arguments = int(self.held[0].ctypes.data)
        self.call, self.entry, self.threads = call, entry, threads

    def address(self, array: Any) -> int:
        """The array's address; it lives as long as the step."""
        self.held.append(array)
        return int(array.ctypes.data)

    def run(self) -> None:
        pool = parallel_entry() if self.threads > 1 else None
        if pool is None:
            self.call(self.arguments)
        else:
            pool(self.entry, self.arguments, self.threads, 0)


class NumbaPagedAttention:
    """float32, bfloat16 and (where the CPU converts it) float16; every block size. Sums are float32.

    Calls of several threads may overlap, if each has its own batch. With `strict`, BackendUnavailable is raised instead
    of giving everything to torch when the compiled code does not work.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.name = "numba"
        self.note = ""
        self._strict = strict
        self._torch = TorchPagedAttention()
        self._features = _cpu_features()
        self._functions: dict[tuple[torch.dtype, int], Any] = {}
        self._write: Any = None
        self._scratch = threading.local()
        self._lock = threading.RLock()

    def warm_up(self, head_dim: int, dtype: torch.dtype) -> None:
        """Compile what layers of this shape need, or load it, and test it: seconds the first time on a machine.

        Without this the first step does it. Raises BackendUnavailable when strict.
        """
        if self._function(dtype, head_dim) is None and self.name != "torch":
            self.name = "torch"
            self.note = f"numba has no kernel for heads of {head_dim} in {_short(dtype)}"

    def write_kv(self, layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> None:
        if self._function(layer.dtype, layer.shape[4]) is None:
            self._torch.write_kv(layer, k, v, batch)
            return
        key = ("numba write", layer.shape, layer.stride(0), layer.dtype)
        step: _Step | None = batch.derived.get(key)
        if step is None:
            step = batch.derived[key] = self._plan_write(layer, batch)
        k, v = _rows(k, layer.dtype), _rows(v, layer.dtype)
        size = layer.element_size()
        ints = step.ints
        ints[entry.KEYS], ints[entry.VALUES], ints[entry.LAYER] = k.data_ptr(), v.data_ptr(), layer.data_ptr()
        ints[entry.KEY_TOKEN_STRIDE], ints[entry.KEY_HEAD_STRIDE] = k.stride(0) * size, k.stride(1) * size
        ints[entry.VALUE_TOKEN_STRIDE], ints[entry.VALUE_HEAD_STRIDE] = v.stride(0) * size, v.stride(1) * size
        ints[entry.NEXT_RUN] = 0
        step.run()

    def attend(
        self,
        q: torch.Tensor,
        layer: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        *,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if q.shape[0] != batch.num_tokens:
            raise ValueError(f"{q.shape[0]} queries for a batch of {batch.num_tokens} tokens")
        key = ("numba", layer.shape, layer.stride(0), q.shape[1], q.dtype, layer.dtype, sliding_window)
        step: _Step | None = batch.derived.get(key)
        if step is None:
            step = self._plan(q, layer, batch, sliding_window)
            if step is None:
                self._tell(q, layer)
                return self._torch.attend(
                    q, layer, batch, scale, sliding_window=sliding_window, softcap=softcap, sinks=sinks
                )
            batch.derived[key] = step
        q = _rows(q, q.dtype)
        out = torch.empty(q.shape, dtype=q.dtype)
        size = q.element_size()
        ints, floats = step.ints, step.floats
        ints[layout.QUERIES], ints[layout.CACHE], ints[layout.OUTPUT] = q.data_ptr(), layer.data_ptr(), out.data_ptr()
        ints[layout.QUERY_TOKEN_STRIDE], ints[layout.QUERY_HEAD_STRIDE] = q.stride(0) * size, q.stride(1) * size
        ints[layout.NEXT_UNIT] = ints[layout.NEXT_THREAD] = 0
        # Scores are kept in base 2: exp(s) = 2 ** (s * log2(e)).
        if softcap is None:
            floats[2 * layout.QUERY_FACTOR], floats[2 * layout.CAP] = scale * LOG2E, 0.0
        else:
            floats[2 * layout.QUERY_FACTOR], floats[2 * layout.CAP] = scale / softcap, softcap * LOG2E
        if sinks is None:
            ints[layout.SINKS] = 0
        else:
            sinks = sinks.to(torch.float32).contiguous()
            ints[layout.SINKS] = sinks.data_ptr()
        step.run()
        return out

    def _tell(self, q: torch.Tensor, layer: torch.Tensor) -> None:
        """Note what such calls lack, unless there is a note."""
        if not self.note:
            lacks = f"heads of {q.shape[2]} in {_short(q.dtype)}"
            if q.dtype is not layer.dtype:
                lacks += f" over a cache in {_short(layer.dtype)}"
            self.note = f"torch computes what numba has no kernel for: {lacks}"

    def _function(self, dtype: torch.dtype, head_dim: int) -> Any:
        """The compiled kernel for such layers, None where there is none."""
        if self.note and self.name == "torch":
            return None
        lanes = _lanes(head_dim, self._features)
        key = (dtype, lanes)
        if key not in self._functions:
            with self._lock:
                if key not in self._functions:
                    self._functions[key] = self._made(dtype, head_dim, lanes)
        return self._functions[key]

    def _made(self, dtype: torch.dtype, head_dim: int, lanes: int) -> Any:
        element = ELEMENT_NAMES.get(dtype)
        if lanes == 0 or element is None or (element == "float16" and not _converts_half(self._features)):
            return None
        try:
            function = self._functions[dtype, lanes] = entry.attention_function(element, lanes)
            self._write = entry.write_function()
            error = self._test(dtype, head_dim)
            if not error <= TEST_ERROR[dtype]:
                raise ArithmeticError(f"its result is {error:.1e} off")
        except Exception as error:  # whatever a compiler may raise: there is another way to compute
            reason = f"numba cannot be used here: {type(error).__name__}: {error}".splitlines()[0]
            if self._strict:
                self._functions.pop((dtype, lanes), None)
                raise BackendUnavailable("numba", f"{reason}; choose torch") from error
            self.name, self.note = "torch", reason
            return None
        return function

    def _test(self, dtype: torch.dtype, head_dim: int) -> float:
        """Largest difference from the torch backend on a small step with decodes, a split one, and a prefill."""
        generator = torch.Generator().manual_seed(0)
        lengths, news, size = [5, layout.CHUNK + 3, 11], [1, 1, 7], 8
        tables = [[0], list(range(1, 34)), [40, 35]]
        batch = AttentionBatch.build(news, lengths, tables, size)
        cache = allocate_cache(41, 1, 2, size, head_dim, dtype, "cpu")
        cache.copy_(torch.randn(cache.shape, generator=generator))
        k, v = (torch.randn(9, 2, head_dim, generator=generator).to(dtype) for _ in range(2))
        q = torch.randn(9, 4, head_dim, generator=generator).to(dtype)
        self.write_kv(cache[:, 0], k, v, batch)
        got = self.attend(q, cache[:, 0], batch, head_dim**-0.5)
        self._torch.write_kv(cache[:, 0], k, v, batch)
        wanted = self._torch.attend(q, cache[:, 0], batch, head_dim**-0.5)
        return float((got.float() - wanted.float()).abs().max())

    def _plan_write(self, layer: torch.Tensor, batch: AttentionBatch) -> _Step:
        _, _, kv_heads, block_size, head_dim = layer.shape
        row = head_dim * layer.element_size()
        seconds = 2 * batch.num_tokens * kv_heads * row / BYTES_PER_SECOND
        threads = torch.get_num_threads() if seconds > SHARED_SECONDS else 1
        step = _Step(entry.WRITE_ARGUMENTS, self._write.ctypes, self._write.address, threads)
        ints = step.ints
        ints[entry.LAYER_BLOCK_STRIDE] = layer.stride(0) * layer.element_size()
        ints[entry.SLOTS] = step.address(np.ascontiguousarray(batch.slots, dtype=np.int64))
        ints[entry.SLOT_COUNT], ints[entry.SLOT_BLOCK_SIZE] = batch.num_tokens, block_size
        ints[entry.HEADS], ints[entry.ROW_BYTES] = kv_heads, row
        return step

    def _plan(self, q: torch.Tensor, layer: torch.Tensor, batch: AttentionBatch, window: int | None) -> _Step | None:
        _, _, kv_heads, block_size, head_dim = layer.shape
        function = self._function(layer.dtype, head_dim) if q.dtype is layer.dtype else None
        if function is None:
            return None
        heads = q.shape[1]
        group = heads // kv_heads
        threads = torch.get_num_threads() if parallel_entry() is not None else 1
        units = plan_units(batch, kv_heads, group, window, threads)
        seconds = units.keys * 2 * kv_heads * head_dim * layer.element_size() / BYTES_PER_SECOND
        seconds += units.products * head_dim * 4 / FLOPS_PER_SECOND
        if seconds < SHARED_SECONDS or len(units.table) < 2:
            threads = 1
        step = _Step(layout.ARGUMENTS, function.ctypes, function.address, threads)
        ints = step.ints
        ints[layout.BLOCK_STRIDE] = layer.stride(0) * layer.element_size()
        tables = np.ascontiguousarray(batch.tables, dtype=np.int64)
        ints[layout.TABLES], ints[layout.TABLE_STRIDE] = step.address(tables), tables.strides[0]
        ints[layout.UNITS], ints[layout.UNIT_COUNT] = step.address(units.table), len(units.table)
        ints[layout.GROUP], ints[layout.KV_HEADS] = group, kv_heads
        ints[layout.HEAD_DIM], ints[layout.BLOCK_SIZE] = head_dim, block_size
        ints[layout.WINDOW] = window or 0
        rows = heads
        if units.products:
            most = max(PREFILL_ROWS, group)
            rows = max(rows, -(-most // layout.ROW_BLOCK) * layout.ROW_BLOCK)
        each = -(-layout.scratch_bytes(rows, head_dim) // 64) * 64 + 64
        ints[layout.SCRATCH_STRIDE], ints[layout.SCRATCH_ROWS] = each, rows
        ints[layout.SCRATCH] = step.address(self._buffer("work", each * threads))
        if units.parts:
            ints[layout.PARTS] = step.address(self._buffer("parts", units.parts * heads * head_dim * 4))
            ints[layout.PART_STATS] = step.address(self._buffer("stats", units.parts * heads * 8))
            ints[layout.FINISHED] = step.address(np.zeros(units.counters, dtype=np.int64))
        return step

    def _buffer(self, name: str, size: int) -> Any:
        """Scratch of at least `size` bytes that this thread's calls share, one after the other."""
        found = getattr(self._scratch, name, None)
        if found is None or found.nbytes < size:
            found = np.empty(size // 8 + 1, dtype=np.int64)
            setattr(self._scratch, name, found)
        return found


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rows(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x in `dtype` with contiguous rows."""
    if x.dtype is not dtype:
        x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def _cpu_features() -> str:
    """LLVM's list of what the code is compiled for, '+avx2,-avx512f,…'."""
    return str(numba_registry.cpu_target.target_context.codegen().magic_tuple()[2])


def _lanes(head_dim: int, features: str) -> int:
    """Floats per vector for rows of head_dim numbers; 0 when no vector divides them."""
    if "+avx512f" in features.split(",") and head_dim % 16 == 0:
        return 16
    return 8 if head_dim % 8 == 0 else 0


def _converts_half(features: str) -> bool:
    """Whether float16 is converted by instructions; otherwise LLVM would call functions that may be missing."""
    return not {"+f16c", "+avx512f", "+fullfp16"}.isdisjoint(features.split(","))
