"""Where compiled kernels are kept between runs, and the decorator that compiles with it.

numba notices a change of the file that holds a function, not of the files that it calls into. So the folder's name
carries a digest of all kernel sources; a new version of them starts an empty folder. It lies under NUMBA_CACHE_DIR if
that is set, else in the user's cache folder, never in the package, which may be read-only.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config, types


@cache
def cache_folder() -> Path | None:
    """The folder, created; None when it cannot be written, and then every start compiles anew."""
    import platformdirs

    given = config.CACHE_DIR
    try:
        base = Path(given) if given else Path(platformdirs.user_cache_dir("vtop")) / "numba"
        folder = base / f"vtop-{_digest()}"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # a user without a home has no such folder
        return None
    return folder


def _digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _caching() -> Iterator[bool]:
    """numba takes the folder from its global setting when a function is decorated; others' functions keep theirs."""
    folder, before = cache_folder(), config.CACHE_DIR
    config.CACHE_DIR = before if folder is None else os.fspath(folder)
    try:
        yield folder is not None
    finally:
        config.CACHE_DIR = before


def c_function(function: Callable[..., Any], argument: Any) -> Any:
    """Compile void function(argument), or load it from the cache; a `CFunc` with `address` and `ctypes`."""
    with _caching() as cached:
        return numba.cfunc(types.void(argument), cache=cached, error_model="numpy")(function)
