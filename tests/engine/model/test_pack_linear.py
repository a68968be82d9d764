"""pack_model: the same results as the plain model, for many families, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.model import linear as pack_linear
from vtop.engine.model.build import build_executor
from vtop.engine.model.linear import pack_model
from vtop.engine.request import SamplingParams
from vtop.kernels.cpu.linear import kernel
from vtop_support.models import FAMILIES, smollm2_path, tiny_random

pytestmark = pytest.mark.skipif(kernel() is None, reason="no kernel for this machine, or no numba")

EXPECTED = {  # linears, groups, gates, norms, rotary with vectors of eight floats
    "llama": (15, 2, 2, 5, 2),
    "qwen2": (15, 2, 2, 5, 2),
    "qwen3": (15, 2, 2, 9, 0),  # heads of 24
    "mistral": (15, 2, 2, 5, 2),
    "gemma2": (22, 6, 0, 13, 3),
    "gemma3": (22, 6, 0, 19, 3),
    "phi3": (9, 0, 0, 5, 2),
    "gpt2": (1, 0, 0, 0, 0),
    "opt": (13, 2, 0, 0, 0),
}
# sixteen floats fit neither half a head of 16 nor a norm over 24
WIDE = {family: (*counts[:4], 0) for family, counts in EXPECTED.items()} | {"qwen3": (15, 2, 2, 5, 0)}


@pytest.fixture(autouse=True)
def every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_linear, "SMALL_WEIGHT", 0)


def logits(model: Any, rows: int) -> torch.Tensor:
    ids = torch.randint(3, 120, (1, rows), generator=torch.Generator().manual_seed(rows))
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[0].float()  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_same_logits_and_nothing_left(family: str, dtype: torch.dtype) -> None:
    model = tiny_random(family).to(dtype)
    if family == "qwen2":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_()
    state = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    wanted = {rows: logits(model, rows) for rows in (1, 2, 5, 17, 60)}
    packing = pack_model(model)
    assert packing, "the model was meant to be packed"
    found = (packing.linears, packing.groups, packing.gates, packing.norms, packing.rotary)
    assert found == {8: EXPECTED, 16: WIDE}[kernel().LANES][family]
    for rows, expected in wanted.items():
        off = float((logits(model, rows) - expected).abs().max() / expected.std())
        assert off < (1e-4 if dtype == torch.float32 else 0.4)
    packing.undo()
    packing.undo()
    assert not any("forward" in module.__dict__ for module in model.modules())
    for rows, expected in wanted.items():
        assert torch.equal(logits(model, rows), expected)
    for name, value in model.state_dict().items():
        assert value.data_ptr() == state[name][0]
        assert torch.equal(value, state[name][1])


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "opt"])
def test_greedy_equals_generate(family: str) -> None:
    model = tiny_random(family)
    prompts = [[5, 9, 11, 3, 40, 7, 8, 2, 1][: 3 + i] for i in range(6)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        expected.append(out[0, len(prompt) :].tolist())
    config = EngineConfig(device="cpu", num_gpu_blocks_override=30, block_size=4, max_num_batched_tokens=16)
    executor, tokenizer, facts = build_executor(config, model=model)
    assert any("forward" in module.__dict__ for module in model.modules())
    engine = LLMEngine(executor, config, tokenizer=tokenizer, facts=facts)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"r{i}", prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    done: dict[str, list[int]] = {}
    while len(done) < len(prompts):
        done.update({out.request_id: list(out.outputs[0].token_ids) for out in engine.step() if out.finished})
    assert [done[f"r{i}"] for i in range(len(prompts))] == expected
    engine.close()
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_switched_off() -> None:
    model = tiny_random("llama")
    executor, *_ = build_executor(EngineConfig(device="cpu", cpu_pack_weights=False), model=model)
    assert not any("forward" in module.__dict__ for module in model.modules())
    executor.close()


def test_a_wrong_part_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that takes q/k/v from different inputs, or an activation of another kind, keeps what is its own."""
    model = tiny_random("llama")
    wanted = logits(model, 5)
    monkeypatch.setattr(pack_linear, "_close", lambda *_: False)
    assert not pack_model(model)
    assert torch.equal(logits(model, 5), wanted)


def test_hooks_in_a_gated_mlp_are_called() -> None:
    model = tiny_random("llama")
    calls: list[torch.Size] = []
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda module, inputs, output: calls.append(output.shape))
    packing = pack_model(model)
    assert packing.gates == 1  # of two layers
    logits(model, 5)
    assert calls
    packing.undo()


def test_gradients_take_the_plain_way() -> None:
    model = tiny_random("llama")
    packing = pack_model(model)
    assert packing
    ids = torch.tensor([[5, 9, 11]])
    model(input_ids=ids, use_cache=False).logits.sum().backward()
    assert model.lm_head.weight.grad is not None
    packing.undo()


def test_smollm2_ids() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_path(), dtype=torch.float32).eval()
    ids = torch.randint(100, 49000, (1, 24), generator=torch.Generator().manual_seed(1))

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
            return out, model(ids, use_cache=False).logits

    plain_ids, plain = run()
    packing = pack_model(model)
    assert packing.gates == packing.rotary == 30
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    packed_ids, packed = run()
    assert torch.equal(packed_ids, plain_ids)
    assert float((packed - plain).abs().max() / plain.std()) < 1e-4
    packing.undo()
