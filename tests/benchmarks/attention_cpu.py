"""How fast the numba backend attends, against gather + scaled_dot_product_attention over the same paged cache.

    python tests/benchmarks/attention_cpu.py [--repeats 20] [--batch 1 16 64] [--prefill] [--start-up]

Decode steps of SmolLM2 (9 query heads, 3 KV heads) and Qwen2.5-0.5B (14, 2), head size 64, blocks of 16. The block
tables of successive calls walk through a pool of at least 96 MB, so that K and V come from memory. `gqa` is SDPA with
enable_gqa, `fold` with the group folded into the query length, `torch` the torch backend. Times are minima over
repeats, in microseconds; `ratio` is the best of the three over numba; GB/s (1e9 bytes) count K and V read once, and
`copy` is what a plain torch copy of 64 MB moves (read + write) at the time. `--prefill` adds 512 new tokens over a
context, in GFLOP/s. `--start-up` times a first compilation and a cached start in new processes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from vtop.kernels.api import AttentionBackend, AttentionBatch
from vtop.kernels.registry import get_backend, warm_up

MODELS = {"SmolLM2": (9, 3), "Qwen2.5-0.5B": (14, 2)}
HEAD_DIM, BLOCK = 64, 16
POOL_BYTES = 96e6
MOST_BATCHES = 256
SCALE = HEAD_DIM**-0.5
DTYPES = (torch.float32, torch.bfloat16)


class Paged:
    """A cache of one layer, and batches (with their gather indices) whose tables together cover it."""

    def __init__(self, heads: int, kv_heads: int, news: int, count: int, context: int, dtype: torch.dtype) -> None:
        needed = -(-context // BLOCK)
        self.bytes = count * context * 2 * kv_heads * HEAD_DIM * dtype.itemsize
        self.context, self.count = context, count
        sets = max(1, min(MOST_BATCHES, round(POOL_BYTES / self.bytes + 0.5)))
        self.layer = torch.zeros(sets * count * needed, 1, 2, kv_heads, BLOCK, HEAD_DIM, dtype=dtype)[:, 0]
        self.layer.normal_()
        self.q = torch.randn(count * news, heads, HEAD_DIM).to(dtype)
        ids = torch.randperm(sets * count * needed).view(sets, count, needed)
        contexts, queries = [context] * count, [news] * count
        self.batches = [AttentionBatch.build(queries, contexts, tables, BLOCK) for tables in ids.tolist()]
        self.indices = [tables.view(-1) for tables in ids]

    def gathered(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, each [count, kv_heads, context, head_dim]."""
        blocks = self.layer.index_select(0, index)
        kv_heads = blocks.shape[2]
        kv = blocks.view(self.count, -1, 2, kv_heads, BLOCK, HEAD_DIM).permute(2, 0, 3, 1, 4, 5)
        kv = kv.reshape(2, self.count, kv_heads, -1, HEAD_DIM)[:, :, :, : self.context]
        return kv[0], kv[1]

    def gqa(self, index: torch.Tensor) -> torch.Tensor:
        k, v = self.gathered(index)
        q = self.q.unsqueeze(2)
        return F.scaled_dot_product_attention(q, k, v, scale=SCALE, enable_gqa=True).squeeze(2)

    def fold(self, index: torch.Tensor) -> torch.Tensor:
        k, v = self.gathered(index)
        q = self.q.view(self.count, k.shape[1], -1, HEAD_DIM)
        return F.scaled_dot_product_attention(q, k, v, scale=SCALE).reshape(self.q.shape)

    def attend(self, backend: AttentionBackend) -> Callable[[AttentionBatch], torch.Tensor]:
        return lambda batch: backend.attend(self.q, self.layer, batch, SCALE)


def fastest(call: Callable[..., object], arguments: list[object], repeats: int) -> float:
    """Microseconds of the fastest call; each argument is used before any is used again, and once before timing."""
    for argument in arguments:
        call(argument)
    found = float("inf")
    turns: Iterator[object] = cycle(arguments)
    for _ in range(max(repeats, min(len(arguments), 4 * repeats))):
        argument = next(turns)
        began = time.perf_counter()
        call(argument)
        found = min(found, time.perf_counter() - began)
    return found * 1e6


