"""Whether the weights on disk are the weights of the model: what is not there would be drawn at random and served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vtop.engine.errors import ModelRefused
from vtop.engine.user_files import read_json

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
