"""What a model's files say, before it runs: whether it can be served, whether its weights are its own, where text ends.

Imports no torch, and nothing is downloaded for it. What only a forward pass shows (arguments of the attention function,
shapes of layers, logits) is checked in `model`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtop.engine.errors import ModelRefused
from vtop.engine.user_files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


FALLBACK_LENGTH = 4096  # when neither the model nor its tokenizer names a limit
_LENGTH_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_target_positions",
)


def end_token_ids(model: PreTrainedModel, tokenizer: Any | None) -> frozenset[int]:
    """Every id that ends a text: of the generation config, the config and the tokenizer, which often disagree."""
    ids: set[int] = set()
    sources = (getattr(model, "generation_config", None), model.config, model.config.get_text_config(), tokenizer)
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        if value is None:
            continue
        ids.update(int(token) for token in (value if isinstance(value, (list, tuple, set)) else [value]))
    return frozenset(token for token in ids if token >= 0)


def position_limit(model: PreTrainedModel, tokenizer: Any | None) -> int:
    """The longest sequence, in tokens, for which a packed batch gives what the sequence alone would give."""
    config = model.config.get_text_config()
    limit = next((int(value) for name in _LENGTH_NAMES if (value := getattr(config, name, None))), None)
    if limit is None:
        known = getattr(tokenizer, "model_max_length", None)
        limit = int(known) if known and known < 1_000_000 else FALLBACK_LENGTH
    original = _original_length(config)
    return limit if original is None else min(limit, original)


def _original_length(config: Any) -> int | None:
    """The trained length of models whose rotary frequencies depend on the longest sequence in the batch.

    Past it (`dynamic`, `longrope`) a sequence's result would depend on what else runs, so they are served up to there.
    """
    shortest: int | None = None
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in [parameters, *nested]:
        if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
            length = rope.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            length = int(length or config.max_position_embeddings)
            shortest = length if shortest is None else min(shortest, length)
    return shortest


SHOWN = 3  # names in a refusal, at most
_INDEX = "model.safetensors.index.json"
# What old checkpoints hold beside weights: causal masks, rotary tables, scales of a quantised KV cache.
_NO_WEIGHTS = re.compile(r"(attn|attention)\.(masked_)?bias$|inv_freq$|\.(q|k|v|kv)_scale$|position_ids$")


def check_files(folder: Path, name: str) -> None:
    """Raise ModelRefused when a safetensors file in `folder` that would be read is absent, cut short or none."""
    single, index = folder / "model.safetensors", folder / _INDEX
    if single.is_file():
        files = [single.name]
    elif index.is_file():
        try:
            files = sorted(set(read_json("model", index)["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelRefused(name, f"{_INDEX} lists no weights ({type(error).__name__})") from error
    else:
        return
    lacking = [file for file in files if not isinstance(file, str) or not (folder / file).is_file()]
    if lacking:
        raise ModelRefused(name, f"{_INDEX} names files that are not there: {_list(lacking)}")
    for file in files:
        _check_header(folder / file, name)


def _check_header(file: Path, name: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            pass
    except (OSError, SafetensorError) as error:
        why = " ".join(str(error).split())[:120]
        raise ModelRefused(name, f"{file.name!r} is damaged or cut short ({why})") from error


def check_loaded(model: Any, report: dict[str, Any], name: str) -> None:
    """Raise ModelRefused unless every weight of `model` came from its file, in its shape, and none was left over.

    `report` is what transformers' `from_pretrained` gives with `output_loading_info`. A weight that is tied to one
    that was loaded is not missing. Left-over tensors outside of the decoder (another head, a vision tower) do no harm;
    inside of it they are parts of an architecture that is not this one.
    """
    misfits = sorted(report["mismatched_keys"])
    if misfits:
        tensor, found, wanted = misfits[0]
        more = f", and {len(misfits) - 1} more do not fit" if len(misfits) > 1 else ""
        raise ModelRefused(
            name, f"its weights are not of its config: {tensor} is {list(found)}, {list(wanted)} is needed{more}"
        )
    missing, unexpected = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    if missing:
        text = f"its weights lack {len(missing)} of {len(model.state_dict())} tensors: {_list(missing, quote=False)}"
        if unexpected:
            text += f"; the file has {_list(unexpected)} instead"
        raise ModelRefused(name, text)
    strange = [tensor for tensor in unexpected if not _NO_WEIGHTS.search(tensor) and _inside(model, tensor)]
    if strange:
        raise ModelRefused(
            name, f"its weights are of another architecture: {type(model).__name__} has no {_list(strange)}"
        )


def _inside(model: Any, tensor: str) -> bool:
    """Whether a tensor's name goes on from a module of the model that is neither the model itself nor its base."""
    prefix = model.base_model_prefix
    modules = {module for module, _ in model.named_modules()} - {"", prefix}
    for known in (tensor, f"{prefix}.{tensor}"):  # a checkpoint of the base model has no prefix
        parts = known.split(".")
        if any(".".join(parts[:count]) in modules for count in range(1, len(parts))):
            return True
    return False


def _list(names: Iterable[Any], *, quote: bool = True) -> str:
    """The first few; those out of a file are quoted, since they may hold anything."""
    texts = [repr(name)[:100] if quote else str(name) for name in names]
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
