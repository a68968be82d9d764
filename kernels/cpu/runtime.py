"""How compiled kernels come to run: made or loaded from the folder where they are kept, and run on torch's threads.

numba notices a change of the file that holds a function, not of the files that it calls into. So the folder's name
carries a digest of all kernel sources; a new version of them starts an empty folder. It lies under NUMBA_CACHE_DIR if
that is set, else in the user's cache folder, never in the package, which may be read-only.

A second pool of threads beside torch's would fight with it: OpenMP workers spin after a region, so two pools on the
same cores cost scheduler slices. libgomp's own entry point takes a function pointer, and torch's copy of the library is
already mapped into the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch
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


MAPS = "/proc/self/maps"


@cache
def parallel_entry(maps: str = MAPS) -> Callable[[int, int, int, int], None] | None:
    """GOMP_parallel(function, data, threads, flags) of torch's libgomp, or None where there is none.

    function and data are addresses; every thread calls function(data), and the call returns when all have. The GIL is
    released meanwhile. `threads` should be `torch.get_num_threads()`: a smaller team makes libgomp end the others.
    """
    for path in _openmp_libraries(maps):
        try:
            entry = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        entry.restype = None
        return entry
    return None


def _openmp_libraries(maps: str) -> list[str]:
    """Paths of the mapped OpenMP libraries that have GNU's interface, torch's own first."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as lines:
            fields = [line.split(maxsplit=5) for line in lines]
    except OSError:  # no Linux
        return []
    paths = dict.fromkeys(parts[5].strip() for parts in fields if len(parts) == 6)
    found = [path for path in paths if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp5"))]
    home = os.path.dirname(torch.__file__)
    return sorted(found, key=lambda path: not path.startswith((home + os.sep, home + ".libs")))
