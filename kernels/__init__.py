"""Paged attention: the interface (`api`), and backends behind it by name (`registry`).

Importing this package imports no torch; its modules do.
"""

if __name__ == "kernels":
    # A checkout's root on sys.path makes this folder look like Hugging Face's `kernels` distribution, which
    # transformers looks up by that name. Hand over to the real one when it is installed; stay empty otherwise.
    import importlib.machinery as _machinery
    import importlib.util as _util
    import os as _os
    import sys as _sys

    _root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
    _elsewhere = [path for path in _sys.path if _os.path.abspath(path or _os.getcwd()) != _root]
    _spec = _machinery.PathFinder.find_spec("kernels", _elsewhere)
    if _spec is not None and _spec.loader is not None:
        _real = _util.module_from_spec(_spec)
        _sys.modules["kernels"] = _real
        _spec.loader.exec_module(_real)
