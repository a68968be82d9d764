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

import heapq
from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.block_manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.executor import Chunk, StepOutput, StepPlan
from vtop.engine.output_processor import OutputProcessor
from vtop.engine.policies import make_policy
from vtop.engine.preemption import make_preemption_mode, make_victim_rule
from vtop.engine.queues import HeapQueue, RunningList, WaitingQueue
from vtop.engine.request import FinishReason, Request, RequestStatus, Sequence

_LIMITS: dict[type[ev.Reason], ev.Limit] = {
    ev.NeedsBlocks: ev.Limit.BLOCKS,
    ev.NeedsBudget: ev.Limit.BUDGET,
    ev.NeedsSeat: ev.Limit.SEQS,
    ev.AfterPreemption: ev.Limit.PREEMPTED,
    ev.DecodesFirst: ev.Limit.DECODES,
}


@dataclass(slots=True)
class _Pass:
    """What one call of `schedule` has decided so far."""

    now: float
    left: int  # tokens left of the budget
    chunks: dict[Request, list[Chunk]] = field(default_factory=dict)
    victim: Request | None = None  # the first one preempted in this pass
    limit: ev.Limit = ev.Limit.NONE

    def add(self, request: Request, chunk: Chunk) -> None:
        self.left -= chunk.num_tokens
        self.chunks.setdefault(request, []).append(chunk)

    def give_back(self, request: Request) -> None:
        self.left += sum(chunk.num_tokens for chunk in self.chunks.pop(request, ()))