def copy_bandwidth(repeats: int) -> float:
    """GB/s read and written by a plain copy."""
    source = torch.zeros(16 << 20)
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest(lambda _: target.copy_(source), [None], repeats) / 1e3


def decodes(numba: AttentionBackend, plain: AttentionBackend, counts: list[int], repeats: int) -> Table:
    table = Table("model", "dtype", "batch", "context", title=f"decode, us, {torch.get_num_threads()} threads")
    for column in ("numba", "gqa", "fold", "torch", "ratio", "GB/s", "copy"):
        table.add_column(column, justify="right")
    for name, (heads, kv_heads) in MODELS.items():
        for dtype in DTYPES:
            for count in counts:
                for context in (128, 512, 2048):
                    paged = Paged(heads, kv_heads, 1, count, context, dtype)
                    batches: list[object] = list(paged.batches)
                    indices: list[object] = list(paged.indices)
                    first = paged.attend(numba)(paged.batches[0]).float()
                    assert (first - paged.fold(paged.indices[0]).float()).abs().max() < 2e-2
                    mine = fastest(paged.attend(numba), batches, repeats)
                    others = [
                        fastest(paged.gqa, indices, repeats),
                        fastest(paged.fold, indices, repeats),
                        fastest(paged.attend(plain), batches, repeats),
                    ]
                    figures = [f"{mine:.0f}", *(f"{other:.0f}" for other in others), f"{min(others) / mine:.1f}"]
                    figures += [f"{paged.bytes / mine / 1e3:.1f}", f"{copy_bandwidth(3):.1f}"]
                    table.add_row(name, str(dtype).removeprefix("torch."), str(count), str(context), *figures)
    return table


def prefills(numba: AttentionBackend, plain: AttentionBackend, repeats: int) -> Table:
    table = Table("model", "dtype", "new", "context", title="prefill, GFLOP/s of visible scores and sums")
    for column in ("numba", "torch", "ratio"):
        table.add_column(column, justify="right")
    new = 512
    for name, (heads, kv_heads) in MODELS.items():
        for dtype in DTYPES:
            for context in (512, 2048):
                paged = Paged(heads, kv_heads, new, 1, context, dtype)
                work = 4 * HEAD_DIM * heads * sum(range(context - new + 1, context + 1))
                times = [fastest(paged.attend(one), list(paged.batches[:4]), repeats) for one in (numba, plain)]
                figures = [f"{work / one / 1e3:.0f}" for one in times] + [f"{times[1] / times[0]:.1f}"]
                table.add_row(name, str(dtype).removeprefix("torch."), str(new), str(context), *figures)
    return table


START = """
import time, torch
from vtop.kernels.registry import get_backend
began = time.perf_counter()
backend = get_backend("numba")
imported = time.perf_counter()
backend.warm_up(64, torch.{dtype})
print(imported - began, time.perf_counter() - imported)
"""


def start_up() -> Table:
    table = Table("dtype", "start", "import, s", "compile or load, and test, s", title="start-up in a new process")
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            for start in ("first", "cached"):
                code = START.format(dtype=str(dtype).removeprefix("torch."))
                environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
                output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
                seconds = [f"{float(part):.2f}" for part in output.stdout.split()]
                table.add_row(str(dtype).removeprefix("torch."), start, *seconds)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--start-up", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    numba, plain = get_backend("numba"), get_backend("torch")
    for dtype in DTYPES:
        warm_up(numba, HEAD_DIM, dtype)
    console = Console(width=110)
    with torch.inference_mode():
        console.print(decodes(numba, plain, options.batch, options.repeats))
        if options.prefill:
            console.print(prefills(numba, plain, options.repeats))
    if options.start_up:
        console.print(start_up())


if __name__ == "__main__":
    main()
