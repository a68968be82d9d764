"""vLLM V1 with what vtop has no option for: asynchronous scheduling, long-prefill caps, pauses, forced cache resets.

Numbers are those of V1's list in `presets/RULES.md`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.executor import StepOutput, StepPlan
from vtop.engine.presets.base import PresetOptions
from vtop.engine.presets.blocks import V1Blocks
from vtop.engine.presets.v1 import V1Scheduler
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.output import OutputProcessor

Pause = Literal["new", "all"]


@dataclass(frozen=True, slots=True)
class V1CaseOptions(PresetOptions):
    """With `adaptive_long_prefill` the threshold is at least an equal share of the token budget."""

    long_prefill_threshold: int = 0
    adaptive_long_prefill: bool = False
    asynchronous: bool = False


class FaithfulV1Blocks(V1Blocks):
    """Asynchronous: slots are taken for tokens that are not known yet; blocks with such tokens are not indexed."""

    def index_written(self, seq: Sequence, computed: int) -> list[int]:
        return super().index_written(seq, min(computed, seq.num_tokens))


class FaithfulV1(V1Scheduler):
    """`paused`: "new" admits nobody, "all" runs nothing, None is neither."""

    options: V1CaseOptions

    def __init__(
        self,
        config: EngineConfig,
        blocks: FaithfulV1Blocks,
        outputs: OutputProcessor,
        token_budget: int,
        options: V1CaseOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        self.paused: Pause | None = None
        self._in_flight: Counter[Sequence] = Counter()  # asynchronous: tokens scheduled to come, not known yet (15)
        self._discarded: set[Sequence] = set()  # their tokens in flight do not count

    @property
    def capacity(self) -> float:
        """The original ends no request because of the size of its pool."""
        return math.inf

    def schedule(self, now: float) -> StepPlan:
        if self.paused == "all":
            return self._plan(self._begin(now))
        plan = super().schedule(now)
        if self.options.asynchronous:
            for chunk in plan.chunks:
                seq = chunk.sequence
                seq.num_computed = chunk.start + chunk.num_tokens
                chunk.sample = seq.num_computed == seq.num_tokens + self._in_flight[seq]
                self._in_flight[seq] += chunk.sample
        return plan

    def _admit_waiting(self, step: StepPass) -> None:
        if self.paused is None:
            super()._admit_waiting(step)

    def _allowed(self, step: StepPass, seq: Sequence) -> int:
        coming = self._in_flight[seq]
        if coming and seq.num_output + coming >= (seq.request.params.max_tokens or self.options.max_model_len):
            return 0  # what is in flight is its last token
        return super()._allowed(step, seq)

    def _wanted(self, seq: Sequence, computed: int) -> int:
        """Long prefills get a chunk at a time, unless there is nobody else (3)."""
        tokens = super()._wanted(seq, computed) + self._in_flight[seq]
        cap = self.options.long_prefill_threshold
        everybody = len(self.running) + len(self.waiting)
        if cap and self.options.adaptive_long_prefill:
            cap = max(cap, self.token_budget // everybody)
        return min(tokens, cap) if cap and everybody > 1 else tokens

    def commit(self, plan: StepPlan, output: StepOutput) -> None:
        """As in the product; asynchronous, tokens count as computed already, and a request may have ended meanwhile."""
        if self.options.asynchronous:
            plan, output = self._arrived(plan, output)
        super().commit(plan, output)

    def _arrived(self, plan: StepPlan, output: StepOutput) -> tuple[StepPlan, StepOutput]:
        chunks, tokens = [], []
        for chunk, sampled in zip(plan.chunks, output.tokens, strict=True):
            seq = chunk.sequence
            if seq in self._discarded:
                sampled = None
            elif chunk.sample and self._in_flight[seq]:
                self._in_flight[seq] -= 1
            if not seq.request.finished:
                chunks.append(replace(chunk, start=seq.num_computed, num_tokens=0))
                tokens.append(sampled)
        self._discarded = set()
        return StepPlan(chunks), StepOutput(tokens)

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        message: str = "",
    ) -> None:
        super().finish(request, reason, stop_reason=stop_reason, message=message)
        self._in_flight.pop(request.sequences[0], None)

    def force_reset(self) -> None:
        """Preempt everybody, keeping their order, and forget all cached content (16)."""
        self._discarded = set(self._in_flight)  # tokens in flight are computed again
        self._in_flight.clear()
        for request in reversed(self.running.snapshot()):
            self._preempt(request, request, ev.PreemptCause.CACHE_RESET, None)
        self.reset_prefix_cache()
