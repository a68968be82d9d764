"""The folder must not break transformers when a checkout's root is on sys.path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vtop.kernels


def test_as_a_top_level_package_it_stays_empty_or_hands_over() -> None:
    root = Path(vtop.kernels.__file__).resolve().parent.parent
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import kernels\n"
        "ours = getattr(kernels, '__file__', '') == " + repr(str(root / "kernels" / "__init__.py")) + "\n"
        "assert not ours or not hasattr(kernels, '__version__')\n"
        "from transformers.utils import is_kernels_available; print(is_kernels_available() and ours)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
