"""How fast blocks move between the pools, against one plain torch copy of the same bytes.

    python tests/benchmarks/swap_bandwidth.py [--blocks 64] [--device auto] [--repeats 15]

Blocks are of SmolLM2-135M (30 layers, 3 KV heads of 64, 16 tokens), bfloat16 and float32, and of a toy model whose
blocks are a hundred times smaller. They are scattered, so that each is a copy of its own. Medians over repeats, in GB/s
(1e9 bytes per second); `ratio` is swap over plain copy, and should be at least 0.7 for SmolLM2.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from vtop.engine.model.kv_cache import HostCache, KVCache

SHAPES = {
    "SmolLM2 bfloat16": (30, 3, 16, 64, torch.bfloat16),
    "SmolLM2 float32": (30, 3, 16, 64, torch.float32),
    "toy float32": (2, 2, 16, 16, torch.float32),
}
"""layers, KV heads, block size, head size, dtype"""


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call whose work is done when it returns or, on cuda, when the stream is."""
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def measure(name: str, blocks: int, device: torch.device, repeats: int) -> tuple[int, list[float]]:
    """(bytes per block, GB/s of: swap out, plain copy out, swap in, plain copy in)."""
    layers, heads, size, head_dim, dtype = SHAPES[name]
    cuda = device.type == "cuda"
    cache = KVCache(4 * blocks, layers, heads, size, head_dim, dtype, device)
    host = HostCache(4 * blocks, cache.tensor, pin=cuda)
    cache.tensor.normal_()
    host.tensor.zero_()  # the first touch of the pages is not what is measured
    shape = (blocks, *cache.tensor.shape[1:])
    on_device = torch.zeros(shape, dtype=dtype, device=device)
    on_host = torch.zeros(shape, dtype=dtype, pin_memory=cuda)
    times: list[list[float]] = [[], [], [], []]
    rng = random.Random(0)
    for _ in range(repeats + 2):
        pairs = list(zip(rng.sample(range(4 * blocks), blocks), rng.sample(range(4 * blocks), blocks), strict=True))
        back = [(to, source) for source, to in pairs]
        calls: list[Callable[[], object]] = [
            partial(host.swap_out, cache.tensor, pairs),
            lambda: on_host.copy_(on_device, non_blocking=True),
            partial(host.swap_in, cache.tensor, back),
            lambda: on_device.copy_(on_host, non_blocking=True),
        ]
        for found, call in zip(times, calls, strict=True):
            found.append(seconds(call, device))
    moved = blocks * cache.bytes_per_block
    return cache.bytes_per_block, [moved / statistics.median(found[2:]) / 1e9 for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    name = options.device
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    table = Table("blocks", "KiB/block", title=f"GB/s, {options.blocks} blocks, {device}")
    for column in ("out", "plain", "ratio", "in", "plain", "ratio"):
        table.add_column(column, justify="right")
    with torch.inference_mode():
        for shape in SHAPES:
            size, (out, plain_out, back, plain_in) = measure(shape, options.blocks, device, options.repeats)
            table.add_row(
                shape,
                f"{size / 1024:.0f}",
                f"{out:.2f}",
                f"{plain_out:.2f}",
                f"{out / plain_out:.2f}",
                f"{back:.2f}",
                f"{plain_in:.2f}",
                f"{back / plain_in:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
