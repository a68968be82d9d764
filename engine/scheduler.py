"""Scheduler: which sequences compute how many tokens in the next step, and what their tokens change.

The rules, in order (each step):
 1. time-outs end requests, whatever queue they are in;
 2. running requests, in policy order: each decode or next chunk gets blocks; when none is free, victims are
    taken by the victim rule until it fits or the request itself is the victim;
 3. waiting requests, in policy order, unless this step preempted: admit while sequences, tokens and blocks
    (need + watermark) allow; stop at the first that does not fit.
With batching = prefill-first, 3 comes before 2 and a step that computes prompts computes nothing else; after
`max_prefill_steps` such steps in a row the decodes have a turn.

A preempted request returns only when everything it must compute again fits at once, beside the blocks that running
requests take meanwhile. So it yields a token before it can be a victim again, and preemptions are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from vtop.engine import events as ev
from vtop.engine.block_manager import PrefixHit
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.request import Request, RequestStatus, Sequence
from vtop.engine.scheduler_core import SchedulerCore, StepPass


@dataclass(frozen=True, slots=True)
class _Offer:
    """What an admission would take: `need` blocks out of those available, beside `growth` for the running ones."""

    hit: PrefixHit
    need: int
    growth: int


class Scheduler(SchedulerCore):
    """The scheduler of preset `sensible`, with its switches."""

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. Block tables grow here; `num_computed` grows in `commit`."""
        self._expire(now)
        step = StepPass(now, self.token_budget)
        if self.config.batching == "prefill-first":
            self._prefill_first(step)
        else:
            self._run_running(step)
            self._admit_waiting(step)
        return self._plan(step)

    def _prefill_first(self, step: StepPass) -> None:
        running = self.running.snapshot()
        begun = [r for r in running if any(seq.num_computed < seq.num_tokens - 1 for seq in r.sequences)]
        decodes_wait = len(begun) < len(running)
        bound = self.config.max_prefill_steps
        if decodes_wait and bound and self._prefill_streak >= bound:
            self._prefill_streak = 0
            head = self.waiting.peek()
            if head is not None:
                self._tell_wait(step, head, ev.DecodesFirst(bound))
            self._run_running(step, [r for r in running if r not in begun])
            return
        self._run_running(step, begun)
        self._admit_waiting(step)
        if step.chunks:
            self._prefill_streak += decodes_wait
        else:
            self._prefill_streak = 0
            self._run_running(step)

    def _run_running(self, step: StepPass, only: list[Request] | None = None) -> None:
        """Give tokens and blocks to running requests, in policy order."""
        requests = self.running.snapshot() if only is None else only
        block_size = self.blocks.block_size
        # a chunk leaves one token of the budget to every decode that comes after it
        decodes = sum(seq.num_tokens - seq.num_computed == 1 for r in requests for seq in r.sequences)
        reserve = decodes if decodes < sum(len(r.sequences) for r in requests) else 0
        for request in requests:
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted earlier in this pass
            for seq in request.sequences:
                start = seq.num_computed
                tokens = len(seq.token_ids) - start
                if tokens == 1:
                    reserve = max(0, reserve - 1)
                    allowed = step.left
                else:
                    allowed = step.left - reserve
                if allowed <= 0:
                    step.limit = ev.Limit.BUDGET
                    self._tell_skipped(request, ev.NeedsBudget(tokens, step.left, self.token_budget))
                    continue
                tokens = min(tokens, allowed)
                end = start + tokens
                if end > len(seq.blocks) * block_size and not self._make_room(step, request, seq, end):
                    break
                step.add(request, Chunk(seq, start, tokens, end == len(seq.token_ids)))

    def _make_room(self, step: StepPass, request: Request, seq: Sequence, tokens: int) -> bool:
        """Grow a block table, preempting where needed; false when the request itself had to give way."""
        while self.blocks.missing(seq, tokens) > self.blocks.pool.available:
            victim = self.victim_rule.choose(self.running.snapshot(), request)
            self._preempt(victim, request, ev.PreemptCause.NO_FREE_BLOCK, step)
            if victim is request:
                return False
        self._grow(seq, tokens)
        return True

    def _admit_waiting(self, step: StepPass) -> None:
        """Admit waiting requests, in policy order, until one does not fit."""
        while (head := self.waiting.peek()) is not None:
            watermark = int(self.config.watermark * self.blocks.pool.total) if len(self.running) else 0
            offer = self._offer(head, step.left)
            reason = self._why_not(step, head, offer, watermark)
            if reason is not None and offer.hit.copy_last:
                offer = self._offer(head, step.left, copy=False)
                reason = self._why_not(step, head, offer, watermark)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            self._admit(step, head, offer, watermark)

    def _admit(self, step: StepPass, head: Request, offer: _Offer, watermark: int) -> None:
        """From waiting to running, with blocks and the first chunk."""
        seq, hit = head.sequences[0], offer.hit
        free = self.blocks.pool.available
        resumed = head.admissions > 0
        self.waiting.remove(head)
        head.status = RequestStatus.RUNNING
        head.admissions += 1
        head.admitted_serial = self._admissions
        self._admissions += 1
        if head.first_scheduled is None:
            head.first_scheduled = step.now
        self.running.add(head)
        self._told_wait = None
        self._events.append(ev.Admitted(head.request_id, head.admitted_serial, resumed, offer.need, free, watermark))
        if self.blocks.prefix_caching:
            blocks = len(hit.blocks)
            self._events.append(ev.PrefixLookup(head.request_id, seq.num_tokens, hit.tokens, blocks, resumed))
        if hit.blocks:
            self._adopt(step, seq, hit)
        tokens = min(seq.num_tokens - hit.tokens, step.left)
        end = hit.tokens + tokens
        whole = resumed or self.config.admission == "reserve-full-prompt"
        self._grow(seq, seq.num_tokens if whole else end)
        step.add(head, Chunk(seq, hit.tokens, tokens, end == seq.num_tokens))

    def _offer(self, head: Request, left: int, copy: bool = True) -> _Offer:
        """What admitting a request takes: the blocks for it, and those for the growth of the ones that run."""
        seq = head.sequences[0]
        hit = self.blocks.match(seq)
        if hit.copy_last and not copy:
            hit = self.blocks.without_copy(hit)
        have, cost = len(hit.blocks), self.blocks.cost(hit)
        tokens = seq.num_tokens
        if head.admissions == 0:
            whole = self.config.admission == "reserve-full-prompt"
            end = tokens if whole else min(tokens, hit.tokens + max(left, 1))
            return _Offer(hit, self.blocks.blocks_for(end) - have + cost, 0)
        # one slot beyond, so that it does not come back only to need a block for its very next token
        whole_need = min(self.blocks.blocks_for(tokens + 1), self.blocks.pool.total)
        steps = -(-(tokens - hit.tokens) // self.token_budget) + 1
        growth = sum(
            self.blocks.missing(other, min(other.num_tokens + steps, request.limit))
            for request in self.running
            for other in request.sequences
        )
        return _Offer(hit, whole_need - have + cost, growth)

    def _why_not(self, step: StepPass, head: Request, offer: _Offer, watermark: int) -> ev.WaitReason | None:
        """Why the head of the queue cannot be admitted now; None when it can."""
        if step.victim is not None:
            return ev.AfterPreemption(step.victim.request_id)
        if self.running.seats + len(head.sequences) > self.config.max_num_seqs:
            return ev.NeedsSeat(self.config.max_num_seqs)
        tokens = head.sequences[0].num_tokens - offer.hit.tokens
        whole = self.config.batching == "prefill-first" and tokens <= self.token_budget
        if step.left < (tokens if whole else 1):
            return ev.NeedsBudget(tokens, step.left, self.token_budget)
        available = self.blocks.pool.available
        if offer.need + offer.growth + watermark > available:
            return ev.NeedsBlocks(offer.need, available, watermark, offer.growth)
        return None
