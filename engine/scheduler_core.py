"""SchedulerCore: what every scheduler shares: queues, block tables, and changes of state, each told where it happens.

Rules (who runs next, who gives way) are in its subclasses: `scheduler.py` and `presets/`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.block_manager import BlockManager, PrefixHit
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
class StepPass:
    """What one call of `schedule` has decided so far."""

    now: float
    left: int  # tokens left of the budget
    chunks: dict[Request, list[Chunk]] = field(default_factory=dict)
    copies: dict[Request, list[tuple[int, int]]] = field(default_factory=dict)  # (source, target) blocks
    victim: Request | None = None  # the first one preempted in this pass
    limit: ev.Limit = ev.Limit.NONE

    def add(self, request: Request, chunk: Chunk) -> None:
        self.left -= chunk.num_tokens
        self.chunks.setdefault(request, []).append(chunk)

    def give_back(self, request: Request) -> None:
        """The request was preempted: what it was given in this pass is there again."""
        self.left += sum(chunk.num_tokens for chunk in self.chunks.pop(request, ()))
        self.copies.pop(request, None)


class SchedulerCore:
    """Decides nothing; changes state and tells each change through `take_events`. Knows no model and no clock."""

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

    # --- between steps -----------------------------------------------------------------------------------------------

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
            self.blocks.forget_sequence(seq)
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
        self._tell_evicted()
        self._events.append(ev.PoolResized(before, num_blocks))
        alive = self.running.snapshot() + self.waiting.ordered()
        return [r for r in alive if not all(self.blocks.ever_fits(seq.num_tokens) for seq in r.sequences)]

    def reset_prefix_cache(self) -> int:
        """Forget all cached content; blocks in use stay with their holders. Returns blocks forgotten."""
        forgotten = self.blocks.pool.forget()
        self._events.append(ev.CacheReset(forgotten))
        return forgotten

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

    # --- a step ------------------------------------------------------------------------------------------------------

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
        caching = self.blocks.prefix_caching
        for chunk, sampled in zip(plan.chunks, output.tokens, strict=True):
            seq = chunk.sequence
            seq.num_computed = chunk.start + chunk.num_tokens
            if caching:
                self._index_written(seq)
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

    # --- changes of state --------------------------------------------------------------------------------------------

    def _preempt(self, victim: Request, needy: Request, cause: ev.PreemptCause, step: StepPass | None) -> None:
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
            self._tell_evicted()
            self._events.append(ev.BlocksTaken(seq.request.request_id, taken, seq.index))

    def _adopt(self, step: StepPass, seq: Sequence, hit: PrefixHit) -> None:
        """Begin a sequence with the blocks of a prefix hit."""
        request = seq.request
        shared = list(hit.blocks)
        copy = self.blocks.adopt(seq, hit)
        self._events.append(ev.BlocksTaken(request.request_id, shared, seq.index))
        if copy is not None:
            self._tell_copied(step, seq, *copy)

    def _copy_on_write(self, step: StepPass, seq: Sequence, position: int) -> None:
        """Give the sequence a block of its own for slot `position`."""
        self._tell_copied(step, seq, *self.blocks.copy_on_write(seq, position))

    def _index_written(self, seq: Sequence) -> None:
        if seq.num_computed // self.blocks.block_size > seq.num_indexed:
            new = self.blocks.index_written(seq, seq.num_computed)
            if new:
                self._events.append(ev.Cached(seq.request.request_id, new, seq.index))

    def _plan(self, step: StepPass) -> StepPlan:
        plan = StepPlan(
            [chunk for chunks in step.chunks.values() for chunk in chunks],
            [pair for pairs in step.copies.values() for pair in pairs],
        )
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

    def _tell_evicted(self) -> None:
        evicted = self.blocks.pool.take_evicted()
        if evicted:
            self._events.append(ev.Evicted([block for block, _ in evicted]))

    def _tell_copied(self, step: StepPass, seq: Sequence, source: int, target: int) -> None:
        self._tell_evicted()
        request = seq.request
        step.copies.setdefault(request, []).append((source, target))
        logical = seq.blocks.index(target)
        self._events.append(ev.CopiedOnWrite(request.request_id, source, target, logical, seq.index))

    def _tell_wait(self, step: StepPass, head: Request, reason: ev.WaitReason) -> None:
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
