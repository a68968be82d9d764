"""Runs cases of the Triton kernels in Triton's interpreter, in a process of its own, against float64.

TRITON_INTERPRET counts when triton is imported, so it cannot be had for some tests of a process only. (On a GPU,
tests/gpu_check.py imports this and runs cases of its own.) Standard input:
a JSON list of cases (keyword arguments of `Case`). Standard output: one line per case, `name<TAB>ok` or what is wrong.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from vtop.engine.model.kv_cache import KVCache
from vtop.kernels.api import AttentionBatch, BackendUnavailable, allocate_cache
from vtop.kernels.gpu import write as triton_write
from vtop.kernels.gpu.paged import TritonPagedAttention
from vtop.kernels.gpu.plan import KernelShape, ShapeTable, StaticPlan
from vtop.kernels.registry import block_copy

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}
SPARE_BLOCKS = 3
DEVICE = torch.device(os.environ.get("VTOP_TEST_DEVICE", "cpu"))


@dataclass
class Case:
    """`sequences` as (context before the step, new tokens); `tile`, `rows`: of the kernels, tile 0: what ships."""

    name: str
    kind: str = "attend"
    sequences: list[tuple[int, int]] = field(default_factory=list)
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dtype: str = "fp32"
    cache_dtype: str | None = None
    tile: int = 16
    rows: int = 16
    deterministic: bool = False
    seed: int = 0


def shapes_of(case: Case) -> ShapeTable:
    return SmallShapes(case) if case.tile else ShapeTable()


class SmallShapes(ShapeTable):
    """Tiles small enough that short contexts have several."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def decode(self, head_dim: int, group: int, dtype: torch.dtype, capability: Any = None) -> KernelShape:
        shape = super().decode(head_dim, group, dtype)
        return KernelShape(shape.rows, self.case.tile, 4, 2)

    def prefill(self, head_dim: int, dtype: torch.dtype, **_: Any) -> KernelShape:
        return KernelShape(self.case.rows, self.case.tile, 4, 2)


@dataclass
class Scene:
    """A cache in which every slot that holds no token is NaN, and a step over it."""

    cache: torch.Tensor
    layer: torch.Tensor
    tables: list[list[int]]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None
    batch: AttentionBatch


