"""What a model's config alone says about whether it can be served. Imports no torch; nothing is downloaded for it.

What only a forward pass shows (arguments of the attention function, shapes of layers, logits) is checked in `model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtop.engine.errors import ModelRefused

LAYER_KINDS = frozenset(("full_attention", "sliding_attention"))
"""Kinds of layers, as `layer_types` of a config names them, that keep paged KV."""

_ALIBI = "it places tokens with ALiBi biases, which the paged attention does not compute"
_CROSS = "it has cross-attention; only decoders are served"
_ENCODER = "it is an encoder-decoder; only decoders are served"
_KEEPS_NO_KV = {
    "linear_attention": "linear attention or a state-space mixer",
    "mamba": "a state-space mixer",
    "recurrent": "a recurrent mixer",
    "conv": "a convolution",
    "chunked_attention": "attention within chunks",
    "indexed_attention": "attention to tokens that an index picks",
    "hybrid": "attention with a state beside it",
    "hybrid_sliding": "attention with a state beside it",
}


MOST_SIZES = {
    "num_hidden_layers": 10_000, "n_layer": 10_000, "n_layers": 10_000, "num_layers": 10_000,
    "num_attention_heads": 100_000, "n_head": 100_000, "num_key_value_heads": 100_000, "head_dim": 1_000_000,
    "hidden_size": 10_000_000, "n_embd": 10_000_000, "d_model": 10_000_000, "intermediate_size": 100_000_000,
    "vocab_size": 100_000_000, "num_experts": 100_000, "num_local_experts": 100_000, "n_routed_experts": 100_000,
}  # fmt: skip
"""Far above any model's; a config with more would be built for ever, before anything of it fails."""


def check_sizes(config: Mapping[str, Any], name: str) -> None:
    """Raises ModelRefused when a config.json names a size that is none, in itself or in a part of it."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_sizes(value, name)
        most = MOST_SIZES.get(key)
        if most is None or value is None:
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, float) or (whole and not 0 <= value <= most):
            raise ModelRefused(name, f"its config has {key} = {value!r:.40}; give a whole number of at most {most:,}")


def check_config(config: Any, name: str) -> None:
    """Raises ModelRefused, naming the feature, when the config names one that is not served."""
    text = config.get_text_config()
    for part in (config, text):
        if getattr(part, "is_encoder_decoder", False):
            raise ModelRefused(name, _ENCODER)
        if getattr(part, "add_cross_attention", False) or getattr(part, "cross_attention_layers", None):
            raise ModelRefused(name, _CROSS)
    kind = str(getattr(text, "model_type", ""))
    if kind in ("bloom", "mpt") or getattr(text, "alibi", False):
        raise ModelRefused(name, _ALIBI)
    if getattr(text, "position_embedding_type", None) == "alibi":
        raise ModelRefused(name, _ALIBI)
    unknown = sorted(set(getattr(text, "layer_types", None) or ()) - LAYER_KINDS)
    if unknown:
        meant = sorted({_KEEPS_NO_KV[kind] for kind in unknown if kind in _KEEPS_NO_KV})
        explained = f" ({', '.join(meant)})" if meant else ""
        raise ModelRefused(name, f"it has layers of the kind {', '.join(unknown)}{explained}, which keep no paged KV")
    if kind == "llama4_text" and getattr(text, "attn_temperature_tuning", False):
        # Nothing shows it below `floor_scale` tokens, and past that the place in the packed batch would be taken.
        raise ModelRefused(name, "it tunes attention by a token's place in the input instead of by its position id")


def untold_window(config: Any, told: int, limit: int) -> int | None:
    """A sliding window that the config has and no layer tells its attention function, when `limit` exceeds it.

    told: how many layers tell one. Configs with `layer_types` are checked layer by layer elsewhere.
    """
    if told or getattr(config, "layer_types", None) or not getattr(config, "use_sliding_window", True):
        return None
    window = getattr(config, "sliding_window", None)
    return window if isinstance(window, int) and 0 < window < limit else None
