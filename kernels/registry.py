"""Attention backends by name, and what asking for one can raise."""

from __future__ import annotations

from typing import Any

import torch

from vtop.kernels.api import AttentionBackend, BackendUnavailable, BlockCopy, copy_blocks

__all__ = ["BACKEND_NAMES", "BackendUnavailable", "UnknownBackend", "block_copy", "get_backend", "warm_up"]

BACKEND_NAMES = ("triton", "numba", "torch", "reference")


class UnknownBackend(ValueError):
    """No backend has this name. `names` lists what may be asked for."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self.name = name
        self.names = names
        super().__init__(f"unknown attention backend {name!r}; choose one of {', '.join(names)}")


def get_backend(name: str, device: torch.device | str = "cpu") -> AttentionBackend:
    """The backend called `name`; `auto` takes the fastest that runs on `device`, and torch where that does not.

    A torch backend that stands in for another has the reason in its `note`. Raises UnknownBackend, and
    BackendUnavailable for a named one that cannot run here.
    """
    kind = torch.device(device).type
    if name == "auto":
        fast = {"cuda": "triton", "cpu": "numba"}.get(kind)
        if fast is None:
            return _torch("")
        try:
            return _fast(fast, kind, strict=False)
        except BackendUnavailable as error:
            return _torch(f"{error.name} {error.remedy}")
    if name in ("triton", "numba"):
        return _fast(name, kind, strict=True)
    if name == "torch":
        return _torch("")
    if name == "reference":
        from vtop.kernels.reference import ReferenceAttention

        return ReferenceAttention()
    raise UnknownBackend(name, ("auto", *BACKEND_NAMES))


def warm_up(backend: AttentionBackend, head_dim: int, dtype: torch.dtype, *, strict: bool = True) -> AttentionBackend:
    """Let the backend compile ahead what layers with this head size and dtype need, if it compiles at all.

    Returns the backend to use. For one that turns out not to run that is torch, with the reason in its `note`, or,
    when `strict`, BackendUnavailable is raised.
    """
    prepare = getattr(backend, "warm_up", None)
    if prepare is not None:
        try:
            prepare(head_dim, dtype)
        except BackendUnavailable as error:
            if strict:
                raise
            return _torch(f"{error.name} cannot be used here: {error.remedy}")
    return backend


def block_copy(backend: AttentionBackend) -> BlockCopy:
    """The backend's own way to copy whole blocks, or torch's where it has none."""
    own: BlockCopy | None = getattr(backend, "copy_blocks", None)
    return own or copy_blocks


def _torch(note: str) -> AttentionBackend:
    from vtop.kernels.plain.paged import TorchPagedAttention

    backend = TorchPagedAttention()
    backend.note = note
    return backend


def _fast(name: str, kind: str, *, strict: bool) -> AttentionBackend:
    """Import a compiled backend for devices of this kind, or say in one line why not."""
    wanted = {"triton": "cuda", "numba": "cpu"}[name]
    if kind != wanted:
        raise BackendUnavailable(name, f"runs on {wanted} only; choose auto or torch for {kind}")
    backend: Any
    try:
        if name == "numba":
            from vtop.kernels.cpu.paged import NumbaPagedAttention

            backend = NumbaPagedAttention(strict=strict)
        else:
            from vtop.kernels.gpu.paged import TritonPagedAttention

            backend = TritonPagedAttention()
    except ImportError as error:  # missing, or at odds with the numpy or torch there is
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackendUnavailable(name, f"cannot be imported ({reason}); install {name}, or choose torch") from error
    found: AttentionBackend = backend
    return found
