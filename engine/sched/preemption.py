"""Who is preempted when no block is available, and what becomes of the K/V that it held.

They are thrown away and computed again, or moved to the host pool and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vtop.engine import events as ev
from vtop.engine import request as rq
from vtop.engine.blocks.host import blocks_of
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.errors import BadValue
from vtop.engine.executor import ExecutorRates
from vtop.engine.request import Key, Request, RequestStatus

if TYPE_CHECKING:
    from vtop.engine.sched.changes import SchedulerState, StepPass


class VictimRule(Protocol):
    """Chooses a victim among running requests."""

    name: str

    def choose(self, running: Sequence[Request], beneficiary: Request) -> Request:
        """One of `running` (never empty, in policy order). When that is `beneficiary` itself, it gives way."""
        ...


class LeastImportant:
    """The one that matters least to the policy: the largest rank. Having waited long (aging) protects nobody."""

    name = "policy"

    def __init__(self, rank: Callable[[Request], tuple[float, ...]]) -> None:
        self._rank = rank

    def choose(self, running: Sequence[Request], beneficiary: Request) -> Request:
        return max(running, key=self._rank)


class Latest:
    """The request that was admitted last, so that those that ran longest go on."""

    name = "latest"

    def choose(self, running: Sequence[Request], beneficiary: Request) -> Request:
        return max(running, key=lambda request: request.admitted_serial)


class LeastComputed:
    """The request that loses the fewest computed tokens (`tokens_lost`); of equals the one admitted last."""

    name = "least-computed"

    def choose(self, running: Sequence[Request], beneficiary: Request) -> Request:
        return min(running, key=lambda r: (tokens_lost(r), -r.admitted_serial))


class MostBlocks:
    """The request with the most blocks, so that few are preempted; of equals the one admitted last."""

    name = "most-blocks"

    def choose(self, running: Sequence[Request], beneficiary: Request) -> Request:
        return max(running, key=lambda r: (r.num_blocks, r.admitted_serial))


def choose_victims(
    rule: VictimRule, candidates: Sequence[Request], beneficiary: Request, enough: Callable[[list[Request]], bool]
) -> list[Request]:
    """Victims by the rule, one after the other, until they are enough; none when not even all would be.

    One that turns out not to be needed, because a later one gave more, is let off.
    """
    left, chosen = list(candidates), list[Request]()
    if not left or not enough(left):
        return []
    while not enough(chosen):
        victim = rule.choose(left, beneficiary)
        left.remove(victim)
        chosen.append(victim)
    for victim in chosen[:-1]:
        fewer = [other for other in chosen if other is not victim]
        if enough(fewer):
            chosen = fewer
    return chosen


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a victim's KV, and what was compared: seconds for both ways, None where they are unknown."""

    swap: bool
    why: ev.ModeWhy
    swap_seconds: float | None = None
    recompute_seconds: float | None = None


class PreemptionMode(Protocol):
    """What becomes of a victim's KV: thrown away and computed again, or moved to the host pool and back."""

    name: str

    def choose(self, victim: Request, blocks: BlockManager, rates: ExecutorRates) -> Choice:
        """Changes nothing. Without room in the host pool the answer is recompute, never an error."""
        ...


class Recompute:
    """Throw the KV away; prompt and outputs are computed again when the request returns."""

    name = "recompute"

    def choose(self, victim: Request, blocks: BlockManager, rates: ExecutorRates) -> Choice:
        return Choice(False, ev.ModeWhy.MODE)


class Swap:
    """Move the KV to the host pool while there is room; nothing that was computed is lost."""

    name = "swap"

    def choose(self, victim: Request, blocks: BlockManager, rates: ExecutorRates) -> Choice:
        if not any(seq.num_computed for seq in victim.sequences):
            return Choice(False, ev.ModeWhy.NOTHING_COMPUTED)
        if blocks.host.free < _moved(victim):
            return Choice(False, ev.ModeWhy.HOST_FULL)
        return Choice(True, ev.ModeWhy.MODE)


