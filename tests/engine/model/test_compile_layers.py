"""The option `compile`, with a compiler and without one."""

from __future__ import annotations

import shutil

import pytest

from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.model import compile as compile_layers
from vtop.engine.model.build import build_executor
from vtop.engine.model.model import load_model
from vtop.engine.request import SamplingParams
from vtop.kernels.registry import get_backend
from vtop_support.models import tiny_random

NEEDS_COMPILER = pytest.mark.skipif(compile_layers.find_compiler() is None, reason="there is no C++ compiler")


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    model = tiny_random("llama")
    loaded = load_model(model, name="test", backend=get_backend("torch"))
    note = compile_layers.compile_layers(loaded, 4)
    assert note.startswith("not compiled: ") and "g++" in note and "\n" not in note
    assert all(layer._compiled_call_impl is None for layer in model.model.layers)
    loaded.close()


def test_without_a_compiler_our_own_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    config = EngineConfig(device="cpu", compile=True, num_gpu_blocks_override=8)
    model = tiny_random("llama")
    executor, _, facts = build_executor(config, model=model)
    assert any("forward" in module.__dict__ for module in model.modules()) and facts.compile_note.startswith(
        "not compiled: "
    )
    executor.close()


@pytest.mark.slow
@NEEDS_COMPILER
def test_compiled_layers_give_the_same_tokens() -> None:
    """Beside cpu_pack_weights, which is on unless said otherwise."""
    found = []
    for compiled in (False, True):
        config = EngineConfig(device="cpu", compile=compiled, num_gpu_blocks_override=16)
        executor, _, facts = build_executor(config, model=tiny_random("llama"))
        engine = LLMEngine(executor, config, facts=facts)
        assert engine.meta.compile_note == ("2 layers compiled" if compiled else "")
        engine.add_request("a", [5, 6, 7, 8], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        found.append(outputs[0].outputs[0].token_ids)
        engine.close()
    assert found[0] == found[1] and len(found[0]) == 12


@pytest.mark.slow
@NEEDS_COMPILER
def test_a_start_that_fails_leaves_the_model_as_it_was() -> None:
    model = tiny_random("llama")
    with pytest.raises(BadValue):
        build_executor(EngineConfig(device="cpu", compile=True, num_gpu_blocks_override=900_000_000), model=model)
    assert all(layer._compiled_call_impl is None for layer in model.model.layers)
