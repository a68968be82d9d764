"""SchedulerState: queues, block tables, and every change of a request, told as an event where it happens.

A step that is being decided is a `StepPass`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager, PrefixHit
from vtop.engine.config import EngineConfig
from vtop.engine.executor import Chunk, ExecutorRates, StepPlan
from vtop.engine.policies import KeyChange, make_policy
from vtop.engine.policies.queues import RunningList, WaitingQueue
from vtop.engine.request import Key, Request, RequestStatus, Sequence
from vtop.engine.sched.output import OutputProcessor
from vtop.engine.sched.preemption import (
    TO_RECOMPUTE,
    Choice,
    Preemption,
    make_preemption_mode,
    make_victim_rule,
    tokens_lost,
)

KEEP_ENDED = 32  # requests, for the audit
_LIMITS: dict[type[ev.Reason], ev.Limit] = {
    ev.NeedsBlocks: ev.Limit.BLOCKS,
    ev.NeedsBudget: ev.Limit.BUDGET,
    ev.NeedsSeat: ev.Limit.SEQS,
    ev.AfterPreemption: ev.Limit.PREEMPTED,
    ev.SwappedFirst: ev.Limit.SWAPPED,
    ev.DecodesFirst: ev.Limit.DECODES,
}


@dataclass(slots=True)
class StepPass:
    """What one call of `schedule` has decided so far."""

    now: float
    left: int  # tokens left of the budget
    chunks: dict[Request, list[Chunk]] = field(default_factory=dict)
    copies: dict[Request, list[tuple[int, int]]] = field(default_factory=dict)  # (source, target) blocks
    swap_out: list[tuple[int, int]] = field(default_factory=list)  # (device, host) blocks
    swap_in: list[tuple[int, int]] = field(default_factory=list)  # (host, device) blocks
    returned: set[Request] = field(default_factory=set)  # swapped in
    victim: Request | None = None  # the first one preempted in this pass
    limit: ev.Limit = ev.Limit.NONE

    def add(self, request: Request, chunk: Chunk) -> None:
        self.left -= chunk.num_tokens
        self.chunks.setdefault(request, []).append(chunk)

    def give_back(self, request: Request) -> None:
        """The request was preempted: what it was given in this pass is there again."""
        self.left += sum(chunk.num_tokens for chunk in self.chunks.pop(request, ()))
        self.copies.pop(request, None)


class SchedulerState:
    """Changes state and tells each change through `take_events`. Knows no model and no clock."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        outputs: OutputProcessor,
        token_budget: int,
        max_model_len: int = 0,
    ) -> None:
        self.config = config
        self.blocks = blocks
        self.token_budget = token_budget
        self._max_model_len = max_model_len  # only for the default budget of another `batching`
        self.policy = make_policy(config)
        self.victim_rule = make_victim_rule(config.victim, self.policy.rank)
        self.preemption_mode = make_preemption_mode(config.preemption_mode)
        self.preemption = Preemption(self)
        self.waiting: WaitingQueue = self.policy.make_queue()
        self.running = self.policy.make_running()
        self.swapped: WaitingQueue = self.policy.make_queue()
        self.now = 0.0  # of the latest step, command or arrival
        self.ended: deque[Request] = deque(maxlen=KEEP_ENDED)
        self.outputs = outputs
        self.deadlines: list[tuple[float, int, Request]] = []  # heap: when, number, whose
        self._events: list[ev.AnyEvent] = []
        self._admissions = 0
        self._told_wait: tuple[str, ev.WaitReason] | None = None
        self._told_skipped: set[Request] = set()
        self.concerns: Request | None = None  # whom the step being decided looks at: what is raised is its fault
        self.deciding: StepPass | None = None  # what was decided so far of that step
        self.rates: Callable[[], ExecutorRates] = ExecutorRates  # what the executor measured

    # --- telling -----------------------------------------------------------------------------------------------------

    def forget_told(self) -> None:
        """Tell the reason of the head again, although it may be the same."""
        self._told_wait = None

    def forget_skipped(self, request: Request) -> None:
        """It does not run any more: tell anew when it runs again and is skipped."""
        self._told_skipped.discard(request)

    def take_events(self) -> list[ev.AnyEvent]:
        """Events since the last call, in order."""
        taken, self._events = self._events, []
        taken += self.policy.take_events()
        return taken

    def note(self, event: ev.AnyEvent) -> None:
        """Tell an event of the engine in order with the scheduler's own."""
        self._events.append(event)

    @property
    def has_events(self) -> bool:
        """Whether there is something to tell; of the policy too, whose call may have failed before all else."""
        self._events += self.policy.take_events()
        return bool(self._events)

    def place_of(self, request: Request) -> Key:
        """What those that wait are ordered by, smallest first, as far as they never ran."""
        return self.policy.order(request)

    # --- changes of state --------------------------------------------------------------------------------------------

    def queue_of(self, request: Request) -> WaitingQueue | RunningList:
        """The queue of an alive request, as its status says."""
        if request.status is RequestStatus.RUNNING:
            return self.running
        return self.swapped if request.status is RequestStatus.SWAPPED else self.waiting

    def rekey(self, request: Request) -> None:
        """Ask the policy for the key of an alive request again, and put it in its new place."""
        key, queue = self.policy.key(request), self.queue_of(request)
        queue.remove(request)
        request.key = key
        queue.push(request)

    def change_key(self, request: Request, change: KeyChange) -> None:
        """A policy moved a request: put it in its new place and tell."""
        self.rekey(request)
        name, key = request.request_id, request.key
        if change.cause is ev.MoveCause.USER:
            self._events.append(ev.Rekeyed([name], [key]))
        elif change.cause is ev.MoveCause.QUANTUM:
            self._events.append(ev.Demoted(name, change.before, change.after, key))
        else:
            self._events.append(ev.Promoted(name, change.cause, change.before, change.after, key))

    def _preempt(
        self,
        victim: Request,
        beneficiary: Request,
        cause: ev.PreemptCause,
        step: StepPass | None,
        choice: Choice | None = None,
        pool_after: int | None = None,
    ) -> None:
        """From running to waiting; what it computed is thrown away. `pool_after`: for a pool that shrinks to that."""
        self.preemption.recompute(victim, beneficiary, cause, step, choice or TO_RECOMPUTE, pool_after)

    def _tokens_lost(self, victim: Request) -> int:
        return tokens_lost(victim)

    def _chosen_by(self, victim: Request, beneficiary: Request) -> tuple[str, Key, Key]:
        """To tell: the rule that chose the victim, and the ranks of both that it may have compared."""
        return self.rule_name, self.policy.rank(victim), self.policy.rank(beneficiary)

    def _returning_key(self, victim: Request) -> Key:
        """Its key in `waiting` after a preemption."""
        return self.policy.key(victim)

    def _swapped_key(self, victim: Request) -> Key:
        """Its key in `swapped`."""
        return self.policy.key(victim)

    def _returned_key(self, request: Request) -> Key:
        """Its key in `running` when it comes back from the host pool."""
        return request.key

    @property
    def rule_name(self) -> str:
        """Of the rule that chooses victims, to tell."""
        return self.victim_rule.name

    def _requeue(self, victim: Request, step: StepPass | None) -> None:
        self.waiting.push(victim)

    def _leave_waiting(self, request: Request, now: float) -> bool:
        """It is admitted; the caller puts it into `running`. Returns whether it had been admitted before."""
        self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        resumed = request.admissions > 0
        request.admissions += 1
        self._number_admission(request)
        if request.first_scheduled is None:
            request.first_scheduled = now
        self._told_wait = None
        return resumed

    def _number_admission(self, request: Request) -> None:
        request.admitted_serial = self._admissions
        self._admissions += 1

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

    def _share_prompt(self, parent: Sequence, child: Sequence) -> None:
        """A sample without K/V takes over the whole blocks of the prompt that another one has computed again."""
        blocks = self.blocks.share_prompt(parent, child)
        if blocks:
            name = parent.request.request_id
            self._events.append(ev.Forked(name, parent.index, child.index, blocks, child.num_computed))

    def _copy_on_write(self, step: StepPass, seq: Sequence, position: int) -> None:
        """Give the sequence a block of its own for slot `position`."""
        self._tell_copied(step, seq, *self.blocks.copy_on_write(seq, position))

    def _index_written(self, seq: Sequence) -> None:
        new = self.blocks.index_written(seq, seq.num_computed)
        if new:
            self._events.append(ev.Cached(seq.request.request_id, new, seq.index))

    def _plan(self, step: StepPass) -> StepPlan:
        plan = StepPlan(
            [chunk for chunks in step.chunks.values() for chunk in chunks],
            [pair for pairs in step.copies.values() for pair in pairs],
            step.swap_out,
            step.swap_in,
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
            self._events.append(
                ev.Evicted([b for b, _, _ in evicted], [key.hash for _, key, _ in evicted], [t for _, _, t in evicted])
            )

    def _tell_copied(self, step: StepPass, seq: Sequence, source: int, target: int) -> None:
        self._tell_evicted()
        request = seq.request
        step.copies.setdefault(request, []).append((source, target))
        logical = seq.blocks.index(target)
        self._events.append(ev.CopiedOnWrite(request.request_id, source, target, logical, seq.index))

    def _tell_wait(self, step: StepPass, head: Request, reason: ev.WaitReason) -> None:
        """Tell why the head waits, when that is another head or another reason, its numbers too, than last told."""
        step.limit = _LIMITS[type(reason)]
        told = (head.request_id, reason)
        if told != self._told_wait:
            self._told_wait = told
            self._events.append(ev.Waits(head.request_id, reason))

    def _needs_blocks(self, need: int, watermark: int, growth: int = 0) -> ev.NeedsBlocks:
        """The reason, with what is available now."""
        pool = self.blocks.pool
        return ev.NeedsBlocks(need, pool.free, watermark, growth, pool.cached)

    def _tell_skipped(self, request: Request, reason: ev.WaitReason) -> None:
        if request not in self._told_skipped:
            self._told_skipped.add(request)
            self._events.append(ev.Skipped(request.request_id, reason))

    def capacity_message(self, seq: Sequence) -> str:
        return (
            f"{seq.num_tokens} tokens need {self.blocks.blocks_for(seq.num_tokens)} blocks of "
            f"{self.blocks.block_size}; the pool has {self.blocks.pool.total}"
        )
