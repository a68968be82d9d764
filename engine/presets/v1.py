"""V1Scheduler: the rules of vLLM V1. Numbers are those of its list in `RULES.md`."""

from __future__ import annotations

from vtop.engine import events as ev
from vtop.engine.blocks.manager import PrefixHit
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.presets.base import PresetScheduler
from vtop.engine.request import FinishReason, Key, Request, RequestStatus, Sequence
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.preemption import Choice


class V1Scheduler(PresetScheduler):
    """No phases: everybody wants known tokens - computed ones (1).

    Running requests come first, in list order; when no block is free, the tail (by priority: the least urgent) loses
    its K/V and waits in front (2-5). Waiting ones follow unless somebody was preempted, each with its prefix hit, until
    one does not fit (6-9). Blocks can be hit as soon as they are scheduled, by later prompts of the same step too (10).
    """

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step."""
        step = self._begin(now)
        self._run_running(step)
        self._admit_waiting(step)
        return self._plan(step)

    # --- who runs ----------------------------------------------------------------------------------------------------

    def _run_running(self, step: StepPass) -> None:
        """Running requests in list order, each with as many tokens as the budget allows (2)."""
        for request in self.running.snapshot():
            if request.status is not RequestStatus.RUNNING or step.left <= 0:
                continue
            self.concerns = request
            seq = request.sequences[0]
            tokens = self._allowed(step, seq)
            if tokens <= 0:
                continue  # the next one may want less (2)
            if self._make_room(step, request, seq.num_computed + tokens):
                self._compute(step, seq, tokens)
            elif self.options.own_victim_ends_pass:
                return  # even if somebody more urgent comes behind (5)

    def _allowed(self, step: StepPass, seq: Sequence) -> int:
        """Tokens that a running sequence gets (2)."""
        start = seq.num_computed
        return min(self._wanted(seq, start), step.left, self.options.max_model_len - start - 1)

    def _wanted(self, seq: Sequence, computed: int) -> int:
        """Tokens that a sequence wants in one step, when so many are computed (1)."""
        return seq.num_tokens - computed

    def _make_room(self, step: StepPass, request: Request, tokens: int) -> bool:
        """Preempt until the request has slots for so many tokens; false when it was the victim itself (4)."""
        seq = request.sequences[0]
        while self.blocks.missing(seq, tokens) > self.blocks.pool.available:
            running = self.running.snapshot()
            victim = max(running, key=lambda r: (r.priority, r.arrival)) if self.options.priority else running[-1]
            self._preempt(victim, request, ev.PreemptCause.NO_FREE_BLOCK, step)
            if victim is request:
                return False
        return True

    def _compute(self, step: StepPass, seq: Sequence, tokens: int) -> None:
        """Put the sequence into the batch; its full blocks can be hit from now on (10)."""
        start, end = seq.num_computed, seq.num_computed + tokens
        self._grow(seq, end)
        new = self.blocks.index_written(seq, end)
        if new:
            self._events.append(ev.Cached(seq.request.request_id, new, seq.index))
        step.add(seq.request, Chunk(seq, start, tokens, end == seq.num_tokens))

    # --- who is admitted ---------------------------------------------------------------------------------------------

    def _admit_waiting(self, step: StepPass) -> None:
        """Admit the heads of waiting, each with its prefix hit, until one does not fit (7, 8)."""
        while (head := self.waiting.peek()) is not None:
            self.concerns = head
            seq = head.sequences[0]
            hit = self.blocks.match(seq)
            tokens = self._wanted(seq, hit.tokens)
            chunk = min(tokens, step.left)
            whole = seq.num_tokens if self.options.reserve_full_prompt else hit.tokens + chunk
            need = self.blocks.blocks_for(whole) - len(hit.blocks) + self.blocks.cost(hit)
            watermark = self.options.watermark_blocks if len(self.running) else 0
            reason = self._wait_reason(step, tokens, need, watermark)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            self._start(head, step, need, watermark)
            self._take_hit(step, seq, hit)
            self._compute(step, seq, chunk)

    def _wait_reason(self, step: StepPass, tokens: int, need: int, watermark: int) -> ev.WaitReason | None:
        """Why a request that takes so many tokens and blocks is not admitted now; None when it is."""
        if step.victim is not None:
            return ev.AfterPreemption(step.victim.request_id)  # (6)
        if len(self.running) >= self.config.max_num_seqs:
            return ev.NeedsSeat(self.config.max_num_seqs)
        if step.left < (1 if self.options.chunked else tokens) or step.left <= 0:
            return ev.NeedsBudget(tokens, step.left, self.token_budget)  # (9)
        if need + watermark > self.blocks.pool.available:
            return self._needs_blocks(need, watermark)
        return None

    def _take_hit(self, step: StepPass, seq: Sequence, hit: PrefixHit) -> None:
        if self.blocks.looks_up(seq):
            resumed, request = seq.request.admissions > 1, seq.request
            blocks = len(hit.blocks)
            self._events.append(ev.PrefixLookup(request.request_id, seq.num_tokens, hit.tokens, blocks, resumed))
        if hit.blocks:
            self._adopt(step, seq, hit)

    # --- places, and what leaves -------------------------------------------------------------------------------------

    def _arrival_key(self, request: Request) -> Key:
        if self.options.priority:
            return (request.priority, request.arrival, request.number)
        return super()._arrival_key(request)

    def _returning_key(self, request: Request) -> Key:
        """In front of all who wait, or in its place of a priority queue (4)."""
        return self._arrival_key(request) if self.options.priority else super()._returning_key(request)

    def _preempt(
        self,
        victim: Request,
        beneficiary: Request,
        cause: ev.PreemptCause,
        step: StepPass | None,
        choice: Choice | None = None,
        pool_after: int | None = None,
    ) -> None:
        self._forget_unwritten(victim.sequences[0])
        super()._preempt(victim, beneficiary, cause, step, choice, pool_after)

    def fail(self, plan: StepPlan, message: str) -> list[Request]:
        for chunk in plan.chunks:
            self._forget_unwritten(chunk.sequence)
        return super().fail(plan, message)

    def _leave(self, request: Request, reason: FinishReason, stop_reason: str | int | None, message: str) -> None:
        self._forget_unwritten(request.sequences[0])  # of a request that failed by a fault of its own
        super()._leave(request, reason, stop_reason, message)

    def _forget_unwritten(self, seq: Sequence) -> None:
        """Blocks can be hit from their scheduling on (10); those that are not going to be written can no longer."""
        promised = seq.blocks[seq.num_computed // self.blocks.block_size : seq.num_indexed]
        index = self.blocks.pool.index
        gone = [(block, key) for block in promised if (key := index.drop(block)) is not None]
        if gone:
            hashes = [key.hash for _, key in gone]
            self._events.append(ev.Evicted([block for block, _ in gone], hashes, [self.now] * len(gone)))
