"""V1Scheduler: the rules of vLLM V1. Numbers are those of `RULES.md`."""

from __future__ import annotations

from vtop.engine import events as ev
from vtop.engine.blocks.manager import PrefixHit
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.presets.v1_core import V1Core
from vtop.engine.request import Request, RequestStatus, Sequence
from vtop.engine.sched.changes import StepPass


class V1Scheduler(V1Core):
    """No phases: everybody wants known tokens - computed ones (1).

    Running requests come first, in list order; when no block is free, the tail (by priority: the least urgent) loses
    its K/V and waits in front (2-5). Waiting ones follow unless somebody was preempted, each with its prefix hit, until
    one does not fit (6-9). Blocks can be hit as soon as they are scheduled, by later prompts of the same step too (10).
    """

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step."""
        step = self._begin(now)
        if self.paused == "all":
            return self._plan(step)
        self._run_running(step)
        if self.paused is None:
            self._admit_waiting(step)
        plan = self._plan(step)
        if self.options.asynchronous:
            for chunk in plan.chunks:
                chunk.sequence.num_computed = chunk.start + chunk.num_tokens
                self._flying[chunk.sequence] += chunk.sample
        return plan

    # --- who runs ----------------------------------------------------------------------------------------------------

    def _run_running(self, step: StepPass) -> None:
        for request in self.running.snapshot():
            if request.status is not RequestStatus.RUNNING or step.left <= 0:
                continue
            self.concerns = request
            seq = request.sequences[0]
            tokens = self._wanted(step, seq)
            if tokens <= 0:
                continue  # the next one may want less (2)
            end = seq.num_computed + tokens
            if self._make_room(step, request, end):
                self._compute(step, seq, tokens)
            elif self.options.own_victim_ends_pass:
                return  # (5): even if somebody more urgent comes behind

    def _wanted(self, step: StepPass, seq: Sequence) -> int:
        flying, start = self._flying[seq], seq.num_computed
        if flying and seq.num_output + flying >= (seq.request.params.max_tokens or self.options.max_model_len):
            return 0  # what is in flight is its last token
        want = self._capped(seq.num_tokens + flying - start)
        return min(want, step.left, self.options.max_model_len - start - 1)

    def _capped(self, tokens: int) -> int:
        """Long prefills get a chunk at a time, unless there is nobody else (3)."""
        cap = self.options.long_prefill_threshold
        others = len(self.running) + len(self.waiting)
        if cap and self.options.adaptive_long_prefill:
            cap = max(cap, self.token_budget // others)
        return min(tokens, cap) if cap and others > 1 else tokens

    def _make_room(self, step: StepPass, request: Request, tokens: int) -> bool:
        """Preempt until the request has slots for so many tokens; false when it was the victim itself (4)."""
        seq = request.sequences[0]
        while self.blocks.missing(seq, tokens) > self.blocks.pool.available:
            running = self.running.snapshot()
            by_priority = self._by_priority
            victim = max(running, key=lambda r: (r.priority, r.arrival)) if by_priority else running[-1]
            self._preempt(victim, request, ev.PreemptCause.NO_FREE_BLOCK, step)
            if victim is request:
                return False
        return True

    def _compute(self, step: StepPass, seq: Sequence, tokens: int) -> None:
        start, end = seq.num_computed, seq.num_computed + tokens
        self._grow(seq, end)
        new = self.blocks.index_written(seq, min(end, seq.num_tokens))
        if new:
            self._events.append(ev.Cached(seq.request.request_id, new, seq.index))
        step.add(seq.request, Chunk(seq, start, tokens, end == seq.num_tokens + self._flying[seq]))

    # --- who is admitted ---------------------------------------------------------------------------------------------

    def _admit_waiting(self, step: StepPass) -> None:
        while (head := self.waiting.peek()) is not None:
            self.concerns = head
            seq = head.sequences[0]
            hit = self.blocks.match(seq)
            tokens = self._capped(seq.num_tokens + self._flying[seq] - hit.tokens)
            chunk = min(tokens, step.left)
            whole = seq.num_tokens if self.options.reserve_full_prompt else hit.tokens + chunk
            need = self.blocks.blocks_for(whole) - len(hit.blocks) + self.blocks.cost(hit)
            watermark = self.options.watermark_blocks if len(self.running) else 0
            reason = self._why_not(step, tokens, need, watermark)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            self._start(head, step, need, watermark)
            self._take_hit(step, seq, hit)
            self._compute(step, seq, chunk)

    def _why_not(self, step: StepPass, tokens: int, need: int, watermark: int) -> ev.WaitReason | None:
        if step.victim is not None:
            return ev.AfterPreemption(step.victim.request_id)
        seats = min(self.config.max_num_seqs, self.options.max_active_seqs or self.config.max_num_seqs)
        if len(self.running) >= seats:
            return ev.NeedsSeat(seats)
        if step.left < (1 if self.options.chunked else tokens) or step.left <= 0:
            return ev.NeedsBudget(tokens, step.left, self.token_budget)
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
