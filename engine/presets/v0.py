"""V0Scheduler: vLLM V0 without chunking, and the passes of both its schedulers.

Numbers are those of V0's list in `RULES.md`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.presets.base import PresetScheduler
from vtop.engine.presets.blocks import Fit, TableChange, V0Blocks
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.core import Sample


@dataclass(slots=True)
class V0Step(StepPass):
    """`left` counts uncached tokens only (6); `sequences` are those that count against the cap (4)."""

    sequences: int = 0
    reached: int = 0  # sequences of the running requests that got tokens
    preempted: bool = False  # somebody, in the pass over running requests
    unreached: list[Request] = field(default_factory=list)  # running ones that the budget did not reach
    admitted: list[Request] = field(default_factory=list)
    prefills: list[Request] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    returned_prefills: list[Request] = field(default_factory=list)
    returned_decodes: list[Request] = field(default_factory=list)

    def compute(self, request: Request, tokens: int) -> None:
        """Put the request into the batch: so many tokens of its one sequence, or what each of several lacks."""
        seqs = request.computing
        for seq in seqs:
            start = seq.num_computed
            end = start + tokens if len(seqs) == 1 else seq.num_tokens
            sample = end == seq.num_tokens
            children = [] if request.forked or not sample else request.sequences[1:]
            self.add(request, Chunk(seq, start, end - start, sample, forks=children))


def sequences_of(request: Request) -> int:
    """Sequences that count against the cap: all of a group's until it forks, then its unfinished ones (4)."""
    return len(request.computing) if request.forked else len(request.sequences)


