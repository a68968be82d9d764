"""Attention backends by name."""

from __future__ import annotations

import torch

from vtop.kernels.api import AttentionBackend

BACKEND_NAMES = ("torch", "reference")


class UnknownBackend(ValueError):
    """No backend has this name. `names` lists what may be asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names = ("auto", *BACKEND_NAMES)
        super().__init__(f"unknown attention backend {name!r}; choose one of {', '.join(self.names)}")


def get_backend(name: str, device: torch.device | str = "cpu") -> AttentionBackend:
    """The backend called `name`; `auto` takes the fastest that runs on `device`. Raises UnknownBackend."""
    if name in ("auto", "torch"):
        from vtop.kernels.torch_paged import TorchPagedAttention

        return TorchPagedAttention()
    if name == "reference":
        from vtop.kernels.reference import ReferenceAttention

        return ReferenceAttention()
    raise UnknownBackend(name)
