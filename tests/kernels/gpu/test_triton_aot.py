"""Every Triton kernel compiles for devices that are not here, and no register is spilled to memory."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("triton_aot.py")

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.slow,  # the same kernels run in the interpreter in the quick tests
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A few shapes for sm_80 and sm_90; the script by itself does all of them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))  # compiled now, not found
    done = subprocess.run(
        [sys.executable, "-P", str(WORKER), "--quick", "--json"], capture_output=True, text=True, timeout=900,
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_kernel_compiles_for_both_generations(rows: list[dict[str, Any]]) -> None:
    for capability in (80, 90):
        kinds = {row["name"].split()[0] for row in rows if row["capability"] == capability}
        assert kinds == {"decode", "merge", "prefill", "write", "copy"}


def test_nothing_spills(rows: list[dict[str, Any]]) -> None:
    assert {row["name"]: row["stack"] for row in rows if row["stack"]} == {}


def test_products_run_on_matrix_units_and_loads_are_wide(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        kind, found = row["name"].split()[0], row["instructions"]
        if kind == "prefill":
            assert found.get("HGMMA" if row["capability"] == 90 else "HMMA", 0) > 0, row
        if kind == "decode":  # 16 rows are too few for HGMMA
            assert found.get("HMMA", 0) > 0, row
        assert found.get("16-byte", 0) > 0, row
