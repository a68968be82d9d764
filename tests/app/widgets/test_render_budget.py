"""The one timed test: what a refresh of a large block map may cost, as a guard against drawing everything anew."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

BUDGET = 0.025  # seconds of CPU; 7 to 9 ms were measured on a 2-core machine with a load of 3


async def test_64k_blocks_200_changed() -> None:
    source = Path(__file__).parents[2] / "benchmarks" / "render_cost.py"
    spec = importlib.util.spec_from_file_location("render_cost", source)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    drawing, encoding, _ = await bench.refresh_costs(65_536, 20)
    both = [draw + encode for draw, encode in zip(drawing, encoding, strict=True)]
    assert statistics.median(both) < BUDGET, f"{statistics.median(both) * 1e3:.1f} ms"
