"""Scheduler: which sequences compute how many tokens in the next step, and what their tokens change.

The rules, in order (each step):
 1. time-outs end requests, whatever queue they are in;
 2. running requests, in policy order: each decode or next chunk gets blocks; when none is free, victims are
    taken by the victim rule until it fits or the request itself is the victim; the preemption mode says whether
    a victim's K/V is thrown away or moved to the host pool;
 3. swapped requests return, in policy order, unless this step preempted, until one does not fit;
 4. waiting requests, in policy order, unless this step preempted or somebody is left swapped out: admit while
    sequences, tokens and blocks (need + watermark) allow; stop at the first that does not fit. With
    preempt_for_waiting, it may take victims among running ones that are strictly less urgent; with skip_ahead, so
    many later ones may pass it.
With batching = prefill-first, 4 comes before 2 while nobody is swapped out, and a step that computes prompts computes
nothing else; after `max_prefill_steps` such steps in a row the decodes have a turn.

A preempted request returns only when everything it must compute again fits at once, beside the blocks that running
requests take meanwhile, and is no victim of the growth of others until it has given a token. A more urgent one takes
nobody's place who has given none since it was admitted. So every preemption costs an output token, and preemptions are
bounded, whatever the victim rule.

Of several samples that return, the first computes the prompt alone; then the others share its whole blocks, as after
the first admission, and compute their own outputs again. Nobody else takes the blocks that they will need for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager, PrefixHit
from vtop.engine.config import EngineConfig
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.policies.queues import first
from vtop.engine.request import FinishReason, Request, RequestStatus, Sequence
from vtop.engine.sched.core import SchedulerCore
from vtop.engine.sched.output import OutputProcessor
from vtop.engine.sched.preemption import choose_victims
from vtop.engine.sched.step import StepPass


@dataclass(frozen=True, slots=True)
class _Offer:
    """What an admission would take: `need` blocks out of those available, beside `growth` for the running ones."""

    hit: PrefixHit
    need: int
    growth: int


@dataclass(slots=True)
class _Room:
    """What an admission may take: tokens of the budget, and blocks out of those available, but for the watermark."""

    left: int
    seats: int  # taken
    available: int
    watermark: int
    running: Iterable[Request]
    promised: int  # of the available ones, to samples that wait for their prompt


class Scheduler(SchedulerCore):
    """The scheduler of preset `sensible`, with its switches."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        outputs: OutputProcessor,
        token_budget: int,
        max_model_len: int = 0,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, max_model_len)
        self._rejoining: list[Request] = []  # that returned with samples which waited for their prompt; some still do

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. Block tables grow here; `num_computed` grows in `commit`."""
        step = self._begin(now)
        if self.config.batching == "prefill-first":
            self._prefill_first(step)
        else:
            self._run_running(step)
            self._return_swapped(step)
            self._admit_waiting(step)
        return self._plan(step)

    def _prefill_first(self, step: StepPass) -> None:
        if len(self.swapped):
            self._prefill_streak = 0
            self._run_running(step)
            self._return_swapped(step)
            return
        running = self.running.snapshot()
        begun = [r for r in running if any(seq.num_computed < seq.num_tokens - 1 for seq in r.computing)]
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
        decodes = sequences = 0
        for request in requests:
            for seq in request.computing:
                sequences += 1
                if len(seq.token_ids) - seq.num_computed == 1:
                    decodes += 1
        reserve = decodes if decodes < sequences else 0
        skipped: list[Request] = []
        for request in requests:
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted earlier in this pass
            self.concerns = request
            group = request.computing
            if len(group) > 1 and not self._rejoin(step, request, group[0]):
                continue
            for seq in group:
                if not seq.blocks and seq is not group[0]:
                    continue  # a sample that waits for its prompt
                start = seq.num_computed
                tokens = len(seq.token_ids) - start
                if tokens == 0:
                    continue  # a beam that waits for the others
                if tokens == 1:
                    reserve -= reserve > 0
                    allowed = step.left
                else:
                    allowed = step.left - reserve
                if allowed <= 0:
                    step.limit = ev.Limit.BUDGET
                    self._tell_skipped(request, ev.NeedsBudget(tokens, step.left, self.token_budget))
                    skipped.append(request)
                    continue
                tokens = min(tokens, allowed)
                end = start + tokens
                copy = len(group) > 1 and self.blocks.must_copy(seq, start)
                if (copy or end > len(seq.blocks) * block_size) and not self._make_room(step, request, seq, start, end):
                    break
                step.add(request, _chunk(seq, start, tokens))
        if skipped and step.left > 0:  # those for whom it was kept gave way
            skipped = [r for r in skipped if r.status is RequestStatus.RUNNING and r not in step.chunks]
            if skipped:
                self._run_running(step, list(dict.fromkeys(skipped)))

    def _rejoin(self, step: StepPass, request: Request, first_one: Sequence) -> bool:
        """Where the prompt is computed again, the other samples share it; false when the request had to give way."""
        block_size = self.blocks.block_size
        if first_one.num_computed < first_one.prompt_len // block_size * block_size:
            return True
        for seq in request.awaiting:
            self._share_prompt(first_one, seq)
            if not self._make_room(step, request, seq, seq.num_computed, seq.num_tokens):
                return False
        return True

    def _promised(self, without: Iterable[Request] = ()) -> int:
        """Blocks that samples of running requests will take when they rejoin."""
        if not self._rejoining:
            return 0
        alive = dict.fromkeys(r for r in self._rejoining if r.status is RequestStatus.RUNNING and r.awaiting)
        self._rejoining = list(alive)
        waiting = (seq for request in alive if request not in without for seq in request.awaiting)
        return sum(self.blocks.lacks(seq, seq.num_tokens) for seq in waiting)

    def _make_room(self, step: StepPass, request: Request, seq: Sequence, start: int, end: int) -> bool:
        """Blocks for slots start … end - 1, preempting where needed; false when the request itself had to give way."""
        pool = self.blocks.pool
        while self.blocks.missing(seq, end) + self.blocks.must_copy(seq, start) > pool.available - self._promised(
            without=(request,)
        ):
            if len(self.running) == 1:
                # several samples that hold the whole pool: nobody is left who could make room for them
                step.give_back(request)
                self.finish(request, FinishReason.CAPACITY, message=self._group_message(request))
                return False
            candidates = [r for r in self.running.snapshot() if r is request or not (r.owed_token and r.preemptions)]
            victim = self.victim_rule.choose(candidates, request)
            self._give_way(step, victim, request, ev.PreemptCause.NO_FREE_BLOCK)
            if victim is request:
                return False
        if self.blocks.must_copy(seq, start):
            self._copy_on_write(step, seq, start)
        self._grow(seq, end)
        return True

    def _group_message(self, request: Request) -> str:
        need = max(self.blocks.least_blocks(request), self.blocks.pool.used + 1)
        return f"its {len(request.computing)} samples need {need} blocks; the pool has {self.blocks.pool.total}"

    def _give_way(self, step: StepPass, victim: Request, needy: Request, cause: ev.PreemptCause) -> None:
        """Preempt, by the preemption mode: to the host pool, or back to waiting."""
        choice = self.preemption_mode.choose(victim, self.blocks, self.rates())
        if choice.swap and victim not in step.copies:  # a copy that is not done yet cannot be moved
            self._swap_out(step, victim, needy, cause, choice)
        else:
            self._tell_host_full(choice)
            self._preempt(victim, needy, cause, step, choice)

    def _return_swapped(self, step: StepPass) -> None:
        """Bring swapped requests back, in policy order, until one does not fit."""
        while step.victim is None and (head := self.swapped.peek()) is not None:
            self.concerns = head
            need, growth = self._return_need(head)
            room = self._room(step)
            reason: ev.WaitReason | None = None
            if self._too_many(head, room):
                reason = ev.NeedsSeat(self.config.max_num_seqs)
            elif room.left < 1:
                reason = ev.NeedsBudget(1, room.left, self.token_budget)
            elif need + growth + room.watermark > room.available:
                reason = self._needs_blocks(need, room.watermark, growth)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            self._swap_in(step, head, need, room.watermark)
            if head.awaiting:
                self._rejoining.append(head)
            self._run_running(step, [head])

    def _return_need(self, head: Request) -> tuple[int, int]:
        """Blocks that bringing a swapped request back takes, and the growth of the running ones meanwhile."""
        host = {block for seq in head.sequences for block in seq.host_blocks}
        need, tokens = len(host), 0
        kept: dict[int, int] = {}  # host block -> device block that still holds its content
        for seq in head.computing:
            hit = self.blocks.return_hit(seq)
            kept.update(zip(seq.host_blocks, hit.blocks, strict=False))
            whole = min(self.blocks.lacks(seq, seq.num_tokens + 1), self.blocks.pool.total)
            need += max(0, whole - len(seq.host_blocks))
            tokens += seq.num_tokens - seq.num_computed
        need -= sum(self.blocks.pool.ref_count(block) > 0 for block in kept.values())
        need += len(head.computing) - 1  # samples may still have to copy the block that they share
        need = min(need, self.blocks.pool.total)
        return need, self._growth(self.running, -(-tokens // self.token_budget) + 1)

    def _growth(self, running: Iterable[Request], steps: int) -> int:
        """Blocks that running requests take in so many steps."""
        return sum(
            self.blocks.lacks(seq, min(seq.num_tokens + steps, request.limit))
            for request in running
            for seq in request.computing
        )

    def _admit_waiting(self, step: StepPass) -> None:
        """Admit waiting requests, in policy order, until one does not fit."""
        while (head := self.waiting.peek()) is not None:
            self.concerns = head
            if step.victim is not None:
                self._tell_wait(step, head, ev.AfterPreemption(step.victim.request_id))
                return
            swapped = self.swapped.peek()
            if swapped is not None:
                self._tell_wait(step, head, ev.SwappedFirst(swapped.request_id))
                return
            if not self.blocks.ever_returns(head):
                self.finish(head, FinishReason.CAPACITY, message=self._group_message(head))
                continue
            reason = self._try(step, head)
            if reason is not None and self.config.preempt_for_waiting and self._take_victims(step, head):
                reason = self._try(step, head)
            if reason is not None:
                self._tell_wait(step, head, reason)
                if isinstance(reason, (ev.NeedsBlocks, ev.NeedsBudget)) and step.victim is None:
                    self._skip_ahead(step)
                return

    def _try(self, step: StepPass, request: Request) -> ev.WaitReason | None:
        """Admit a waiting request if it fits; else, why not."""
        self.concerns = request
        room = self._room(step)
        if not self.blocks.ever_returns(request):  # samples that outgrew the pool, behind a head that waits
            return self._needs_blocks(self.blocks.least_blocks(request), room.watermark)
        offer = self._offer(request, room)
        reason = self._why_not(request, offer, room)
        if reason is not None and offer.hit.copy_last:
            offer = self._offer(request, room, copy=False)
            reason = self._why_not(request, offer, room)
        if reason is None:
            self._admit(step, request, offer, room.watermark)
        return reason

    def _take_victims(self, step: StepPass, head: Request) -> bool:
        """Preempt running requests that are strictly less urgent than the head, if it fits then; else nobody."""
        if step.returned:
            return False  # copies to the host come first in a step, and would meet blocks that are still to be read
        urgency, order = self.policy.urgency, self.policy.order
        mine, place = urgency(head), order(head)
        rivals = [r for r in self.running.snapshot() if not r.owed_token and urgency(r) > mine and order(r) > place]

        def enough(victims: list[Request]) -> bool:
            room = self._room(step, victims)
            offer = self._offer(head, room, copy=False)
            # blocks that the head would take over from a victim are not to be counted as given back by it
            hit = set(offer.hit.blocks)
            room.available += sum(len(self.blocks.only_held_by(r) - hit) for r in victims)
            return self._why_not(head, offer, room) is None

        victims = choose_victims(self.victim_rule, rivals, head, enough)
        for victim in victims:
            self._give_way(step, victim, head, ev.PreemptCause.MORE_URGENT)
        return bool(victims)

    def _skip_ahead(self, step: StepPass) -> None:
        """Admit later requests that fit, while nobody in front of them was passed by as many as allowed."""
        limit = self.config.skip_ahead
        while limit and step.left > 0:
            heads: list[Request] = []
            for request in first(self.waiting, limit + 1):
                if heads and self._try(step, request) is None:
                    for head in heads:
                        head.passed += 1
                    names = [head.request_id for head in heads]
                    self._events.append(ev.Passed(request.request_id, names, heads[0].passed, limit))
                    break
                heads.append(request)
                if request.passed >= limit:
                    return
            else:
                return

    def _room(self, step: StepPass, without: list[Request] | None = None) -> _Room:
        """What can be given now; without some requests, as if they had been preempted, but for their blocks."""
        without = without or []
        running = [r for r in self.running if r not in without] if without else self.running
        return _Room(
            left=step.left + sum(chunk.num_tokens for r in without for chunk in step.chunks.get(r, ())),
            seats=self.running.seats - sum(len(r.sequences) for r in without),
            available=self.blocks.pool.available,
            watermark=self.config.watermark_blocks(self.blocks.pool.total) if len(running) else 0,
            running=running,
            promised=self._promised(without),
        )

    def _admit(self, step: StepPass, head: Request, offer: _Offer, watermark: int) -> None:
        """From waiting to running, with blocks and the first chunk."""
        seq, hit = head.computing[0], offer.hit
        free, cached = self.blocks.pool.free, self.blocks.pool.cached
        resumed = self._leave_waiting(head, step.now)
        head.owed_token = True
        head.passed = 0
        self.running.add(head)
        self._events.append(
            ev.Admitted(head.request_id, head.admitted_serial, resumed, offer.need, free, watermark, cached)
        )
        aged = self.policy.on_admit(head, step.now, hit.tokens)
        if aged is not None:
            self._events.append(ev.Promoted(head.request_id, aged.cause, aged.before, aged.after, head.key))
        if self.blocks.looks_up(seq):
            found = hit.tokens, len(hit.blocks)
            self._events.append(ev.PrefixLookup(head.request_id, seq.num_tokens, *found, resumed, seq.index))
        if hit.blocks:
            self._adopt(step, seq, hit)
        tokens = min(seq.num_tokens - hit.tokens, step.left)
        end = hit.tokens + tokens
        whole = resumed or self.config.admission != "first-chunk"
        self._grow(seq, seq.num_tokens if whole else end)
        step.add(head, _chunk(seq, hit.tokens, tokens))
        if head.awaiting:
            self._rejoining.append(head)

    def _offer(self, head: Request, room: _Room, copy: bool = True) -> _Offer:
        """What admitting a request takes: the blocks for it, and those for the growth of the ones that run."""
        seq, *others = head.computing
        hit = self.blocks.match(seq)
        if hit.copy_last and not copy:
            hit = self.blocks.without_copy(hit)
        have, cost = len(hit.blocks), self.blocks.cost(hit)
        tokens = seq.num_tokens
        if self.config.admission == "reserve-worst-case":
            return self._worst_case(head, room, hit, cost)
        if head.admissions == 0:
            whole = self.config.admission == "reserve-full-prompt"
            end = tokens if whole else min(tokens, hit.tokens + max(room.left, 1))
            return _Offer(hit, self.blocks.blocks_for(end) - have + cost, room.promised)
        # one slot beyond, so that it does not come back only to need a block for its very next token
        shared = seq.prompt_len // self.blocks.block_size
        whole_need = self.blocks.blocks_for(tokens + 1)
        whole_need += sum(self.blocks.blocks_for(other.num_tokens + 1) - shared for other in others)
        whole_need = min(whole_need, self.blocks.pool.total)
        tokens += sum(other.num_tokens - shared * self.blocks.block_size for other in others)
        steps = -(-(tokens - hit.tokens) // self.token_budget) + 1
        return _Offer(hit, whole_need - have + cost, self._growth(room.running, steps))

    def _worst_case(self, head: Request, room: _Room, hit: PrefixHit, cost: int) -> _Offer:
        """What it and the running ones take at most until they end. A request alone may take what there is."""
        size, limit = self.blocks.block_size, head.limit - 1  # the last token never has K/V
        shared = head.prompt_len // size
        need = self.blocks.blocks_for(limit) - len(hit.blocks) + cost
        need += (len(head.computing if head.forked else head.sequences) - 1) * (self.blocks.blocks_for(limit) - shared)
        if not room.seats:
            return _Offer(hit, min(need, room.available), 0)
        growth = 0
        for request in room.running:
            seqs = request.computing if request.forked else request.sequences
            most = self.blocks.blocks_for(request.limit - 1)
            growth += sum(max(0, most - len(seq.blocks)) for seq in seqs)
        return _Offer(hit, need, growth)

    def _too_many(self, head: Request, room: _Room) -> bool:
        """Whether no seats are left; alone, a request runs although the cap was lowered below its samples."""
        return room.seats > 0 and room.seats + len(head.sequences) > self.config.max_num_seqs

    def _why_not(self, head: Request, offer: _Offer, room: _Room) -> ev.WaitReason | None:
        """Why a waiting request cannot be admitted now; None when it can."""
        if self._too_many(head, room):
            return ev.NeedsSeat(self.config.max_num_seqs)
        tokens = head.computing[0].num_tokens - offer.hit.tokens
        whole = self.config.batching == "prefill-first" and tokens <= self.token_budget
        if room.left < (tokens if whole else 1):
            return ev.NeedsBudget(tokens, room.left, self.token_budget)
        if offer.need + offer.growth + room.watermark > room.available:
            return self._needs_blocks(offer.need, room.watermark, offer.growth)
        return None


def _chunk(seq: Sequence, start: int, tokens: int) -> Chunk:
    """Work for a sequence; where its prompt is done, the request's other samples get their first tokens with it."""
    request = seq.request
    if start + tokens < len(seq.token_ids):
        return Chunk(seq, start, tokens, False)
    if request.beam is not None:
        return Chunk(seq, start, tokens, True, top=request.beam.looked_at)
    return Chunk(seq, start, tokens, True, [] if request.forked else request.sequences[1:])
