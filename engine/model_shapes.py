"""Sizes of models by name or from a config.json: what a roofline needs to know of them."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtop.engine.errors import BadValue


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. `parameters` are all, `active_parameters` those a token meets (fewer in a mixture of experts)."""

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    max_model_len: int
    active_parameters: float = 0.0
    bytes_per_value: int = 2

    def __post_init__(self) -> None:
        if not self.active_parameters:
            object.__setattr__(self, "active_parameters", self.parameters)

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value


def _shape(name: str, billions: float, *sizes: int, active: float = 0.0) -> ModelShape:
    layers, hidden, heads, kv_heads, head_dim, context = sizes
    return ModelShape(name, billions * 1e9, layers, hidden, heads, kv_heads, head_dim, context, active * 1e9)


# From the models' public config.json files: layers, hidden, heads, KV heads, head size, context.
_SHAPES = {
    shape.name: shape
    for shape in (
        _shape("llama-8b", 8.03, 32, 4096, 32, 8, 128, 131072),
        _shape("llama-70b", 70.6, 80, 8192, 64, 8, 128, 131072),
        _shape("llama-405b", 405.9, 126, 16384, 128, 8, 128, 131072),
        _shape("llama-1b", 1.24, 16, 2048, 32, 8, 64, 131072),
        _shape("llama-3b", 3.21, 28, 3072, 24, 8, 128, 131072),
        _shape("qwen2.5-0.5b", 0.494, 24, 896, 14, 2, 64, 32768),
        _shape("qwen2.5-7b", 7.62, 28, 3584, 28, 4, 128, 32768),
        _shape("qwen2.5-32b", 32.8, 64, 5120, 40, 8, 128, 32768),
        _shape("qwen2.5-72b", 72.7, 80, 8192, 64, 8, 128, 32768),
        _shape("mistral-7b", 7.25, 32, 4096, 32, 8, 128, 32768),
        _shape("mixtral-8x7b", 46.7, 32, 4096, 32, 8, 128, 32768, active=12.9),
        _shape("smollm2-135m", 0.135, 30, 576, 9, 3, 64, 8192),
    )
}
_ALIASES = {
    "llama-3-8b": "llama-8b", "llama-3.1-8b": "llama-8b", "llama-3-70b": "llama-70b", "llama-3.1-70b": "llama-70b",
    "llama-3.3-70b": "llama-70b", "llama-3.1-405b": "llama-405b", "llama-3.2-1b": "llama-1b",
    "llama-3.2-3b": "llama-3b", "smollm2": "smollm2-135m",
}  # fmt: skip


def shape_names() -> tuple[str, ...]:
    return tuple(_SHAPES)


def model_shape(name: str) -> ModelShape:
    """By name, or from a config.json (its path, or that of its folder). Raises BadValue."""
    known = _SHAPES.get(_ALIASES.get(name.lower(), name.lower()))
    if known is not None:
        return known
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _from_config(path)
    close = difflib.get_close_matches(name.lower(), [*_SHAPES, *_ALIASES], n=1)
    nearest = f"; did you mean {close[0]}?" if close else ""
    raise BadValue("model_shape", name, f"give a config.json or one of {', '.join(_SHAPES)}{nearest}")


def _from_config(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadValue("model_shape", str(path), f"cannot be read as JSON ({error})") from None
    if not isinstance(config, dict):
        raise BadValue("model_shape", str(path), "is no model configuration")
    layers = _whole(config, path, "num_hidden_layers", "n_layer")
    hidden = _whole(config, path, "hidden_size", "n_embd")
    heads = _whole(config, path, "num_attention_heads", "n_head")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    inner = int(config.get("intermediate_size") or 4 * hidden)
    vocab = _whole(config, path, "vocab_size")
    attention = hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 1)
    used = int(config.get("num_experts_per_tok") or 1)
    tied = 1 if config.get("tie_word_embeddings") else 2
    dense = layers * attention + tied * vocab * hidden
    mlp = layers * 3 * hidden * int(config.get("moe_intermediate_size") or inner)
    context = int(config.get("max_position_embeddings") or 4096)
    name = str(config.get("_name_or_path") or path.parent.name or "model")
    return ModelShape(
        name, dense + experts * mlp, layers, hidden, heads, kv_heads, head_dim, context, dense + used * mlp
    )


def _whole(config: dict[str, Any], path: Path, *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise BadValue("model_shape", str(path), f"has no {names[0]}; give the config.json of a decoder")
