"""What is known of the loaded model and its device, for people and for checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Told by whoever builds the executor. `max_model_len` in tokens; `kv_note` says how the pool was sized."""

    model: str = "stub"
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "none"
    max_model_len: int = 2048
    vocab_size: int | None = None
    kv_note: str = ""
