"""Sizes of models by name, from a config.json or from a recording: what a roofline needs to know of them."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtop.engine.errors import BadValue
from vtop.engine.events import Meta
from vtop.engine.user_files import read_json

MOST_SIZE = 1_000_000_000
MOST_PARAMETERS = 1e15


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. `parameters` are all, `active_parameters` those a token meets (fewer in a mixture of experts).

    Raises BadValue for sizes that no decoder has.
    """

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
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "max_model_len", "bytes_per_value"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_SIZE:
                raise BadValue(name, value, f"give a whole number from 1 to {MOST_SIZE:,}")
        for name, least in (("parameters", 1), ("active_parameters", 0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and least <= value <= MOST_PARAMETERS):
                raise BadValue(name, value, f"give a number from {least} to {MOST_PARAMETERS:g}")
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


def model_shape(name: str) -> ModelShape:
    """By name, or from a config.json (its path, or that of its folder). Raises BadValue."""
    known = _SHAPES.get(_ALIASES.get(name.lower(), name.lower()))
    if known is not None:
        return known
    path = Path(name)
    if os.path.isdir(path):  # unlike Path's, false for a name that is too long
        path = path / "config.json"
    if os.path.isfile(path):
        return _from_config(path)
    close = difflib.get_close_matches(name.lower(), [*_SHAPES, *_ALIASES], n=1)
    nearest = f"; did you mean {close[0]}?" if close else ""
    raise BadValue("model_shape", name, f"give a config.json or one of {', '.join(_SHAPES)}{nearest}")


def _from_config(path: Path) -> ModelShape:
    config = read_json("model_shape", path, "the config.json of a decoder")
    if not isinstance(config, dict):
        raise BadValue("model_shape", str(path), "is no model configuration")
    layers = _whole(config, path, "num_hidden_layers", "n_layer")
    hidden = _whole(config, path, "hidden_size", "n_embd")
    heads = _whole(config, path, "num_attention_heads", "n_head")
    kv_heads = _whole(config, path, "num_key_value_heads", default=heads)
    head_dim = _whole(config, path, "head_dim", default=hidden // heads)
    inner = _whole(config, path, "intermediate_size", default=4 * hidden)
    vocab = _whole(config, path, "vocab_size")
    attention = hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
    experts = _whole(config, path, "num_local_experts", "num_experts", default=1, zero=True)
    used = _whole(config, path, "num_experts_per_tok", default=1, zero=True)
    if used > experts:
        raise BadValue("num_experts_per_tok", used, f"{path}: there are only {experts} experts")
    tied = 1 if config.get("tie_word_embeddings") else 2
    dense = layers * attention + tied * vocab * hidden
    mlp = layers * 3 * hidden * _whole(config, path, "moe_intermediate_size", default=inner, zero=True)
    context = _whole(config, path, "max_position_embeddings", default=4096)
    given = config.get("_name_or_path")
    name = given if isinstance(given, str) and given else path.parent.name or "model"
    try:
        return ModelShape(
            name, dense + experts * mlp, layers, hidden, heads, kv_heads, head_dim, context, dense + used * mlp
        )
    except BadValue as error:  # such as no dimension left by more heads than the hidden size
        raise BadValue(error.field, error.value, f"{path}: {error.remedy}") from None


def _whole(config: dict[str, Any], path: Path, *names: str, default: int | None = None, zero: bool = False) -> int:
    """The first of these keys that is there; null is not there, nor is 0 where `zero` says that it means none."""
    for name in names:
        value = config.get(name)
        if value is None or (zero and value == 0 and not isinstance(value, bool)):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_SIZE:
            raise BadValue(name, value, f"{path}: give a whole number from 1 to {MOST_SIZE:,}")
        return value
    if default is None:
        raise BadValue("model_shape", str(path), f"has no {names[0]}; give the config.json of a decoder")
    return default


_OWN = {"tiny": Path(__file__).parents[1] / "model" / "tiny"}
_BYTES = {"float32": 4}
_BLOCK = re.compile(r"blocks of ([\d.]+) (B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def recorded_shape(meta: Meta) -> ModelShape:
    """By the model's name; of an unknown one only the longest sequence and the size of its K/V are right."""
    size = _BYTES.get(meta.dtype, 2)
    try:
        shape = model_shape(str(_OWN.get(meta.model, meta.model)))
    except BadValue:
        found = _BLOCK.search(meta.kv_note)
        block = float(found[1]) * _UNITS[found[2]] if found else 2**20
        values = max(1, round(block / (2 * size * meta.block_size)))
        shape = ModelShape(meta.model, values, 1, values, 1, 1, values, meta.max_model_len)
    return replace(shape, name=meta.model, max_model_len=meta.max_model_len, bytes_per_value=size)
