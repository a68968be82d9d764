"""V1Core: places in V1's queues, and what must be undone when a request leaves or a step fails.

Numbers are those of `RULES.md`.
"""

from __future__ import annotations

from collections import Counter

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.executor import Chunk, StepOutput, StepPlan
from vtop.engine.order import Key
from vtop.engine.presets.base import PresetScheduler
from vtop.engine.presets.options import PresetOptions
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.output import OutputProcessor
from vtop.engine.sched.preemption import Choice


class V1Core(PresetScheduler):
    """Preemption is always by recomputation; blocks are promised to the prefix cache before they are written."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        outputs: OutputProcessor,
        token_budget: int,
        options: PresetOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        self._flying: Counter[Sequence] = Counter()  # asynchronous: tokens scheduled to come, not known yet (15)
        self._discarded: set[Sequence] = set()  # their tokens in flight do not count

    # --- places, and what leaves -------------------------------------------------------------------------------------

    @property
    def _by_priority(self) -> bool:
        return self.options.priority

    def _arrival_key(self, request: Request) -> Key:
        if self._by_priority:
            return (request.priority, request.arrival, request.number)
        return super()._arrival_key(request)

    def _returning_key(self, request: Request) -> Key:
        return self._arrival_key(request) if self._by_priority else super()._returning_key(request)

    def _preempt(
        self,
        victim: Request,
        needy: Request,
        cause: ev.PreemptCause,
        step: StepPass | None,
        choice: Choice | None = None,
        pool_after: int | None = None,
    ) -> None:
        self._forget_unwritten(victim.sequences[0])
        super()._preempt(victim, needy, cause, step, choice, pool_after)

    def fail(self, plan: StepPlan, message: str) -> list[Request]:
        for chunk in plan.chunks:
            self._forget_unwritten(chunk.sequence)
        return super().fail(plan, message)

    def _forget_unwritten(self, seq: Sequence) -> None:
        """Blocks count as cached from their scheduling on; those that are not going to be written do no longer."""
        promised = seq.blocks[seq.num_computed // self.blocks.block_size : seq.num_indexed]
        index = self.blocks.pool.index
        gone = [(block, key) for block in promised if (key := index.drop(block)) is not None]
        if gone:
            hashes = [key.hash for _, key in gone]
            self._events.append(ev.Evicted([block for block, _ in gone], hashes, [self.now] * len(gone)))

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        message: str = "",
    ) -> None:
        super().finish(request, reason, stop_reason=stop_reason, message=message)
        self._flying.pop(request.sequences[0], None)

    def force_reset(self) -> None:
        """Preempt everybody, keeping their order, and forget all cached content (16)."""
        self._discarded = set(self._flying)  # tokens in flight are computed again
        self._flying.clear()
        for request in reversed(self.running.snapshot()):
            self._preempt(request, request, ev.PreemptCause.CACHE_RESET, None)
        self.reset_prefix_cache()

    def commit(self, plan: StepPlan, output: StepOutput) -> None:
        for index, chunk in enumerate(plan.chunks):
            if chunk.sequence in self._discarded:
                output.tokens[index] = None
            elif chunk.sample and self._flying[chunk.sequence]:
                self._flying[chunk.sequence] -= 1
        self._discarded = set()
        super().commit(plan, output)

    def _written(self, chunk: Chunk) -> None:
        if not self.options.asynchronous:
            super()._written(chunk)
