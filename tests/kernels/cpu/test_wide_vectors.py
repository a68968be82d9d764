"""The kernels with vectors of 16 floats, on machines that have 8: LLVM makes two of each, the logic is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtop.kernels.cpu import linear as linear_cpu

HERE = Path(__file__).parent

WIDE = """
import sys
import pytest
from vtop.kernels.cpu import linear_vectors as linear_ir
from vtop.kernels.cpu import paged as numba_paged
linear_ir.LANES = 16
real = numba_paged._cpu_features
numba_paged._cpu_features = lambda: real() + ",+avx512f"
from vtop.kernels.cpu import linear_kernel as linear_numba
assert linear_numba.LANES == 16
assert numba_paged._lanes(64, numba_paged._cpu_features()) == 16
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(linear_cpu.kernel() is None, reason="no kernel for this machine, or no numba")
def test_kernels_with_vectors_of_sixteen(tmp_path: Path) -> None:
    tests = [
        f"{HERE / 'test_linear.py'}",
        f"{HERE / 'test_numba.py'}::test_accuracy_for_the_shapes_of_models",
        f"{HERE / 'test_numba.py'}::test_any_batch",
    ]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}  # the real one holds code of this machine's width
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-c", WIDE, *tests], cwd=HERE.parents[2], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
