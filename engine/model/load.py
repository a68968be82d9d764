"""From a ModelSource to a transformers model and tokenizer on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vtop.engine.errors import BadValue, ModelRefused
from vtop.engine.model.families import check_config, check_files, check_loaded, check_sizes
from vtop.engine.model.gguf import load_gguf, one_line, quiet
from vtop.engine.model.source import ModelSource, Progress, SourceKind, hub_reachable, no_progress, pulled_folder


def torch_dtype(name: str, device: torch.device) -> torch.dtype | str:
    """The dtype to load in: 'auto' is float32 on CPU and the model's own (the string 'auto') elsewhere."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    dtypes = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if name not in dtypes:
        raise BadValue("dtype", name, f"choose one of auto, {', '.join(dtypes)}")
    return dtypes[name]


def load_pretrained(
    source: ModelSource, dtype: torch.dtype | str, device: torch.device, progress: Progress = no_progress
) -> tuple[Any, Any | None]:
    """(model in eval mode on `device`, tokenizer or None when there is none).

    Raises BadValue when there is nothing to load and ModelRefused when transformers cannot load it as a decoder.
    """
    progress(f"loading {source.name}", 0, None)
    with quiet():
        if source.kind is SourceKind.GGUF:
            model, tokenizer = load_gguf(Path(source.location), dtype)
        else:
            model, tokenizer = _load_folder(source, dtype)
    return model.to(device).eval(), tokenizer


def _load_folder(source: ModelSource, dtype: torch.dtype | str) -> tuple[Any, Any | None]:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig

    place = source.location
    if source.kind is SourceKind.HUB and (pulled := pulled_folder(source.location)):
        place = str(pulled)
    # what is in the hub's own cache is loaded without a network
    local = source.kind is SourceKind.FOLDER or place != source.location or not hub_reachable()
    try:
        sizes, _ = PreTrainedConfig.get_config_dict(place, local_files_only=local)
    except Exception as error:
        raise _unreachable(source, error) from error
    check_sizes(sizes, source.name)  # before layers are made
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    except Exception as error:
        raise _unreachable(source, error) from error
    check_config(config, source.name)  # before weights are fetched
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelRefused(source.name, f"transformers has no text decoder for its kind, {config.model_type}")
    if Path(place).is_dir():
        check_files(Path(place), source.name)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            local_files_only=local,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told here, by name
        )
    except OSError as error:
        raise _unreachable(source, error) from error
    except Exception as error:
        raise ModelRefused(source.name, f"transformers cannot load it: {one_line(error)}") from error
    check_loaded(model, report, source.name)
    return model, _load_tokenizer(place, local)


def _load_tokenizer(place: str, local: bool) -> Any | None:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    except Exception:  # absent or unreadable: served by token ids
        return None


def _unreachable(source: ModelSource, error: Exception) -> BadValue:
    if source.kind is SourceKind.HUB:
        remedy = (
            f"cannot be had from the hub ({one_line(error)}); check the name and the network, "
            "or give tiny, smollm2, a folder or a .gguf file"
        )
    else:
        remedy = f"the folder cannot be loaded: {one_line(error)}"
    return BadValue("model", source.location, remedy)
