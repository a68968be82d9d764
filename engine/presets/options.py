"""What a preset's scheduler is told: its own options, and how much of the original's faults it copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vtop.engine.config import EngineConfig

Preemption = Literal["auto", "recompute", "swap"]


@dataclass(frozen=True, slots=True)
class PresetOptions:
    """Options of both presets; each reads its own.

    `faithful` copies also what would harm a user: a step that stops the engine, a host block that never returns, a hit
    on K/V that is not written yet. Only the conformance runner sets it. `half_full_needs_block` (V0) and
    `own_victim_ends_pass` (V1) are faults that cost time and nothing else.
    """

    max_model_len: int = 2048
    chunked: bool = False
    priority: bool = False
    watermark_blocks: int = 0
    long_prefill_threshold: int = 0
    faithful: bool = False
    # V0
    preemption: Preemption = "auto"
    lookahead: int = 0
    delay_factor: float = 0.0
    max_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    half_full_needs_block: bool = False
    # V1
    reserve_full_prompt: bool = True
    max_active_seqs: int | None = None
    adaptive_long_prefill: bool = False
    asynchronous: bool = False
    own_victim_ends_pass: bool = False


def preset_options(config: EngineConfig, num_blocks: int, max_model_len: int) -> PresetOptions:
    """The options that an engine's configuration gives its preset."""
    return PresetOptions(
        max_model_len=max_model_len,
        chunked=config.batching == "chunked",
        priority=config.scheduling_policy == "priority",
        watermark_blocks=config.watermark_blocks(num_blocks),
        preemption="swap" if config.preemption_mode == "swap" else "auto",
        reserve_full_prompt=config.admission != "first-chunk",
        half_full_needs_block=config.preset_quirks,
        own_victim_ends_pass=config.preset_quirks,
    )


class PresetStopped(RuntimeError):
    """The original engine stops here with an exception. `kind` names it; raised by faithful presets only."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)
