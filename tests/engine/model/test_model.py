"""What a loaded model tells about itself, what is found out, and that a model is given back as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as t
from torch import nn

from vtop.engine.errors import ModelRefused
from vtop.engine.model.attention import UnsupportedAttention
from vtop.engine.model.families import end_token_ids, position_limit
from vtop.engine.model.model import load_model
from vtop.kernels.api import AttentionBatch, allocate_cache
from vtop.kernels.registry import get_backend
from vtop_support.models import FAMILIES, VOCAB, tiny_config, tiny_random

torch.set_num_threads(1)


def load(model: Any, name: str = "some-model") -> Any:
    return load_model(model.eval(), name=name, backend=get_backend("auto"))


def generate(model: Any, count: int = 8) -> list[int]:
    ids = torch.tensor([[5, 9, 11, 3, 40, 7, 8, 2, 1, 99, 100, 23]])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in out[0, ids.shape[1] :]]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_the_model_is_given_back_as_it_was(family: str) -> None:
    model = tiny_random(family)
    expected, before = generate(model), model.config._attn_implementation
    loaded = load(model)
    with pytest.raises(RuntimeError, match="outside of a step"):
        generate(model)
    loaded.close()
    loaded.close()
    assert model.config._attn_implementation == before
    assert generate(model) == expected
    again = load(model)
    again.close()
    assert generate(model) == expected


def test_two_models_are_served_side_by_side() -> None:
    models = [tiny_random("llama", seed=seed) for seed in (1, 2)]
    ids = torch.arange(6)
    batch = AttentionBatch.build([6], [6], [[0, 1]], 4)
    with torch.no_grad():
        expected = [model(ids[None]).logits[0] for model in models]
        served = [load(model) for model in models]
        for loaded in served:
            spec = loaded.spec
            loaded.use_cache(allocate_cache(2, spec.num_layers, spec.num_kv_heads, 4, spec.head_dim, spec.dtype, "cpu"))
        for loaded, wanted in zip(served, expected, strict=True):
            torch.testing.assert_close(loaded.forward(ids, ids, batch, None), wanted, atol=1e-4, rtol=1e-4)
            row = loaded.forward(ids, ids, AttentionBatch.build([6], [6], [[0, 1]], 4), torch.tensor([5, 2]))
            torch.testing.assert_close(row, wanted[[5, 2]], atol=1e-4, rtol=1e-4)


def test_what_a_model_looks_like_from_outside() -> None:
    spec = load(tiny_random("mistral")).spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert (spec.vocab_size, spec.max_model_len, spec.windows) == (VOCAB, 512, {9})
    assert load(tiny_random("gemma3")).spec.windows == {7}


class _Odd(nn.Module):
    """Attention that asks for something: wraps the arguments of every call of a llama layer."""

    def __init__(self, attention: nn.Module, **extra: Any) -> None:
        super().__init__()
        self.attention, self.extra = attention, extra

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.attention(*args, **kwargs, **self.extra)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"is_causal": False}, "causal"),
        ({"new_thing": 3}, "new_thing"),
    ],
)
def test_an_argument_of_attention_that_we_do_not_know_is_refused(extra: dict[str, Any], named: str) -> None:
    model = tiny_random("llama")
    model.model.layers[1].self_attn = _Odd(model.model.layers[1].self_attn, **extra)
    with pytest.raises(ModelRefused, match=named):
        load(model)


def test_a_model_that_computes_something_else_is_found_out() -> None:
    """A model that looks at its neighbours outside of attention gives other logits in chunks."""
    model = tiny_random("llama")
    norm = model.model.norm
    model.model.norm = nn.Sequential(norm, _PreviousToken())
    with pytest.raises(ModelRefused, match="other logits"):
        load(model)


class _PreviousToken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def test_layers_of_different_shape_are_refused() -> None:
    model = tiny_random("llama")
    other = tiny_random("llama", head_dim=32)
    model.model.layers[1].self_attn = other.model.layers[1].self_attn
    model.model.layers[1].self_attn.config = model.config
    with pytest.raises(ModelRefused):
        load(model)


def test_end_tokens_are_the_union_of_what_the_files_say() -> None:
    """Field case E097."""
    model = tiny_random("llama")

    class Tokenizer:
        eos_token_id = 2

    model.generation_config.eos_token_id = [2, 7]
    model.config.eos_token_id = 9
    assert end_token_ids(model, Tokenizer()) == {2, 7, 9}
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    assert end_token_ids(model, None) == frozenset()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_position_limit_is_read(family: str) -> None:
    assert position_limit(tiny_random(family), None) == 512


def test_lengths_at_which_rotary_frequencies_depend_on_the_batch_are_cut_off() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    model = tiny_random("llama", rope_parameters=rope)
    assert position_limit(model, None) == 64


def test_attention_without_an_engine_says_so() -> None:
    model = t.AutoModelForCausalLM.from_config(tiny_config("llama"))
    load(model).close()
    model.set_attn_implementation("vtop_paged")
    with pytest.raises(RuntimeError, match="belongs to no engine"):
        model(torch.tensor([[1, 2]]))
    assert not issubclass(UnsupportedAttention, RuntimeError)
