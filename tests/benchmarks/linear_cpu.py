"""The CPU linear kernel against the other ways that torch has to compute x @ weight.T on a CPU.

    python tests/benchmarks/linear_cpu.py [--rows 1 16 64 256] [--dtypes float32 bfloat16]

The weights of a SmolLM2 layer and of its head, each time another one of at least 100 MB of them, so that they come from
memory. `linear` is `nn.functional.linear`; `packed` weights reordered for oneDNN beforehand; `int8` torch's
`_weight_int8pack_mm`, int8 weights with a scale per output. Times are the second best of 5 passes over the weights, in
microseconds; the rest are ratios, how many times as long as ours each takes (`-`: torch cannot here).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from vtop.kernels.cpu.linear import LinearTask, Scratch, supports

SHAPES = {"q, k, v": (960, 576), "o": (576, 576), "gate, up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
POOL_BYTES = 100e6
PASSES = 5


def seconds(compute: Callable[[int], object] | None, count: int) -> float | None:
    """Time of one call, over calls with each of `count` weights; None where torch refuses."""
    if compute is None:
        return None
    try:
        compute(0)
    except (RuntimeError, AttributeError):
        return None
    times = []
    for _ in range(PASSES):
        began = time.perf_counter()
        for index in range(count):
            compute(index)
        times.append((time.perf_counter() - began) / count)
    return sorted(times)[1]


def packed(weights: list[torch.Tensor], x: torch.Tensor) -> Callable[[int], torch.Tensor] | None:
    """oneDNN's own order of the weights, made once for this number of rows; None where it has none."""
    try:
        ready = [torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0]) for weight in weights]
    except (RuntimeError, AttributeError):
        return None
    return lambda index: torch.ops.mkldnn._linear_pointwise(x, ready[index], None, "none", [], "")


def int8(weights: list[torch.Tensor], x: torch.Tensor) -> Callable[[int], torch.Tensor]:
    scales = [weight.abs().amax(1) / 127 for weight in weights]
    ready = [(w / s[:, None]).round().to(torch.int8) for w, s in zip(weights, scales, strict=True)]
    return lambda index: torch._weight_int8pack_mm(x, ready[index], scales[index])


def row(name: str, weights: list[torch.Tensor], x: torch.Tensor) -> list[str]:
    scratch = Scratch()
    tasks = [LinearTask([weight], [None], scratch) for weight in weights]
    own = seconds(lambda index: tasks[index](x)[0], len(weights))
    assert own is not None
    work, read = 2 * x.shape[0] * weights[0].numel(), weights[0].nbytes
    cells = [name, str(x.shape[0]), f"{own * 1e6:.0f}", f"{work / own / 1e9:.0f}", f"{read / own / 1e9:.1f}"]
    for other in (lambda index: F.linear(x, weights[index]), packed(weights, x), int8(weights, x)):
        time_ = seconds(other, len(weights))
        cells.append("-" if time_ is None else f"{time_ / own:.2f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    options = parser.parse_args()
    for dtype_name in options.dtypes:
        dtype = getattr(torch, dtype_name)
        title = f"{dtype_name}, {torch.get_num_threads()} threads; ratios: times ours"
        table = Table("weight", "rows", "ours us", "GFLOP/s", "GB/s", "linear", "packed", "int8", title=title)
        for name, (outputs, inputs) in SHAPES.items():
            count = max(2, round(POOL_BYTES / (outputs * inputs * dtype.itemsize)))
            weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(count)]
            if not supports(weights[0]):
                raise SystemExit("there is no linear kernel on this machine: it takes numba and fused multiply-add")
            with torch.inference_mode():
                for rows in options.rows:
                    table.add_row(*row(name, weights, torch.randn(rows, inputs).to(dtype)))
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
