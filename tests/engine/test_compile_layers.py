"""The option `compile`, where there is no compiler."""

from __future__ import annotations

import pytest

from vtop.engine import compile_layers
from vtop.engine.model import load_model
from vtop.kernels.registry import get_backend
from vtop_support.models import tiny_random


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_layers.shutil, "which", lambda name: None)
    model = tiny_random("llama")
    loaded = load_model(model, name="test", backend=get_backend("torch"))
    note = compile_layers.compile_layers(loaded, 4)
    assert note.startswith("not compiled: ") and "g++" in note and "\n" not in note
    assert all(layer._compiled_call_impl is None for layer in model.model.layers)
    loaded.close()