class V0Scheduler(PresetScheduler):
    """A step is all prefill or all decode (2).

    Prompts first, unless somebody is swapped out; a step that admitted nobody may make way for an urgent request (21),
    then decodes, and lets swapped requests return if no decode took another's blocks.
    """

    blocks: V0Blocks

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step."""
        self._begin(now)
        step = self.deciding = V0Step(now, self.token_budget, sequences=sum(map(sequences_of, self.running)))
        if not self.swapped:
            self._admit(step)  # (2b)
        if step.admitted:
            return self._decided(step, self.running.snapshot(), step.admitted)
        if self.options.priority:
            self._make_way(step)  # (2c)
        self._run_running(step)  # (2d)
        if not step.preempted:
            self._return_swapped(step)  # (2e)
        batch = step.decodes + step.returned_decodes
        return self._decided(step, step.unreached + batch, batch)

    def _decided(self, step: V0Step, running: list[Request], batch: list[Request]) -> StepPlan:
        """The plan, with the batch in this order; `running` is the new order of that queue."""
        self._arrange(running)
        step.chunks = {request: step.chunks[request] for request in batch}
        plan = self._plan(step)
        if self.blocks.prefix_caching:
            self.blocks.decided([chunk.sequence for chunk in plan.chunks])
        return plan

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _admit(self, step: V0Step) -> None:
        """Admit the heads of waiting until one does not fit: nobody passes it (7-10)."""
        limit = self.options.max_model_len
        if not self.options.chunked:
            limit = min(limit, self.token_budget)
        while (head := self._next_waiting(step)) is not None:
            self.concerns = head
            tokens, cached = self._wanted(step, head)
            fit = self.blocks.can_allocate(self._blocks_of_prompt(head), self.options.watermark_blocks)
            if tokens + cached > limit:
                reason_code = FinishReason.CAPACITY if head.admissions else FinishReason.REFUSED
                text = f"{tokens + cached} tokens; at most {limit} are computed in one step"
                self.finish(head, reason_code, message=text)
            elif tokens > self.token_budget:  # a group that forked comes back in one piece
                self.finish(head, FinishReason.CAPACITY, message=f"{tokens} tokens in one step; the budget is smaller")
            elif fit is Fit.NEVER:
                self.finish(head, FinishReason.CAPACITY, message=self._too_large(head))
            elif (reason := self._first_limit(step, head, tokens, fit)) is not None:
                self._tell_wait(step, head, reason)
                return
            else:
                self._place(step, head, tokens, cached)

    def _next_waiting(self, step: V0Step) -> Request | None:
        return self.waiting.peek()

    def _place(self, step: V0Step, head: Request, tokens: int, cached: int) -> None:
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
        step.compute(head, tokens)
        step.sequences += sequences_of(head)

    def _make_way(self, step: V0Step) -> None:
        """Sort running; the least urgent give way until the head of waiting fits. It is admitted in a later step (21).

        Only the head of the queue as it is, is looked at; only then waiting is sorted.
        """
        queue = deque(sorted(self.running.snapshot(), key=_urgency))
        head = self.waiting.peek()
        if head is not None:
            tokens, _ = self._wanted(step, head)
            while queue and _urgency(queue[-1]) > _urgency(head) and not self._fits(step, head, tokens):
                victim = queue.pop()
                step.sequences -= sequences_of(victim)
                self._displace(step, victim, head)
        self._arrange(queue)
        self._arrange(sorted(self.waiting.ordered(), key=_urgency))

    def _displace(self, step: V0Step, victim: Request, head: Request) -> None:
        """Recompute it, even where swapping is preferred: swapped, it would shut the door for the urgent one (22)."""
        self._preempt(victim, head, ev.PreemptCause.MORE_URGENT, step)

    def _fits(self, step: V0Step, head: Request, tokens: int) -> bool:
        fit = self.blocks.can_allocate(self._blocks_of_prompt(head), self.options.watermark_blocks)
        return fit is Fit.NOW and self._first_limit(step, head, tokens, fit) is None

    # --- running -----------------------------------------------------------------------------------------------------

    def _run_running(self, step: V0Step) -> None:
        """Running requests in order; the tail gives way when one has no room to append (13, 14)."""
        queue = deque(self.running.snapshot())
        while queue:
            request = self.concerns = queue[0]
            tokens, _ = self._wanted(step, request)
            if tokens <= 0 or tokens > step.left:
                step.limit = ev.Limit.BUDGET
                break
            queue.popleft()
            while not self.blocks.can_append(request.computing):
                victim = queue.pop() if queue else request
                step.preempted = True
                self._preempt_or_swap(step, victim, request)
                if victim is request:
                    break
            else:
                (step.decodes if self.blocks.decodes(request.computing[0]) else step.prefills).append(request)
                self._append(step, request)
                step.compute(request, tokens)
                step.reached += sequences_of(request)
        step.unreached = list(queue)

    def _preempt_or_swap(self, step: V0Step, victim: Request, beneficiary: Request) -> None:
        """To the host pool if the victim is to go there and fits, else back to waiting (15-17)."""
        if self._prefers_swap(victim) and self.blocks.can_swap_out(victim.computing):
            self.preemption.swap_out(step, victim, beneficiary, ev.PreemptCause.NO_FREE_BLOCK)
        else:
            self._preempt(victim, beneficiary, ev.PreemptCause.NO_FREE_BLOCK, step)

    def _prefers_swap(self, victim: Request) -> bool:
        return self.options.prefer_swap or sequences_of(victim) > 1

    # --- swapped -----------------------------------------------------------------------------------------------------

    def _return_swapped(self, step: V0Step) -> None:
        """Swapped requests, first come first served, until one does not fit (18)."""
        while (head := self.swapped.peek()) is not None:
            self.concerns = head
            watermark = self._watermark_of_return()
            fit = self.blocks.can_swap_in(head.computing, watermark)
            if fit is Fit.NEVER:
                self._drop_swapped(head)
                continue
            tokens = self._wanted_on_return(step, head)
            reason = self._first_limit(step, head, tokens, fit)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            self.preemption.swap_in(step, head, self.blocks.swap_in_need(head.computing), watermark)
            decodes = self.blocks.decodes(head.computing[0])
            (step.returned_decodes if decodes else step.returned_prefills).append(head)
            self._append(step, head)
            step.compute(head, tokens)
            step.sequences += sequences_of(head)

    def _watermark_of_return(self) -> int:
        return self.options.watermark_blocks if len(self.running) else 0

    def _wanted_on_return(self, step: V0Step, head: Request) -> int:
        return self._wanted(step, head)[0]

    def _drop_swapped(self, head: Request) -> None:
        self.finish(head, FinishReason.CAPACITY, message=self._too_large(head))

    # --- what a request wants, and what it lacks ---------------------------------------------------------------------

    def _wanted(self, step: V0Step, request: Request) -> tuple[int, int]:
        """(tokens to compute, tokens that are cached) of what a request wants in this step."""
        uncached, cached = self._left(request)
        return (self._chunk(uncached, step.left) if len(request.computing) == 1 else uncached), cached

    def _left(self, request: Request) -> tuple[int, int]:
        """(tokens to compute, tokens that are cached) of all that is left of a request."""
        uncached = cached = 0
        seqs = request.computing
        for seq in seqs:
            left = seq.num_tokens - seq.num_computed
            if len(seqs) == 1 and not self.blocks.decodes(seq):
                # the last token is computed even where it is cached, for its logits (26)
                cached = max(0, min(self.blocks.cached_tokens(seq) - seq.num_computed, left - 1))
            uncached += left - cached
        return uncached, cached

    def _chunk(self, tokens: int, left: int) -> int:
        """How many of the tokens that one sequence wants are computed in this step, of so many left of the budget."""
        return tokens

    def _first_limit(self, step: V0Step, head: Request, tokens: int, fit: Fit) -> ev.WaitReason | None:
        """Why a waiting or swapped request cannot run now: the first limit that it meets; None when it can."""
        if fit is Fit.LATER:
            seqs = head.computing
            need = self.blocks.swap_in_need(seqs) if seqs[0].host_blocks else self._blocks_of_prompt(head)
            return self._needs_blocks(need, self.options.watermark_blocks)
        if tokens <= 0 or tokens > step.left:
            return ev.NeedsBudget(tokens, step.left, self.token_budget)
        if step.sequences + sequences_of(head) > self.config.max_num_seqs:
            return ev.NeedsSeat(self.config.max_num_seqs)
        return None

    def _blocks_of_prompt(self, request: Request) -> int:
        return sum(self.blocks.blocks_for(seq.num_tokens) for seq in request.computing)

    def _too_large(self, request: Request) -> str:
        total, watermark = self.blocks.pool.total, self.options.watermark_blocks
        need = self._blocks_of_prompt(request)
        size = self.blocks.block_size
        return f"needs {need} blocks of {size}; the pool has {total}, of which {watermark} stay available"

    # --- changes of tables -------------------------------------------------------------------------------------------

    def _append(self, step: V0Step, request: Request) -> None:
        for seq in request.computing:
            self._tell_change(step, seq, self.blocks.append(seq))

    def _tell_change(self, step: V0Step, seq: Sequence, change: TableChange) -> None:
        self._tell_evicted()
        name = seq.request.request_id
        if change.taken:
            self._events.append(ev.BlocksTaken(name, change.taken, seq.index))
        merged = {block for _, block, _ in change.merged}
        for logical, source, target in change.copied:
            if target not in merged:  # else it is free again already
                step.copies.setdefault(seq.request, []).append((source, target))
            self._events.append(ev.CopiedOnWrite(name, source, target, logical, seq.index))
        for logical, block, into in change.merged:
            self._events.append(ev.Merged(name, block, into, logical, seq.index))
        if change.hashed:
            self._events.append(ev.Cached(name, change.hashed, seq.index))

    # --- the result of a step ----------------------------------------------------------------------------------------

    def _in_order(self, own: Sample, others: list[Sample]) -> list[Sample]:
        """The parent goes on as the last child (23)."""
        return [*others, own]

    def _index_written(self, seq: Sequence) -> None:
        """Content is indexed when a table gets it; from now on it counts as computed (26)."""
        self.blocks.written(seq)


def _urgency(request: Request) -> tuple[float, float]:
    return request.priority, request.arrival
