"""V0Core: what both of vLLM V0's schedulers do: admission, the pass over running requests, swaps.

Numbers are those of `RULES.md`. Schedulers differ in the order of these (`v0.py`,
`v0_chunked.py`).
"""

from __future__ import annotations

from collections import deque

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.presets.groups import seats_of
from vtop.engine.presets.options import PresetOptions
from vtop.engine.presets.v0_blocks import Room, V0Blocks
from vtop.engine.presets.v0_swap import V0Pass, V0Swapping
from vtop.engine.request import FinishReason, Request
from vtop.engine.sched.output import OutputProcessor


class V0Core(V0Swapping):
    """The rules that do not depend on chunking."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: V0Blocks,
        outputs: OutputProcessor,
        token_budget: int,
        options: PresetOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        blocks.half_full, blocks.faithful = options.half_full_needs_block, options.faithful
        self._serial = 0  # of steps
        self._last_prompt_step: float | None = None  # when the latest step with prompts was decided, if it just was
        self._prompt_seconds = 0.0

    # --- admission ---------------------------------------------------------------------------------------------------

    def _admit(self, step: V0Pass) -> None:
        """Admit the heads of waiting until one does not fit: nobody passes it (10)."""
        limit = self.options.max_model_len
        if not self.options.chunked:
            limit = min(limit, self.token_budget)
        while self._delay_is_over(step) and (head := self._next_waiting(step)) is not None:
            self.concerns = head
            tokens, cached = self._wanted(step, head, self.options.chunked)
            room = self.blocks.room_for(self._blocks_of_prompt(head), self.options.watermark_blocks)
            if tokens + cached > limit:
                reason_code = FinishReason.CAPACITY if head.admissions else FinishReason.REFUSED
                self._ignore(head, reason_code, f"{tokens + cached} tokens; at most {limit} are computed in one step")
            elif tokens > self.token_budget:  # a group that forked comes back in one piece
                self._ignore(head, FinishReason.CAPACITY, f"{tokens} tokens in one step; the budget is smaller")
            elif room is Room.NEVER:
                self._ignore(head, FinishReason.CAPACITY, self._too_large(head))
            elif (reason := self._why_not(step, head, tokens, room)) is not None:
                self._tell_wait(step, head, reason)
                return
            else:
                self._place(step, head, tokens, cached)

    def _next_waiting(self, step: V0Pass) -> Request | None:
        return self.waiting.peek()

    def _place(self, step: V0Pass, head: Request, tokens: int, cached: int) -> None:
        """Admit: all blocks of the prompt are taken, also for a first chunk (11)."""
        need = self._blocks_of_prompt(head)
        resumed = head.admissions > 0
        self._start(head, step, need, self.options.watermark_blocks)
        for seq in head.computing:
            change = self.blocks.allocate(seq)
            if self.blocks.looks_up(seq) and seq.index == 0:
                shared = len(change.taken) - len(change.hashed)
                self._events.append(ev.PrefixLookup(head.request_id, seq.num_tokens, cached, shared, resumed))
            self._tell_change(step, seq, change)
            seq.num_computed = cached
        step.admitted.append(head)
        self._compute(step, head, tokens)
        step.seats += seats_of(head)

    def _delay_is_over(self, step: V0Pass) -> bool:
        """With a delay factor, prompts are held back to let a batch gather, unless nothing runs (12)."""
        if self._last_prompt_step is not None:
            self._prompt_seconds = step.now - self._last_prompt_step
            self._last_prompt_step = None
        factor = self.options.delay_factor
        idle = not (step.unreached if self.options.chunked else len(self.running))
        if factor <= 0 or idle or not self.waiting:
            return True
        oldest = min(request.arrival for request in self.waiting.ordered())
        return step.now - oldest > factor * self._prompt_seconds

    # --- running -----------------------------------------------------------------------------------------------------

    def _run_running(self, step: V0Pass) -> None:
        """Running requests in order; the tail gives way when one has no room to append (13, 14)."""
        queue = deque(self.running.snapshot())
        while queue:
            request = self.concerns = queue[0]
            tokens, _ = self._wanted(step, request, self.options.chunked)
            if tokens <= 0 or tokens > step.left:
                step.limit = ev.Limit.BUDGET
                break
            queue.popleft()
            while not self.blocks.can_append(request.computing, self._lookahead(request)):
                victim = queue.pop() if queue else request
                step.gave_way = True
                self._give_way(step, victim, request)
                if victim is request:
                    break
            else:
                decode = self.blocks.decodes(request.computing[0])
                self._append(step, request)
                (step.decodes if decode else step.prefills).append(request)
                self._compute(step, request, tokens)
                step.reached += seats_of(request)
        step.unreached = list(queue)

    # --- the decided step --------------------------------------------------------------------------------------------

    def _decided(self, step: V0Pass, running: list[Request], batch: list[Request]) -> StepPlan:
        """The plan, with the batch in this order; `running` is the new order of that queue."""
        self._arrange(running)
        step.chunks = {request: step.chunks[request] for request in batch}
        plan = self._plan(step)
        if step.admitted:
            self._last_prompt_step = step.now
        self._serial += 1
        if self.blocks.prefix_caching:
            self.blocks.decided([chunk.sequence for chunk in plan.chunks], self._serial)
        return plan

    def _written(self, chunk: Chunk) -> None:
        super()._written(chunk)
        if self.blocks.prefix_caching:
            self.blocks.written(chunk.sequence)
