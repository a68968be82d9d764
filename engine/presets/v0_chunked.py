"""V0ChunkedScheduler: vLLM V0 with chunked prefill. Numbers are those of V0's list in `RULES.md`."""

from __future__ import annotations

from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.executor import StepPlan
from vtop.engine.presets.base import PresetOptions
from vtop.engine.presets.v0 import V0Scheduler, V0Step
from vtop.engine.request import Key, Request
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.output import OutputProcessor


class V0ChunkedScheduler(V0Scheduler):
    """Running requests first, in queue order; then swapped ones unless somebody was preempted; then prompts (3).

    Each pass is V0Scheduler's. Victims of the step join waiting only when it is decided, so admission goes on behind
    them.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        outputs: OutputProcessor,
        token_budget: int,
        options: PresetOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        self._put_aside: list[Request] = []  # victims that join waiting when the step is decided

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step."""
        self._begin(now)
        step = self.deciding = V0Step(now, self.token_budget)
        self._run_running(step)
        step.sequences = step.reached  # those that the budget did not reach do not count against the cap
        if not step.preempted:
            self._return_swapped(step)
        self._admit(step)
        self._requeue_victims()
        batch = step.admitted + step.prefills + step.returned_prefills + step.decodes + step.returned_decodes
        order = step.unreached + step.returned_decodes + step.returned_prefills + step.decodes
        ends = [request for request in step.prefills if step.chunks[request][0].sample]
        order += ends + [request for request in step.prefills if request not in ends]
        return self._decided(step, order + step.admitted, batch)

    def _chunk(self, tokens: int, left: int) -> int:
        """As many as are left, with the prefix cache up to a block border (26)."""
        if self.blocks.prefix_caching:
            left = left // self.blocks.block_size * self.blocks.block_size
        return min(tokens, left)

    # --- victims -----------------------------------------------------------------------------------------------------

    def _returning_key(self, request: Request) -> Key:
        """In front of the step's other victims too."""
        key = super()._returning_key(request)
        front = min((r.key[0] for r in self._put_aside), default=None)
        return key if front is None or key[0] < front else (front - 1,)

    def _requeue(self, victim: Request, step: StepPass | None) -> None:
        if step is None:
            self.waiting.push(victim)
        else:
            self._put_aside.append(victim)

    def _requeue_victims(self) -> None:
        for request in self._put_aside:
            self.waiting.push(request)
        self._put_aside = []

    def _undo(self, step: StepPass, at: Request | None) -> None:
        super()._undo(step, at)
        self._requeue_victims()
