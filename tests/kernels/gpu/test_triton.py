"""The Triton backend in Triton's interpreter, and its plans, which need no triton."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vtop.kernels.api import AttentionBatch
from vtop.kernels.gpu.plan import (
    DETERMINISTIC_CHUNK,
    MOST_SPLITS,
    ShapeTable,
    SplitRule,
    StaticPlan,
    heads_per_program,
    padded,
    plan_step,
    work_items,
)

WORKER = Path(__file__).with_name("triton_interp.py")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

MIXED = [(0, 7), (20, 1), (33, 5), (0, 1), (16, 16)]
DECODES = [(0, 1), (15, 1), (16, 1), (170, 1)]
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 6},
    "window of one": {"window": 1},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all": {"window": 21, "softcap": 5.0, "sinks": True},
}


def cases() -> list[dict[str, Any]]:
    """Few and tiny: the interpreter takes some 0.1 s for a launch."""
    found: list[dict[str, Any]] = []

    def add(name: str, **more: Any) -> None:
        found.append({"name": name, "seed": len(found), **more})

    for name, options in FEATURES.items():
        add(f"mixed {name}", sequences=MIXED, heads=3, kv_heads=1, **options)
        add(f"decode {name}", sequences=DECODES, heads=3, kv_heads=1, tile=32, **options)
    for size in (1, 2, 3, 4, 8, 32, 64, 128, 256):
        add(f"blocks of {size}", sequences=[(40, 1), (21, 9)], block_size=size)
    add("blocks of 3, window", sequences=MIXED, block_size=3, window=10)
    add("blocks of 64, window", sequences=[(140, 1), (90, 9), (200, 1)], block_size=64, window=70)
    for heads, kv_heads, dim in (
        (9, 3, 64),
        (14, 2, 80),
        (4, 4, 96),
        (8, 1, 112),
        (2, 1, 128),
        (2, 1, 256),
        (40, 1, 16),
    ):
        add(f"heads {heads}/{kv_heads}/{dim}", sequences=[(140, 1), (18, 6)], heads=heads, kv_heads=kv_heads,
            head_dim=dim, tile=32, rows=32)  # fmt: skip
    for dtype in ("bf16", "fp16"):
        add(f"{dtype} mixed", sequences=MIXED[1:4], heads=6, dtype=dtype)
        add(f"{dtype} all", sequences=[(159, 1), (3, 20)], kv_heads=1, dtype=dtype, tile=32, rows=32, **FEATURES["all"])
    add("fp32 over a bf16 cache", sequences=[(20, 1), (7, 5)], cache_dtype="bf16")
    add("one chunk of many tokens", sequences=[(33, 50)], rows=32, tile=32, **FEATURES["all"])
    rng = random.Random(5)
    for i in range(5):
        sequences = [(rng.randrange(60), rng.choice((1, 1, rng.randrange(1, 30)))) for _ in range(rng.randint(1, 4))]
        size, cap = rng.choice((1, 3, 8, 16, 64)), rng.choice((None, 3.0))
        window, sinks = rng.choice((None, rng.randint(1, 50))), rng.random() < 0.5
        add(f"drawn {i}", sequences=sequences, block_size=size, softcap=cap, window=window, sinks=sinks)
    add("refilled plan", kind="static", sequences=DECODES, tile=32)
    add("refilled plan, all", kind="static", sequences=DECODES[::-1], block_size=3, **FEATURES["all"])
    add("fixed chunks", kind="alone", sequences=[(520, 1), (33, 1)], kv_heads=1,
        deterministic=True, tile=128)  # fmt: skip
    add("copy", kind="copy")
    add("trial", kind="trial")
    add("trial, fp16", kind="trial", dtype="fp16", head_dim=256)
    add("copy, odd bytes", kind="copy", dtype="bf16", kv_heads=1, block_size=3, head_dim=5)
    return found


CASES = cases()


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """All cases in one process: triton and torch are imported once."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    paths = [path for path in sys.path if path]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-P", str(WORKER)], input=json.dumps(CASES), capture_output=True, text=True, timeout=600,
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {line.split("\t")[0]: line.split("\t")[1] for line in done.stdout.splitlines()}


@needs_triton
@pytest.mark.parametrize("name", [case["name"] for case in CASES])
def test_in_the_interpreter(results: dict[str, str], name: str) -> None:
    assert results[name] == "ok"