class Scheduler:
    """Decides, and tells each decision as an event through `take_events`. Knows no model and no clock."""

    def __init__(self, config: EngineConfig, blocks: BlockManager, outputs: OutputProcessor, token_budget: int) -> None:
        self.config = config
        self.blocks = blocks
        self.token_budget = token_budget
        self.policy = make_policy(config.scheduling_policy)
        self.victim_rule = make_victim_rule(config.victim)
        self.preemption_mode = make_preemption_mode(config.preemption_mode)
        self.waiting: WaitingQueue = HeapQueue()
        self.running = RunningList()
        self._outputs = outputs
        self._deadlines: list[tuple[float, int, Request]] = []
        self._events: list[ev.AnyEvent] = []
        self._admissions = 0
        self._prefill_streak = 0
        self._told_wait: tuple[str, type[ev.Reason], int] | None = None
        self._told_skipped: set[Request] = set()

    # --- between steps -------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a new request."""
        request.key = self.policy.key(request)
        self.waiting.push(request)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.number, request))
        params = request.params
        self._events.append(
            ev.Arrived(
                id=request.request_id,
                number=request.number,
                key=request.key,
                arrival=request.arrival,
                prompt_tokens=request.prompt_len,
                limit=request.limit,
                max_tokens=params.max_tokens,
                prompt=request.prompt,
                priority=request.priority,
                group=request.group,
                deadline=request.deadline,
                temperature=params.temperature,
                seed=request.seed,
            )
        )

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        message: str = "",
    ) -> None:
        """End an alive request in whatever state; its blocks return at once."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._told_skipped.discard(request)
        for seq in request.sequences:
            self._tell_freed(seq, self.blocks.free(seq))
        request.status = RequestStatus.FINISHED
        request.finish_reason, request.stop_reason, request.finish_message = reason, stop_reason, message
        self._events.append(
            ev.Finished(
                id=request.request_id,
                reason=reason.value,
                output_tokens=sum(seq.num_output for seq in request.sequences),
                text=self._outputs.close(request),
                stop_reason=stop_reason,
                message=message,
            )
        )

    def resize(self, num_blocks: int) -> list[Request]:
        """Change the size of the pool. Holders of blocks beyond it are preempted; returns requests that never fit."""
        before = self.blocks.pool.total
        for request in self.running.snapshot():
            if self.blocks.holds_beyond(request, num_blocks):
                self._preempt(request, request, ev.PreemptCause.POOL_RESIZED, None)
        self.blocks.pool.resize(num_blocks)
        self._events.append(ev.PoolResized(before, num_blocks))
        alive = self.running.snapshot() + self.waiting.ordered()
        return [r for r in alive if not all(self.blocks.ever_fits(seq.num_tokens) for seq in r.sequences)]

    def take_events(self) -> list[ev.AnyEvent]:
        """Events since the last call, in order."""
        taken, self._events = self._events, []
        return taken

    def note(self, event: ev.AnyEvent) -> None:
        """Tell an event of the engine in order with the scheduler's own."""
        self._events.append(event)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    # --- a step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. Block tables grow here; `num_computed` grows in `commit`."""
        self._expire(now)
        step = _Pass(now, self.token_budget)
        if self.config.batching == "prefill-first":
            self._prefill_first(step)
        else:
            self._run_running(step)
            self._admit_waiting(step)
        return self._plan(step)

    def commit(self, plan: StepPlan, output: StepOutput) -> None:
        """Take the result of a plan: K/V are written, tokens appended, requests ended."""
        ids: list[str] = []
        seqs: list[int] = []
        tokens: list[int] = []
        texts: list[str] = []
        ended: list[tuple[Request, FinishReason, str | int | None, str]] = []
        several = False
        capacity = self.blocks.pool.total * self.blocks.block_size
        accept = self._outputs.accept
        for chunk, sampled in zip(plan.chunks, output.tokens, strict=True):
            seq = chunk.sequence
            seq.num_computed = chunk.start + chunk.num_tokens
            if sampled is None:
                continue
            request = seq.request
            seq.token_ids.append(sampled.token_id)
            accepted = accept(seq, sampled)
            ids.append(request.request_id)
            seqs.append(seq.index)
            tokens.append(sampled.token_id)
            texts.append(accepted.text)
            several = several or seq.index > 0
            if accepted.finish is not None:
                ended.append((request, accepted.finish, accepted.stop_reason, ""))
            elif len(seq.token_ids) > capacity:
                ended.append((request, FinishReason.CAPACITY, None, self._capacity_message(seq)))
        if ids:
            self._events.append(ev.Tokens(ids, tokens, texts, seqs if several else []))
        for request, reason, stop_reason, message in ended:
            self.finish(request, reason, stop_reason=stop_reason, message=message)

    def fail(self, plan: StepPlan, message: str) -> list[Request]:
        """The executor raised: the requests of the batch end, everybody else goes on. Returns those ended."""
        failed = list(dict.fromkeys(chunk.sequence.request for chunk in plan.chunks))
        for request in failed:
            self.finish(request, FinishReason.FAILED, message=message)
        return failed

    def _expire(self, now: float) -> None:
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].finished):
            deadline, _, request = heapq.heappop(self._deadlines)
            if not request.finished:
                waited = deadline - request.arrival
                self.finish(request, FinishReason.TIMEOUT, message=f"not done {waited:g} s after it arrived")

    def _prefill_first(self, step: _Pass) -> None:
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

    def _run_running(self, step: _Pass, only: list[Request] | None = None) -> None:
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

    def _make_room(self, step: _Pass, request: Request, seq: Sequence, tokens: int) -> bool:
        """Grow a block table, preempting where needed; false when the request itself had to give way."""
        while self.blocks.missing(seq, tokens) > self.blocks.pool.free:
            victim = self.victim_rule.choose(self.running.snapshot(), request)
            self._preempt(victim, request, ev.PreemptCause.NO_FREE_BLOCK, step)
            if victim is request:
                return False
        self._grow(seq, tokens)
        return True

    def _admit_waiting(self, step: _Pass) -> None:
        """Admit waiting requests, in policy order, until one does not fit."""
        while (head := self.waiting.peek()) is not None:
            seq = head.sequences[0]
            resumed = head.admissions > 0
            need, growth = self._admission_need(seq, resumed, step.left)
            watermark = int(self.config.watermark * self.blocks.pool.total) if len(self.running) else 0
            reason = self._why_not(step, head, need, growth, watermark)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            free = self.blocks.pool.free
            self.waiting.remove(head)
            head.status = RequestStatus.RUNNING
            head.admissions += 1
            head.admitted_serial = self._admissions
            self._admissions += 1
            if head.first_scheduled is None:
                head.first_scheduled = step.now
            self.running.add(head)
            self._told_wait = None
            self._events.append(ev.Admitted(head.request_id, head.admitted_serial, resumed, need, free, watermark))
            tokens = min(seq.num_tokens, step.left)
            whole = resumed or self.config.admission == "reserve-full-prompt"
            self._grow(seq, seq.num_tokens if whole else tokens)
            step.add(head, Chunk(seq, 0, tokens, tokens == seq.num_tokens))

    def _admission_need(self, seq: Sequence, resumed: bool, left: int) -> tuple[int, int]:
        """Blocks that must be free to admit: for the request, and for the growth of those that run."""
        tokens = seq.num_tokens
        if not resumed:
            whole = self.config.admission == "reserve-full-prompt"
            return self.blocks.blocks_for(tokens if whole else min(tokens, max(left, 1))), 0
        # one slot beyond, so that it does not come back only to need a block for its very next token
        need = min(self.blocks.blocks_for(tokens + 1), self.blocks.pool.total)
        steps = -(-tokens // self.token_budget) + 1
        growth = sum(
            self.blocks.missing(other, min(other.num_tokens + steps, request.limit))
            for request in self.running
            for other in request.sequences
        )
        return need, growth

    def _why_not(self, step: _Pass, head: Request, need: int, growth: int, watermark: int) -> ev.WaitReason | None:
        """Why the head of the queue cannot be admitted now; None when it can."""
        if step.victim is not None:
            return ev.AfterPreemption(step.victim.request_id)
        if self.running.seats + len(head.sequences) > self.config.max_num_seqs:
            return ev.NeedsSeat(self.config.max_num_seqs)
        tokens = head.sequences[0].num_tokens
        whole = self.config.batching == "prefill-first" and tokens <= self.token_budget
        if step.left < (tokens if whole else 1):
            return ev.NeedsBudget(tokens, step.left, self.token_budget)
        if need + growth + watermark > self.blocks.pool.free:
            return ev.NeedsBlocks(need, self.blocks.pool.free, watermark, growth)
        return None

    # --- changes of state, each told where it happens ------------------------------------------------------------

    def _preempt(self, victim: Request, needy: Request, cause: ev.PreemptCause, step: _Pass | None) -> None:
        pool = self.blocks.pool
        used_before = pool.used
        lost = sum(seq.num_computed for seq in victim.sequences)
        if step is not None:
            step.give_back(victim)
            step.victim = step.victim or victim
        self.running.remove(victim)
        self._told_skipped.discard(victim)
        key = victim.key
        for seq, freed in zip(victim.sequences, self.preemption_mode.preempt(victim, self.blocks), strict=True):
            self._tell_freed(seq, freed)
        victim.status = RequestStatus.WAITING
        victim.preemptions += 1
        victim.key = self.policy.key(victim)
        self.waiting.push(victim)
        self._events.append(
            ev.Preempted(
                id=victim.request_id,
                for_id=needy.request_id,
                cause=cause,
                mode=self.preemption_mode.name,
                rule=self.victim_rule.name,
                key=victim.key,
                for_key=key if needy is victim else needy.key,
                blocks_freed=used_before - pool.used,
                tokens_lost=lost,
                used_before=used_before,
                used_after=pool.used,
                pool=pool.total,
                count=victim.preemptions,
            )
        )

    def _grow(self, seq: Sequence, tokens: int) -> None:
        taken = self.blocks.grow(seq, tokens)
        if taken:
            self._events.append(ev.BlocksTaken(seq.request.request_id, taken, seq.index))

    def _plan(self, step: _Pass) -> StepPlan:
        plan = StepPlan([chunk for chunks in step.chunks.values() for chunk in chunks])
        seqs = [chunk.sequence.index for chunk in plan.chunks]
        self._events.append(
            ev.Scheduled(
                ids=[chunk.sequence.request.request_id for chunk in plan.chunks],
                tokens=[chunk.num_tokens for chunk in plan.chunks],
                budget=self.token_budget,
                limit=step.limit,
                seqs=seqs if any(seqs) else [],
            )
        )
        if self._told_skipped:
            self._told_skipped.difference_update(step.chunks)
        return plan

    def _tell_freed(self, seq: Sequence, blocks: list[int]) -> None:
        if blocks:
            self._events.append(ev.BlocksFreed(seq.request.request_id, blocks, seq.index))

    def _tell_wait(self, step: _Pass, head: Request, reason: ev.WaitReason) -> None:
        """Tell why the head waits, when that is another head, another code or another need than last told."""
        step.limit = _LIMITS[type(reason)]
        need = reason.need + reason.growth if isinstance(reason, ev.NeedsBlocks) else 0
        told = (head.request_id, type(reason), need)
        if told != self._told_wait:
            self._told_wait = told
            self._events.append(ev.Waits(head.request_id, reason))

    def _tell_skipped(self, request: Request, reason: ev.WaitReason) -> None:
        if request not in self._told_skipped:
            self._told_skipped.add(request)
            self._events.append(ev.Skipped(request.request_id, reason))

    def _capacity_message(self, seq: Sequence) -> str:
        return (
            f"{seq.num_tokens} tokens need {self.blocks.blocks_for(seq.num_tokens)} blocks of "
            f"{self.blocks.block_size}; the pool has {self.blocks.pool.total}"
        )
