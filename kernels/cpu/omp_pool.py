"""Run compiled code on the OpenMP threads that torch already has.

A second pool beside torch's would fight with it: OpenMP workers spin after a region, so two pools on the same cores
cost scheduler slices. libgomp's own entry point takes a function pointer, and torch's copy of the library is already
mapped into the process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

import torch

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
