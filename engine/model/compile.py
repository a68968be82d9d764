"""torch.compile for a model's layers, where there is a compiler. Attention stays outside: its backends are compiled."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch import nn

from vtop.engine.model.attention import ATTENTION_NAME, paged_attention_forward
from vtop.engine.model.model import LoadedModel
from vtop.kernels.api import AttentionBatch, allocate_cache

COMPILERS = ("g++", "clang++", "c++", "gcc", "clang", "cc")


def find_compiler() -> str | None:
    """A C or C++ compiler: $CXX, $CC, or the usual names on the path."""
    named = [os.environ.get(name, "") for name in ("CXX", "CC")]
    return next((found for name in (*named, *COMPILERS) if name and (found := shutil.which(name))), None)


def compile_layers(model: LoadedModel, block_size: int) -> str:
    """Compile the decoder layers in place and try them; returns one line that says what came of it.

    Layers of one kind share their code. Where there is no compiler, or compiling fails, they stay as they are.
    Changes the model's cache: `use_cache` must be called afterwards.
    """
    if find_compiler() is None:
        return "not compiled: torch.compile needs a C++ compiler, and none is found; install g++ or leave `compile` off"
    layers = _layers(model.model, model.spec.num_layers)
    if layers is None:
        return "not compiled: the model's layers are not in one list"
    from transformers import AttentionInterface

    outside = torch.compiler.disable(paged_attention_forward)  # type: ignore[no-untyped-call]
    AttentionInterface.register(ATTENTION_NAME, outside)
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        _try(model, block_size)
    except Exception as error:  # whatever stands between here and a working compiler
        uncompile(model)
        return f"not compiled: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}"
    return f"{len(layers)} layers compiled"


def uncompile(model: LoadedModel) -> None:
    """Let the layers run as they are again. Harmless when they do."""
    for layer in _layers(model.model, model.spec.num_layers) or ():
        layer._compiled_call_impl = None


def _layers(model: Any, count: int) -> nn.ModuleList | None:
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((found for found in lists if len(found) == count), None)


def _try(model: LoadedModel, block_size: int) -> None:
    """Two steps: several tokens, and one."""
    spec = model.spec
    blocks = -(-3 // block_size)
    model.use_cache(
        allocate_cache(blocks, spec.num_layers, spec.num_kv_heads, block_size, spec.head_dim, spec.dtype, spec.device)
    )
    with torch.inference_mode():
        for start, end in ((0, 2), (2, 3)):
            batch = AttentionBatch.build([end - start], [end], [list(range(blocks))], block_size, spec.device)
            positions = torch.arange(start, end, device=spec.device)
            model.forward(torch.zeros_like(positions), positions, batch, None)
