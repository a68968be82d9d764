"""Admission: what a request that comes in or comes back takes, what is there for it, and why it must wait.

Nothing changes here: `scheduler.py` asks, and does what it decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtop.engine import events as ev
from vtop.engine.blocks.manager import NO_HIT, PrefixHit
from vtop.engine.request import Request, RequestStatus, Sequence

if TYPE_CHECKING:
    from vtop.engine.sched.changes import SchedulerState, StepPass


@dataclass(frozen=True, slots=True)
class Need:
    """In blocks: `blocks` for the request itself, `growth` of those that run meanwhile, and the `watermark`.

    All three must be available; only the first are taken. `hit` is what the prefix cache has of it.
    """

    hit: PrefixHit
    blocks: int
    growth: int
    watermark: int


@dataclass(slots=True)
class Headroom:
    """What is left for one more request: tokens of the budget, sequences under the cap, blocks."""

    tokens: int
    num_seqs: int  # that run already
    available: int
    watermark: int
    running: Collection[Request]
    promised: int  # of the available blocks, to samples that wait for their prompt


class Admission:
    """Weighs requests against what the scheduler's queues and pool have left, by its options."""

    def __init__(self, scheduler: SchedulerState) -> None:
        self._scheduler = scheduler  # its queues, policy, budget and options are replaced while it runs
        self._rejoining: list[Request] = []  # that came back with samples which waited for their prompt; some still do

    # --- verdicts ----------------------------------------------------------------------------------------------------

    def of_waiting(self, step: StepPass, request: Request) -> Need | ev.WaitReason:
        """What admitting a waiting request takes; why it cannot be admitted now, when it cannot."""
        headroom = self._headroom(step)
        if not self._scheduler.blocks.ever_returns(request):  # samples that outgrew the pool, behind a head that waits
            return self._scheduler._needs_blocks(self._scheduler.blocks.least_blocks(request), headroom.watermark)
        need = self._need(request, headroom)
        reason = self._why_wait(request, need, headroom)
        if reason is not None and need.hit.copy_last:
            need = self._need(request, headroom, copy=False)
            reason = self._why_wait(request, need, headroom)
        return need if reason is None else reason

    def of_swapped(self, step: StepPass, request: Request) -> Need | ev.WaitReason:
        """What bringing a swapped-out request back takes; why it cannot come now, when it cannot."""
        headroom = self._headroom(step)
        need = self._need_to_return(request, headroom)
        reason = self._first_limit(request, need, headroom, tokens=1, at_once=1)
        return need if reason is None else reason

    def fits_without(self, step: StepPass, request: Request, victims: list[Request]) -> bool:
        """Whether a waiting request could be admitted if these running ones were preempted."""
        headroom = self._headroom(step, victims)
        need = self._need(request, headroom, copy=False)
        # blocks that the request would take over from a victim are not to be counted as given back by it
        hit = set(need.hit.blocks)
        headroom.available += sum(len(self._scheduler.blocks.only_held_by(victim) - hit) for victim in victims)
        return self._why_wait(request, need, headroom) is None

    def _why_wait(self, request: Request, need: Need, headroom: Headroom) -> ev.WaitReason | None:
        tokens = request.computing[0].num_tokens - need.hit.tokens
        never_split = self._scheduler.config.batching == "prefill-first" and tokens <= self._scheduler.token_budget
        return self._first_limit(request, need, headroom, tokens, at_once=tokens if never_split else 1)

    def _first_limit(
        self, request: Request, need: Need, headroom: Headroom, tokens: int, at_once: int
    ) -> ev.WaitReason | None:
        """Which limit it meets first: sequences, tokens (`at_once` of the `tokens` it wants), or blocks."""
        most = self._scheduler.config.max_num_seqs
        # alone, a request runs although the cap was lowered below its samples
        if headroom.num_seqs > 0 and headroom.num_seqs + len(request.sequences) > most:
            return ev.NeedsSeat(most)
        if headroom.tokens < at_once:
            return ev.NeedsBudget(tokens, headroom.tokens, self._scheduler.token_budget)
        if need.blocks + need.growth + need.watermark > headroom.available:
            return self._scheduler._needs_blocks(need.blocks, need.watermark, need.growth)
        return None

    # --- what is there -----------------------------------------------------------------------------------------------

    def _headroom(self, step: StepPass, without: list[Request] | None = None) -> Headroom:
        """What can be given now; without some requests, as if they had been preempted, but for their blocks."""
        without = without or []
        running, pool = self._scheduler.running, self._scheduler.blocks.pool
        staying = [request for request in running if request not in without] if without else running
        return Headroom(
            tokens=step.left + sum(chunk.num_tokens for r in without for chunk in step.chunks.get(r, ())),
            num_seqs=running.num_seqs - sum(len(request.sequences) for request in without),
            available=pool.available,
            watermark=self._scheduler.config.watermark_blocks(pool.total) if len(staying) else 0,
            running=staying,
            promised=self.promised(without),
        )

    def promise(self, request: Request) -> None:
        """It runs again; its samples that wait for the prompt are going to take blocks that nobody else may."""
        if request.awaiting:
            self._rejoining.append(request)

    def promised(self, without: Iterable[Request] = ()) -> int:
        """Blocks that samples of running requests will take when they rejoin."""
        if not self._rejoining:
            return 0
        alive = dict.fromkeys(r for r in self._rejoining if r.status is RequestStatus.RUNNING and r.awaiting)
        self._rejoining = list(alive)
        waiting = (seq for request in alive if request not in without for seq in request.awaiting)
        return sum(self._scheduler.blocks.lacks(seq, seq.num_tokens) for seq in waiting)

    # --- what is needed ----------------------------------------------------------------------------------------------

    def _need(self, request: Request, headroom: Headroom, copy: bool = True) -> Need:
        """What admitting a waiting request takes, by `admission`; with copy=False without its last cached block."""
        blocks, admission = self._scheduler.blocks, self._scheduler.config.admission
        seq = request.computing[0]
        hit = blocks.match(seq)
        if hit.copy_last and not copy:
            hit = blocks.without_copy(hit)
        given = len(hit.blocks) - blocks.cost(hit)
        if admission == "reserve-worst-case":
            need, growth = self._at_worst(request, headroom, given)
        elif request.admissions:
            need, growth = self._to_resume(request, headroom, hit.tokens)
            need -= given
        else:
            end = min(seq.num_tokens, hit.tokens + max(headroom.tokens, 1))
            need = blocks.blocks_for(seq.num_tokens if admission == "reserve-full-prompt" else end) - given
            growth = headroom.promised
        return Need(hit, need, growth, headroom.watermark)

    def _to_resume(self, request: Request, headroom: Headroom, cached: int) -> tuple[int, int]:
        """(blocks, growth) of a preempted request: all that it must compute again, at once."""
        blocks = self._scheduler.blocks
        seq, *others = request.computing
        shared = seq.prompt_len // blocks.block_size
        # one slot beyond, so that it does not come back only to need a block for its very next token
        need = blocks.blocks_for(seq.num_tokens + 1)
        need += sum(blocks.blocks_for(other.num_tokens + 1) - shared for other in others)
        tokens = seq.num_tokens - cached + sum(other.num_tokens - shared * blocks.block_size for other in others)
        return min(need, blocks.pool.total), self._growth(headroom.running, tokens)

    def _at_worst(self, request: Request, headroom: Headroom, given: int) -> tuple[int, int]:
        """(blocks, growth) that it and the running ones take at most until they end; alone, it takes what there is."""
        blocks, shared = self._scheduler.blocks, request.prompt_len // self._scheduler.blocks.block_size
        most = blocks.blocks_for(request.limit - 1)  # the last token never has K/V
        need = most - given
        need += (len(_at_most(request)) - 1) * (most - shared)
        if not headroom.num_seqs:
            return min(need, headroom.available), 0
        growth = 0
        for other in headroom.running:
            end = blocks.blocks_for(other.limit - 1)
            growth += sum(max(0, end - len(seq.blocks)) for seq in _at_most(other))
        return need, growth

    def _need_to_return(self, request: Request, headroom: Headroom) -> Need:
        blocks = self._scheduler.blocks
        need, tokens = len({block for seq in request.sequences for block in seq.host_blocks}), 0
        kept: dict[int, int] = {}  # host block -> device block that still holds its content
        for seq in request.computing:
            kept.update(zip(seq.host_blocks, blocks.return_hit(seq).blocks, strict=False))
            whole = min(blocks.lacks(seq, seq.num_tokens + 1), blocks.pool.total)
            need += max(0, whole - len(seq.host_blocks))
            tokens += seq.num_tokens - seq.num_computed
        need -= sum(blocks.pool.ref_count(block) > 0 for block in kept.values())
        need += len(request.computing) - 1  # samples may still have to copy the block that they share
        growth = self._growth(headroom.running, tokens)
        return Need(NO_HIT, min(need, blocks.pool.total), growth, headroom.watermark)

    def _growth(self, running: Iterable[Request], tokens: int) -> int:
        """Blocks that running requests take in the steps that so many tokens need, and in one more."""
        steps = -(-tokens // self._scheduler.token_budget) + 1
        return sum(
            self._scheduler.blocks.lacks(seq, min(seq.num_tokens + steps, request.limit))
            for request in running
            for seq in request.computing
        )


def _at_most(request: Request) -> list[Sequence]:
    """The sequences that compute until the request ends."""
    return request.computing if request.forked else request.sequences
