"""What a model's own files say about where text ends and how long it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
