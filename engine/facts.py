"""What is known of the loaded model and its device, for people and for checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Told by whoever builds the executor. `max_model_len` in tokens.

    `compile_note` says what came of the option `compile`; empty without it.
    `backend_note` says on one line why torch computes attention, or some of it, in place of a faster backend.
    `kv_note` and `host_note` say how the device pool and the host pool were sized, on one line each.
    """

    model: str = "stub"
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "none"
    max_model_len: int = 2048
    vocab_size: int | None = None
    kv_note: str = ""
    num_host_blocks: int = 0
    host_note: str = ""
    backend_note: str = ""
    compile_note: str = ""