def scene(case: Case) -> Scene:
    """Tables share, repeat and shuffle blocks wherever two tokens need not differ: in whole blocks of history."""
    rng = random.Random(case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    size = case.block_size

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    needs = [-(-(before + new) // size) for before, new in case.sequences]
    ids = list(range(sum(needs) + SPARE_BLOCKS))
    rng.shuffle(ids)
    blocks = len(ids)
    tables: list[list[int]] = []
    whole: list[int] = []
    for need, (before, _) in zip(needs, case.sequences, strict=True):
        table = [ids.pop() for _ in range(need)]
        for i in range(before // size):
            if whole and rng.random() < 0.3:
                table[i] = rng.choice(whole)
        whole += table[: before // size]
        tables.append(table)
    cache_dtype = DTYPES[case.cache_dtype or case.dtype]
    cache = allocate_cache(blocks, 2, case.kv_heads, size, case.head_dim, cache_dtype, "cpu").fill_(math.nan)
    layer = cache[:, 1]
    for table, (before, _) in zip(tables, case.sequences, strict=True):
        for position in range(before):
            layer[table[position // size], :, :, position % size] = draw(2, case.kv_heads, case.head_dim)
    new = [count for _, count in case.sequences]
    contexts = [before + count for before, count in case.sequences]
    batch = AttentionBatch.build(new, contexts, tables, size, DEVICE)
    dtype = DTYPES[case.dtype]
    q = draw(case.heads, sum(new), case.head_dim).to(dtype).transpose(0, 1)  # strided, as models pass it
    k, v = (draw(case.kv_heads, sum(new), case.head_dim).to(dtype).transpose(0, 1) for _ in range(2))
    sinks = draw(case.heads).to(dtype) if case.sinks else None
    cache = cache.to(DEVICE)
    sinks = None if sinks is None else sinks.to(DEVICE)
    return Scene(cache, cache[:, 1], tables, q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), sinks, batch)


def expected(case: Case, s: Scene) -> torch.Tensor:
    """[T, heads, head_dim] in float64, over what lies in the layer now."""
    out, first = [], 0
    for table, (before, new) in zip(s.tables, case.sequences, strict=True):
        end = before + new
        kv = torch.cat([s.layer[b].double() for b in table], dim=2)[:, :, :end]
        kv = kv.repeat_interleave(case.heads // case.kv_heads, dim=1)
        scores = torch.einsum("qhd,hnd->hqn", s.q[first : first + new].double(), kv[0]) * case.head_dim**-0.5
        if case.softcap is not None:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        position = torch.arange(before, end, device=scores.device)[:, None]
        key = torch.arange(end, device=scores.device)[None, :]
        seen = (key <= position) & (key > position - (case.window or end + 1))
        scores = scores.masked_fill(~seen, -math.inf)
        if s.sinks is not None:
            scores = torch.cat((scores, s.sinks.double()[:, None, None].expand(-1, new, 1)), dim=2)
        weights = scores.softmax(2)[:, :, :end]
        out.append(torch.einsum("hqn,hnd->qhd", weights, kv[1]))
        first += new
    return torch.cat(out)


def attend(case: Case, s: Scene, batch: AttentionBatch, rows: slice = slice(None)) -> torch.Tensor:
    backend = TritonPagedAttention(deterministic=case.deterministic, shapes=shapes_of(case))
    return backend.attend(
        s.q[rows], s.layer, batch, case.head_dim**-0.5, sliding_window=case.window, softcap=case.softcap, sinks=s.sinks
    )


def written(s: Scene) -> torch.Tensor:
    """What the cache must be after the step's K and V are stored; a negative slot is stored nowhere."""
    cache = s.cache.clone()
    for token, slot in enumerate(s.batch.slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, s.batch.block_size)
            cache[block, 1, 0, :, offset] = s.k[token].to(cache.dtype)
            cache[block, 1, 1, :, offset] = s.v[token].to(cache.dtype)
    return cache


def same(a: torch.Tensor, b: torch.Tensor, rounding: float = 0.0) -> bool:
    near = a == b
    if rounding:
        near |= (a.double() - b.double()).abs() <= rounding * b.double().abs()
    return bool((near | (a.isnan() & b.isnan())).all())


def compare(case: Case, got: torch.Tensor, wanted: torch.Tensor) -> str:
    if got.dtype is not DTYPES[case.dtype]:
        return f"dtype {got.dtype}"
    worst = float((got.double() - wanted).abs().max())
    return "ok" if worst <= TOLERANCE[case.dtype] else f"off by {worst:.3g}"


def run_attend(case: Case) -> str:
    s = scene(case)
    wanted_cache = written(s)
    TritonPagedAttention().write_kv(s.layer, s.k, s.v, s.batch)
    # the interpreter cuts float32 off to bfloat16 where a device rounds
    if not same(s.cache, wanted_cache, 0.0 if case.cache_dtype is None else 2**-7):
        return "K and V were stored elsewhere"
    before = s.cache.clone()
    result = compare(case, attend(case, s, s.batch), expected(case, s))
    return result if same(s.cache, before) else "attending changed the cache"


def run_static(case: Case) -> str:
    """One plan, refilled twice: the launches' arguments stay, as in a CUDA graph. The last row is padding."""
    s = scene(case)
    rows, longest = len(case.sequences) + 1, 40 + max(before + new for before, new in case.sequences)
    backend = TritonPagedAttention(deterministic=case.deterministic, shapes=shapes_of(case))
    plan: StaticPlan = backend.static_plan(
        rows, longest, block_size=case.block_size, heads=case.heads, kv_heads=case.kv_heads, head_dim=case.head_dim,
        dtype=DTYPES[case.dtype], device=DEVICE, windows=[case.window, 3],
    )  # fmt: skip
    q = torch.cat((s.q, torch.full_like(s.q[:1], math.nan)))
    k, v = (torch.cat((x, torch.full_like(x[:1], 7.0))) for x in (s.k, s.v))
    addresses = (plan.plan.slots.data_ptr(), plan.plan.decode.tables.data_ptr())
    captured = AttentionBatch.build([1] * rows, [1] * rows, [[0]] * rows, case.block_size, DEVICE)
    plan.bind(captured)
    for keep in (slice(0, 2), slice(None)):  # a smaller and narrower batch first
        kept = range(len(case.sequences))[keep]
        fill = rows - len(kept)
        contexts = [sum(case.sequences[i]) for i in kept] + [1] * fill
        batch = AttentionBatch.build(
            [1] * rows, contexts, [s.tables[i] for i in kept] + [[0]] * fill, case.block_size, DEVICE
        )  # fmt: skip
        batch.slots[len(kept) :] = -1
        batch.context_lens[len(kept) :] = 0
        plan.update(batch)
        s.batch = batch
        s.k, s.v = k, v
        wanted_cache = written(s)
        backend.write_kv(s.layer, k, v, captured)
        if not same(s.cache, wanted_cache):
            return "a padded row was stored, or a row elsewhere"
        out = backend.attend(
            q, s.layer, captured, case.head_dim**-0.5, sliding_window=case.window, softcap=case.softcap, sinks=s.sinks
        )
    if addresses != (plan.plan.slots.data_ptr(), plan.plan.decode.tables.data_ptr()):
        return "the plan's tensors moved"
    if not case.sinks and bool((out[-1] != 0).any()):
        return "a padded row gave numbers"
    return compare(case, out[:-1], expected(case, s))


def run_alone(case: Case) -> str:
    """Deterministic: a sequence gives the same bits in a batch and alone."""
    s = scene(case)
    TritonPagedAttention().write_kv(s.layer, s.k, s.v, s.batch)
    together = attend(case, s, s.batch)
    for i, (before, new) in enumerate(case.sequences):
        alone = AttentionBatch.build([new], [before + new], [s.tables[i]], case.block_size, DEVICE)
        if not torch.equal(attend(case, s, alone, slice(i, i + 1)), together[i : i + 1]):
            return f"sequence {i} differs alone"
    return compare(case, together, expected(case, s))


def run_copy(case: Case) -> str:
    backend = TritonPagedAttention()
    for pairs in ([(0, 5), (3, 7), (0, 2)], [(0, 1), (1, 2), (5, 0)], [(2, 3), (3, 2)], []):
        cache = torch.randn(8, 3, 2, case.kv_heads, case.block_size, case.head_dim).to(DEVICE, DTYPES[case.dtype])
        cache[4] = math.nan
        host = torch.randn(9, *cache.shape[1:]).to(cache)
        wanted, wanted_host = cache.clone(), host.clone()
        for a, b in pairs:
            wanted[b], wanted_host[b] = cache[a], cache[a]
        pool = KVCache(8, 3, case.kv_heads, case.block_size, case.head_dim, cache.dtype, DEVICE, block_copy(backend))
        pool.tensor.copy_(cache)
        backend.copy_blocks(cache, host, pairs)
        backend.copy_blocks(cache, cache, pairs)
        pool.copy(pairs)
        if not (same(cache, wanted) and same(host, wanted_host) and same(pool.tensor, wanted)):
            return f"wrong after {pairs}"
    try:
        backend.copy_blocks(cache, cache, [(0, 8)])
    except IndexError:
        return "ok"
    return "a block that is not there was copied to"


def run_trial(case: Case) -> str:
    backend = TritonPagedAttention()
    backend.try_out(case.head_dim, DTYPES[case.dtype], torch.device(DEVICE))
    failures: list[tuple[Any, str]] = [
        (lambda *_: None, "wrong values"),
        (mock.Mock(side_effect=RuntimeError("Failed to find C compiler.\nPlease specify one")), "find C compiler.);"),
    ]
    for write, said in failures:
        with mock.patch.object(triton_write, "write", write):
            try:
                backend.try_out(case.head_dim, DTYPES[case.dtype], torch.device(DEVICE))
            except BackendUnavailable as error:
                if said not in error.remedy or "\n" in error.remedy:
                    return error.remedy
            else:
                return f"no error, but {said}"
    return "ok"


RUN = {"attend": run_attend, "static": run_static, "alone": run_alone, "copy": run_copy, "trial": run_trial}


def outcome(case: Case) -> str:
    """ "ok", or what is wrong."""
    try:
        return RUN[case.kind](case)
    except Exception:
        return traceback.format_exc().replace("\n", " | ")


def main() -> None:
    torch.set_num_threads(1)
    for values in json.load(sys.stdin):
        case = Case(**values)
        started = time.perf_counter()
        result = outcome(case)
        print(f"{case.name}\t{result}\t{time.perf_counter() - started:.2f}", flush=True)


if __name__ == "__main__":
    main()
