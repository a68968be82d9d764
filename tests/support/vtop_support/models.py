"""Small random models of many families, and the one real model that tests may fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt2", "opt")
VOCAB = 128


def tiny_random(family: str, *, seed: int = 0, **overrides: Any) -> Any:
    """A random float32 decoder of `family`: 2-3 layers, hidden 64, vocab 128, no end token, in memory."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **overrides), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                # large enough that attention is not flat and greedy output is not one token for ever
                parameter.normal_(0.0, 0.35 if "embed" in name or "wte" in name else 0.2)
    model.generation_config.eos_token_id = None
    return model


def saved_tiny_random(family: str, folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """`tiny_random`, saved without a tokenizer. Returns the folder."""
    tiny_random(family, seed=seed, **overrides).save_pretrained(folder)
    return folder


def tiny_config(family: str, **overrides: Any) -> Any:
    import transformers as t

    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    gemma = {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 16}
    makers: dict[str, tuple[Any, dict[str, Any]]] = {
        "llama": (t.LlamaConfig, {}),
        "qwen2": (t.Qwen2Config, {}),
        "qwen3": (t.Qwen3Config, {"head_dim": 24}),
        "mistral": (t.MistralConfig, {"sliding_window": 9, "head_dim": 16}),
        "gemma2": (t.Gemma2Config, {**gemma, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 20.0}),
        "gemma3": (
            t.Gemma3TextConfig,
            {**gemma, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        ),
        "phi3": (t.Phi3Config, {}),
    }
    if family == "gpt2":
        return t.GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=512, bos_token_id=None, eos_token_id=None,
            tie_word_embeddings=False, **overrides,
        )  # fmt: skip
    if family == "opt":
        return t.OPTConfig(
            vocab_size=VOCAB, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=512, word_embed_proj_dim=64, bos_token_id=None, eos_token_id=None, pad_token_id=1,
            tie_word_embeddings=False, **overrides,
        )  # fmt: skip
    maker, special = makers[family]
    return maker(**{**common, **special, **overrides})


def smollm2_path() -> Path:
    """The folder of SmolLM2-135M-Instruct, fetched once into the cache; skips, with the reason, when it cannot be."""
    from vtop.engine.errors import VtopError
    from vtop.engine.model.source import resolve

    try:
        return Path(resolve("smollm2").location)
    except (VtopError, OSError) as error:
        pytest.skip(f"SmolLM2 is not here and cannot be fetched: {error}")
