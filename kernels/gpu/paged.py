"""Paged attention in Triton, for CUDA devices; in Triton's interpreter (TRITON_INTERPRET=1) also for CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import torch

from vtop.kernels.api import AttentionBatch, BackendUnavailable
from vtop.kernels.gpu import decode as triton_ops
from vtop.kernels.gpu import prefill as triton_prefill
from vtop.kernels.gpu import write as triton_write
from vtop.kernels.gpu.plan import (
    DETERMINISTIC_CHUNK,
    HOPPER,
    KEY,
    LARGEST_HEAD,
    Capability,
    ShapeTable,
    SplitRule,
    StaticPlan,
    TritonPlan,
    heads_per_program,
    plan_step,
)

PROGRAMS_PER_PROCESSOR = 4
PROCESSORS_ELSEWHERE = 132  # pretended where there is no CUDA device


class TritonPagedAttention:
    """float32, float16 and bfloat16 with float32 sums; any block size; head sizes up to 256.

    A step synchronises nothing and copies its plan to the device once (a step with prefill twice). Rows whose slot in
    the batch is negative are written nowhere. `deterministic`: contexts are cut every 512 tokens, whatever the batch,
    so that a sequence's decode is bit for bit the same alone and among others; slower for few long contexts.
    """

    name = "triton"
    note = ""

    def __init__(self, *, deterministic: bool = False, shapes: ShapeTable | None = None) -> None:
        self.deterministic = deterministic
        self.shapes = shapes or ShapeTable()

    def write_kv(self, layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> None:
        triton_write.write(_last_dense(layer), k, v, _plan(batch).slots)

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
        """Raises ValueError for head sizes above 256, KeyError for a window that a StaticPlan was not made for."""
        _last_dense(layer)
        head_dim, kv_heads = q.shape[2], layer.shape[2]
        if head_dim > LARGEST_HEAD:
            raise ValueError(f"head size {head_dim}; the kernels are made for up to {LARGEST_HEAD}")
        if q.stride(-1) != 1:
            q = q.contiguous()
        if sinks is not None and not sinks.is_contiguous():
            sinks = sinks.contiguous()
        group = q.shape[1] // kv_heads
        plan = _plan(batch)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        processors, capability = _device(q.device)
        if plan.decode is not None:
            shape = self.shapes.decode(head_dim, group, q.dtype, capability)
            chunk, splits = plan.decode.split(
                self._rule(q.device, kv_heads, group, shape.rows, shape.tile), sliding_window
            )
            triton_ops.decode(
                q, layer, out, plan.decode, shape, chunk=chunk, splits=splits, scale=scale, window=sliding_window,
                softcap=softcap, sinks=sinks,
            )  # fmt: skip
        if plan.prefill is not None:
            choose = partial(
                self.shapes.prefill, head_dim, q.dtype, windowed=sliding_window is not None,
                block_size=batch.block_size, capability=capability,
            )  # fmt: skip
            shape = choose()
            if plan.prefill.items(max(1, shape.rows // group)) * kv_heads < processors:
                shape = choose(small=True)
            triton_prefill.prefill(
                q, layer, out, plan.prefill, shape, scale=scale, window=sliding_window, softcap=softcap, sinks=sinks
            )
        return out

    def warm_up(self, head_dim: int, dtype: torch.dtype) -> None:
        """Launch one small kernel on the CUDA device. The others are compiled when they are first needed.

        Raises BackendUnavailable for layers that the kernels are not made for, and where none can be run.
        """
        if head_dim > LARGEST_HEAD:
            raise BackendUnavailable(self.name, f"head size {head_dim} is above {LARGEST_HEAD}; choose torch")
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise BackendUnavailable(self.name, f"{dtype} is none of float32, float16 and bfloat16; choose torch")
        if torch.cuda.is_available():
            self.try_out(head_dim, dtype, torch.device("cuda"))

    def try_out(self, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        """Write K and V of one token. Raises BackendUnavailable if that cannot be compiled and run on the device."""
        layer = torch.zeros(1, 2, 1, 16, head_dim, dtype=dtype, device=device)
        ones = torch.ones(1, 1, head_dim, dtype=dtype, device=device)
        try:
            self.write_kv(layer, ones, ones, AttentionBatch.build([1], [1], [[0]], 16, device))
            written = float(layer.float().sum())
        except Exception as error:  # no C compiler, a driver or a device too old
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise BackendUnavailable(self.name, f"a kernel cannot be run here ({reason}); choose torch") from error
        if written != 2 * head_dim:
            raise BackendUnavailable(self.name, "a kernel writes wrong values here; choose torch")

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, within a cache or between two; see `api.copy_blocks` for the order."""
        triton_write.copy(source, target, pairs)

    def static_plan(
        self,
        rows: int,
        max_context: int,
        *,
        block_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        windows: Sequence[int | None] = (None,),
        storage: torch.Tensor | None = None,
    ) -> StaticPlan:
        """A plan for steps of `rows` decodes that a CUDA graph may capture. See StaticPlan.

        `heads`, `head_dim`, `dtype` are of the queries, `windows` those of all layers (None: full attention).
        """
        shape = self.shapes.decode(head_dim, heads // kv_heads, dtype, _device(device)[1])
        rule = self._rule(device, kv_heads, heads // kv_heads, shape.rows, shape.tile)
        return StaticPlan(rows, max_context, block_size, rule, windows, device, storage)

    def _rule(self, device: torch.device, kv_heads: int, group: int, rows: int, tile: int) -> SplitRule:
        programs = kv_heads * -(-group // heads_per_program(group, rows))
        budget = PROGRAMS_PER_PROCESSOR * _device(device)[0]
        return SplitRule(programs, budget, tile, DETERMINISTIC_CHUNK if self.deterministic else None)


def _plan(batch: AttentionBatch) -> TritonPlan:
    plan: TritonPlan | None = batch.derived.get(KEY)
    if plan is None:
        plan = batch.derived[KEY] = plan_step(batch)
    return plan


def _last_dense(layer: torch.Tensor) -> torch.Tensor:
    if layer.stride(-1) != 1:
        raise ValueError("the numbers of one head must lie side by side in the cache")
    return layer


@cache
def _device(device: torch.device) -> tuple[int, Capability]:
    """(multiprocessors, compute capability)."""
    if device.type != "cuda":
        return PROCESSORS_ELSEWHERE, HOPPER
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, (properties.major, properties.minor)