def test_importing_the_package_and_the_plans_imports_no_triton() -> None:
    code = (
        "import sys, vtop.kernels, vtop.kernels.registry, vtop.kernels.gpu.plan, vtop.kernels.gpu.plan;"
        "assert 'triton' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120, env=environment)


@pytest.mark.parametrize("lens", [[1], [5, 900], [4096] * 64, [32768] + [64] * 255, [1000] * 3])
@pytest.mark.parametrize("window", [None, 1, 700])
def test_chunks_cover_the_context_and_fit_the_grid(lens: list[int], window: int | None) -> None:
    rule = SplitRule(programs=8, budget=528, tile=64)
    spans = rule.spans(np.array(lens), window)
    assert (spans >= np.minimum(lens, window or 1 << 30)).all()
    most = rule.most_splits(len(lens), 32768, window)
    for limit in (MOST_SPLITS, most):
        chunk = rule.chunk(spans, limit)
        assert chunk % 64 == 0
        assert -(-int(spans.max()) // chunk) <= limit


def test_long_contexts_are_split_and_many_are_not() -> None:
    rule = SplitRule(programs=8, budget=528, tile=64)
    one = np.array([32768])
    assert -(-32768 // rule.chunk(one)) >= 32
    assert rule.chunk(np.full(256, 2048)) >= 2048
    uneven = np.array([32768] + [64] * 255)  # one long context among short ones must not be walked by one program
    assert rule.chunk(uneven) <= 2048


def test_a_fixed_chunk_ignores_the_batch() -> None:
    rule = SplitRule(programs=8, budget=528, tile=64, fixed=DETERMINISTIC_CHUNK)
    assert {rule.chunk(np.array(lens)) for lens in ([3], [9000] * 40, [70000])} == {DETERMINISTIC_CHUNK}
    assert rule.most_splits(256, 70000, None) == -(-70000 // DETERMINISTIC_CHUNK)


def test_work_items_cover_every_token_longest_first() -> None:
    chunks = np.array([[0, 5, 5], [5, 70, 100], [75, 33, 4000]])
    items = work_items(chunks, 32)
    seen = sorted(
        (int(row), int(first + k)) for row, first, _, count, *_ in items for k in range(min(32, int(count - first)))
    )
    assert seen == [(row, k) for row, count in enumerate((5, 70, 33)) for k in range(count)]
    ends = items[:, 4] - items[:, 3] + items[:, 1]
    assert (np.diff(ends) <= 0).all()


def test_a_plan_tells_decodes_from_chunks() -> None:
    batch = AttentionBatch.build([1, 3, 1], [9, 5, 2], [[0, 1, 2], [3, 4], [5]], 4)
    plan = plan_step(batch)
    assert plan.decode is not None and plan.prefill is not None
    assert plan.decode.rows is not None and plan.decode.rows.tolist() == [0, 4]
    assert plan.decode.info[0] == 3 and plan.decode.tables.tolist() == [0, 1, 2, 5, -1, -1]
    assert plan.prefill.chunks.tolist() == [[1, 3, 5]] and plan.prefill.items(2) == 2
    assert plan.slots.tolist() == batch.slots.tolist()
    for tensor in (plan.slots, plan.decode.lens, plan.decode.tables, plan.prefill.tables):
        assert tensor.storage_offset() % 4 == 0


def test_a_static_plan_refuses_what_it_was_not_made_for() -> None:
    rule = SplitRule(programs=2, budget=528, tile=16)
    plan = StaticPlan(2, 16, 4, rule, [None], torch.device("cpu"))
    with pytest.raises(ValueError, match="planned for 16"):
        plan.update(AttentionBatch.build([1, 1], [17, 2], [list(range(5)), [7]], 4))
    with pytest.raises(ValueError, match="2 decodes"):
        plan.update(AttentionBatch.build([1], [3], [[0]], 4))
    plan.update(AttentionBatch.build([1, 1], [16, 2], [list(range(4)), [7]], 4))
    assert plan.plan.decode is not None
    with pytest.raises(KeyError):
        plan.plan.decode.split(rule, 5)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [1, 3, 7, 8, 16, 71])
def test_every_shape_has_an_entry(head_dim: int, dtype: torch.dtype, group: int) -> None:
    table = ShapeTable()
    shapes = [table.decode(head_dim, group, dtype)]
    shapes += [
        table.prefill(head_dim, dtype, windowed=windowed, small=small, capability=capability)
        for windowed in (False, True)
        for small in (False, True)
        for capability in ((8, 0), (9, 0))
    ]
    for shape in shapes:
        assert shape.rows >= 16 and shape.rows == padded(shape.rows)
        assert shape.rows // heads_per_program(group, shape.rows) >= 1
        # K and V of the tiles in flight, and the queries
        held = (2 * shape.tile * shape.stages + shape.rows) * padded(head_dim) * dtype.itemsize
        assert held <= 160 * 1024
