"""Cost models: how long a step takes on some card, from what the step computes.

    t = c0 + ct·T + ch·max(0, T − knee) + cd·D + ck·K + ca·A + swap·blocks swapped + copy·blocks copied

T tokens of the step, D sequences that decode, K context tokens that decodes read, A = Σ chunk · (context before +
chunk / 2) over prefill chunks. c0 is reading the weights and launching; `knee` is where computing passes memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from vtop.engine.errors import BadValue
from vtop.engine.executor import StepPlan
from vtop.engine.sim.shapes import ModelShape

MOST = 1e9  # of seconds, tokens and the scale: what comes of it is still finite


@dataclass(slots=True)
class StepLoad:
    """What a step computes and moves. Counts of tokens, sequences and blocks; `area` in tokens².

    `prefill_context` is what chunks read: Σ (context before + chunk).
    """

    tokens: int = 0
    decodes: int = 0
    context: int = 0
    area: float = 0.0
    prefill_context: int = 0
    swapped: int = 0
    copied: int = 0

    @classmethod
    def of(cls, plan: StepPlan) -> StepLoad:
        """The load of a plan; a chunk of one token that samples is a decode."""
        tokens = decodes = context = prefill_context = 0
        area = 0.0
        for chunk in plan.chunks:
            count = chunk.num_tokens
            tokens += count
            if count == 1 and chunk.sample:
                decodes += 1
                context += chunk.start + 1
            else:
                area += count * (chunk.start + count / 2)
                prefill_context += chunk.start + count
        swapped = len(plan.swap_out) + len(plan.swap_in)
        return cls(tokens, decodes, context, area, prefill_context, swapped, len(plan.copies))


class CostModel(Protocol):
    """Seconds of a step, and the two rates that preemption mode hybrid compares."""

    @property
    def swap_s_per_block(self) -> float: ...

    @property
    def cow_s_per_block(self) -> float: ...

    def seconds(self, load: StepLoad) -> float:
        """Time of a whole step: forward pass, swaps and copies."""
        ...

    @property
    def prefill_tokens_per_second(self) -> float:
        """Of a long prompt."""
        ...


@dataclass(frozen=True, slots=True)
class HingeCost:
    """The formula above; times in seconds. `scale` multiplies the forward pass. Raises BadValue for what is no time."""

    c0: float
    ct: float
    ch: float = 0.0
    knee: float = 0.0
    cd: float = 0.0
    ck: float = 0.0
    ca: float = 0.0
    swap_s_per_block: float = 0.0
    cow_s_per_block: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and 0 <= value <= MOST):
                raise BadValue(f.name, value, f"give seconds (or tokens for the knee), 0 or more, at most {MOST:g}")
        if not self.scale > 0:
            raise BadValue("scale", self.scale, "it multiplies the forward pass; give more than 0")
        if self.c0 + self.ct <= 0:
            raise BadValue("c0", self.c0, "a step that takes no time would never let an arrival come; give more than 0")

    def seconds(self, load: StepLoad) -> float:
        time = 0.0
        if load.tokens:
            over = load.tokens - self.knee
            time = self.c0 + self.ct * load.tokens + self.cd * load.decodes + self.ck * load.context
            time = (time + self.ca * load.area + (self.ch * over if over > 0 else 0.0)) * self.scale
        return time + self.swap_s_per_block * load.swapped + self.cow_s_per_block * load.copied

    @property
    def prefill_tokens_per_second(self) -> float:
        per_token = self.scale * (self.ct + self.ch)
        return 1.0 / per_token if per_token > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Roofline:
    """The larger of computing and reading, for a model on `gpus` cards that share its work evenly.

    flops per second and bytes per second of one card as its data sheet says; `overhead_s` is a step's cost beside them.
    FLOP = 2·P·T + 4·L·H·d·(A + K); bytes = weights + kv · (K + context of chunks). Weights of all experts are read.
    """

    shape: ModelShape
    flops: float
    bandwidth: float
    gpus: int = 1
    block_size: int = 16
    host_bandwidth: float = 25e9
    overhead_s: float = 126e-6
    scale: float = 1.0

    def seconds(self, load: StepLoad) -> float:
        shape = self.shape
        time = 0.0
        if load.tokens:
            flop = 2.0 * shape.active_parameters * load.tokens
            flop += 4.0 * shape.layers * shape.heads * shape.head_dim * (load.area + load.context)
            read = shape.weight_bytes + shape.kv_bytes_per_token * (load.context + load.prefill_context)
            time = max(flop / self.flops, read / self.bandwidth) / self.gpus * self.scale + self.overhead_s
        return time + self.swap_s_per_block * load.swapped + self.cow_s_per_block * load.copied

    @property
    def swap_s_per_block(self) -> float:
        return self._block_bytes / self.host_bandwidth

    @property
    def cow_s_per_block(self) -> float:
        return 2.0 * self._block_bytes / self.bandwidth

    @property
    def _block_bytes(self) -> float:
        """On each card."""
        return self.shape.kv_bytes_per_token * self.block_size / self.gpus

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.flops * self.gpus / (2.0 * self.shape.active_parameters * self.scale)