class Hybrid:
    """Whichever is estimated to take less time: the blocks out and in again, or the tokens computed again."""

    name = "hybrid"

    def choose(self, victim: Request, blocks: BlockManager, rates: ExecutorRates) -> Choice:
        swap = _known(2 * rates.swap_seconds(_moved(victim)))
        recompute = _known(rates.prefill_seconds(tokens_lost(victim)))
        forced = Swap().choose(victim, blocks, rates)
        if not forced.swap:
            return Choice(False, forced.why, swap, recompute)
        # before anything was measured nothing is thrown away
        cheaper = swap is None or recompute is None or swap < recompute
        return Choice(cheaper, ev.ModeWhy.CHEAPER, swap, recompute)


def tokens_lost(victim: Request) -> int:
    """Computed tokens that a recompute throws away; the prompt of several samples was computed once."""
    computed = [seq.num_computed for seq in victim.sequences if seq.blocks or seq.host_blocks]
    if len(computed) <= 1:
        return sum(computed)
    return sum(computed) - (len(computed) - 1) * min(victim.prompt_len, *computed)


def _moved(victim: Request) -> int:
    return blocks_of((seq.blocks for seq in victim.sequences), share=True)


def _known(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


VICTIM_RULES: dict[str, Callable[[Callable[[Request], tuple[float, ...]]], VictimRule]] = {
    "policy": LeastImportant,
    "latest": lambda rank: Latest(),
    "least-computed": lambda rank: LeastComputed(),
    "most-blocks": lambda rank: MostBlocks(),
}
PREEMPTION_MODES: dict[str, type[PreemptionMode]] = {"recompute": Recompute, "swap": Swap, "hybrid": Hybrid}


def make_victim_rule(name: str, rank: Callable[[Request], tuple[float, ...]]) -> VictimRule:
    """The victim rule of that name; `rank` says how little a request matters to the policy. Raises BadValue."""
    if name not in VICTIM_RULES:
        raise BadValue("victim", name, f"choose one of {', '.join(VICTIM_RULES)}")
    return VICTIM_RULES[name](rank)


def make_preemption_mode(name: str) -> PreemptionMode:
    """The preemption mode of that name. Raises BadValue."""
    if name not in PREEMPTION_MODES:
        raise BadValue("preemption_mode", name, f"choose one of {', '.join(PREEMPTION_MODES)}")
    return PREEMPTION_MODES[name]()


TO_HOST = Choice(True, ev.ModeWhy.MODE)
TO_RECOMPUTE = Choice(False, ev.ModeWhy.MODE)


class Preemption:
    """A part of a scheduler: takes requests out of `running`, brings swapped ones back, and tells.

    What the schedulers do not share (keys in the queues, what counts as lost) it asks of its own one.
    """

    def __init__(self, scheduler: SchedulerState) -> None:
        self._scheduler = scheduler
        self._told_host_full = False

    def recompute(
        self,
        victim: Request,
        beneficiary: Request,
        cause: ev.PreemptCause,
        step: StepPass | None,
        choice: Choice,
        pool_after: int | None,
    ) -> None:
        """From running to waiting; what it computed is thrown away."""
        scheduler, pool = self._scheduler, self._scheduler.blocks.pool
        used_before, for_key = pool.used, beneficiary.key
        lost = scheduler._tokens_lost(victim)
        rule, rank, for_rank = scheduler._chosen_by(victim, beneficiary) if pool_after is None else ("", (), ())
        self._leave_running(victim, step)
        for seq in victim.sequences:
            scheduler._tell_freed(seq, scheduler.blocks.free(seq))
        victim.status = RequestStatus.WAITING
        victim.beam_found = {}
        victim.key = self._key_of_victim(victim, scheduler._returning_key)
        scheduler._requeue(victim, step)
        scheduler.note(
            ev.Preempted(
                id=victim.request_id,
                for_id=beneficiary.request_id,
                cause=cause,
                mode="recompute",
                rule=rule,
                key=victim.key,
                for_key=for_key,
                blocks_freed=used_before - pool.used,
                tokens_lost=lost,
                used_before=used_before,
                used_after=pool.used,
                pool=pool.total,
                count=victim.preemptions,
                rank=rank,
                for_rank=for_rank,
                why=choice.why,
                swap_seconds=choice.swap_seconds,
                recompute_seconds=choice.recompute_seconds,
                pool_after=pool_after,
            )
        )

    def _leave_running(self, victim: Request, step: StepPass | None) -> None:
        if step is not None:
            step.give_back(victim)
            step.victim = step.victim or victim
        self._scheduler.running.remove(victim)
        self._scheduler.forget_skipped(victim)
        victim.preemptions += 1
        victim.owed_token = False

    def _key_of_victim(self, victim: Request, key: Callable[[Request], Key]) -> Key:
        """Its key from now on. When the policy raises here the preemption is never told, so it does not count."""
        try:
            self._scheduler.policy.on_preempt(victim, self._scheduler.now)
            return key(victim)
        except BaseException:
            victim.preemptions -= 1
            raise

    def swap_out(
        self,
        step: StepPass,
        victim: Request,
        beneficiary: Request,
        cause: ev.PreemptCause,
        choice: Choice = TO_HOST,
    ) -> None:
        """From running to swapped; what it computed moves to the host pool."""
        scheduler, pool = self._scheduler, self._scheduler.blocks.pool
        used_before, for_key = pool.used, beneficiary.key
        self._leave_running(victim, step)
        victim.status = RequestStatus.SWAPPED
        victim.key = self._key_of_victim(victim, scheduler._swapped_key)
        pairs = scheduler.blocks.swap_out(victim)
        scheduler._tell_evicted()
        step.swap_out += pairs
        self._told_host_full = False
        scheduler.swapped.push(victim)
        scheduler.note(
            ev.SwappedOut(
                id=victim.request_id,
                for_id=beneficiary.request_id,
                cause=cause,
                rule=scheduler.rule_name,
                key=victim.key,
                for_key=for_key,
                tables=[list(seq.host_blocks) for seq in _by_index(victim)],
                pairs=pairs,
                used_before=used_before,
                used_after=pool.used,
                pool=pool.total,
                count=victim.preemptions,
                why=choice.why,
                swap_seconds=choice.swap_seconds,
                recompute_seconds=choice.recompute_seconds,
            )
        )

    def swap_in(self, step: StepPass, request: Request, need: int, watermark: int) -> None:
        """From swapped to running; `need` and `watermark` are told."""
        scheduler, pool = self._scheduler, self._scheduler.blocks.pool
        free, cached = pool.free, pool.cached
        scheduler.swapped.remove(request)
        pairs = scheduler.blocks.swap_in(request)
        scheduler._tell_evicted()
        step.swap_in += pairs
        step.returned.add(request)
        request.status = RequestStatus.RUNNING
        request.key = scheduler._returned_key(request)
        scheduler.running.push(request)
        scheduler.forget_told()
        tables = [list(seq.blocks) for seq in _by_index(request)]
        scheduler.note(ev.SwappedIn(request.request_id, request.key, tables, pairs, need, free, watermark, cached))
        scheduler.policy.on_admit(request, step.now, 0)

    def lose(self, request: Request) -> None:
        """From swapped to waiting: what it has in the host pool cannot be used."""
        scheduler = self._scheduler
        lost = scheduler._tokens_lost(request)
        scheduler.swapped.remove(request)
        for seq in request.sequences:
            scheduler.blocks.host.drop(seq)
            scheduler.blocks.free(seq)
        request.beam_found = {}
        request.status = RequestStatus.WAITING
        request.key = scheduler._returning_key(request)
        scheduler._requeue(request, None)
        scheduler.note(ev.SwapOutFailed(request.request_id, request.key, lost))

    def tell_host_full(self, choice: Choice) -> None:
        """Once, until there is room again."""
        if choice.why is ev.ModeWhy.HOST_FULL and not self._told_host_full:
            self._told_host_full = True
            host = self._scheduler.blocks.host
            text = f"host pool full ({host.free} of {host.total} blocks free): victims are recomputed; raise swap_space"
            self._scheduler.note(ev.Note("warning", text))


def _by_index(request: Request) -> list[rq.Sequence]:
    """The sequences as events number them; beams may stand in another order."""
    return sorted(request.sequences, key=lambda seq: seq.index)
