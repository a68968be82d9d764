"""V0Swapping: who gives way in vLLM V0 and how, and how swapped requests return.

Numbers are those of `RULES.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.executor import Chunk
from vtop.engine.order import Key
from vtop.engine.presets.base import PresetScheduler
from vtop.engine.presets.groups import seats_of
from vtop.engine.presets.options import PresetStopped
from vtop.engine.presets.v0_blocks import Room, TableChange, V0Blocks
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.changes import StepPass


@dataclass(slots=True)
class V0Pass(StepPass):
    """One step being decided. `left` counts uncached tokens only (6); a group takes all its seats (4)."""

    seats: int = 0  # taken
    reached: int = 0  # seats of the running requests that got tokens
    gave_way: bool = False  # somebody was preempted in the pass over running requests
    unreached: list[Request] = field(default_factory=list)  # running ones that the budget did not reach
    admitted: list[Request] = field(default_factory=list)
    prefills: list[Request] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    returned_prefills: list[Request] = field(default_factory=list)
    returned_decodes: list[Request] = field(default_factory=list)


class V0Swapping(PresetScheduler):
    """Preemption by recomputation or by swapping, and the way back."""

    blocks: V0Blocks

    def _give_way(self, step: V0Pass, victim: Request, needy: Request) -> None:
        """Preempt by recomputation if there is one sequence, by swapping if there are several; or as told (15-17)."""
        mode = self._mode_for(victim)
        fits = self.blocks.room_to_swap_out(victim.computing)
        single = len(victim.computing) == 1
        if self.options.faithful:
            if mode == "recompute" and not single:
                raise PresetStopped("internal_assertion", "a group of several sequences cannot be recomputed")
            if mode == "swap" and not fits:
                raise PresetStopped("host_pool_full", "the host pool has no room for a victim")
        if fits and (mode == "swap" or not single):
            self.preemption.swap_out(step, victim, needy, ev.PreemptCause.NO_FREE_BLOCK)
        else:
            self._preempt(victim, needy, ev.PreemptCause.NO_FREE_BLOCK, step)

    def _mode_for(self, victim: Request) -> str:
        if self.options.preemption == "auto":
            return "recompute" if seats_of(victim) == 1 else "swap"
        return self.options.preemption

    def _swapped_key(self, victim: Request) -> Key:
        """Behind everybody who is swapped out."""
        return (max((r.key[0] for r in self.swapped.ordered()), default=-1.0) + 1,)

    def _returned_key(self, request: Request) -> Key:
        return self._running_key(request)

    # --- swapped -----------------------------------------------------------------------------------------------------

    def _return_swapped(self, step: V0Pass) -> None:
        """Swapped requests, first come first served, until one does not fit (18)."""
        while (head := self.swapped.peek()) is not None:
            self.concerns = head
            idle = not (len(self.running) or self.options.faithful)
            watermark = 0 if idle else self.options.watermark_blocks
            room = self.blocks.room_to_swap_in(head.computing, self._lookahead(head), watermark)
            if room is Room.NEVER:
                if self.options.faithful:
                    self.blocks.host.lose(head.sequences)
                self._ignore(head, FinishReason.CAPACITY, self._too_large(head))
                continue
            # the original wants all that is left of a prompt at once, and may wait for ever (20)
            tokens, _ = self._wanted(step, head, self.options.chunked and not self.options.faithful)
            reason = self._why_not(step, head, tokens, room)
            if reason is not None:
                self._tell_wait(step, head, reason)
                return
            need = self.blocks.swap_in_need(head.computing, self._lookahead(head))
            self.preemption.swap_in(step, head, need, watermark)
            decode = self.blocks.decodes(head.computing[0])
            self._append(step, head)
            (step.returned_decodes if decode else step.returned_prefills).append(head)
            self._compute(step, head, tokens)
            step.seats += seats_of(head)

    def _why_not(self, step: V0Pass, head: Request, tokens: int, room: Room) -> ev.WaitReason | None:
        if room is Room.LATER:
            seqs = head.computing
            need = self.blocks.swap_in_need(seqs, 0) if seqs[0].host_blocks else self._blocks_of_prompt(head)
            return self._needs_blocks(need, self.options.watermark_blocks)
        if tokens <= 0 or tokens > step.left:
            return ev.NeedsBudget(tokens, step.left, self.token_budget)
        if step.seats + seats_of(head) > self.config.max_num_seqs:
            return ev.NeedsSeat(self.config.max_num_seqs)
        return None

    # --- parts -------------------------------------------------------------------------------------------------------

    def _compute(self, step: V0Pass, request: Request, tokens: int) -> None:
        """Put the request into the batch: so many tokens of its one sequence, or what each of several lacks."""
        seqs = request.computing
        for seq in seqs:
            start = seq.num_computed
            end = start + tokens if len(seqs) == 1 else seq.num_tokens
            sample = end == seq.num_tokens
            children = [] if request.forked or not sample else request.sequences[1:]
            step.add(request, Chunk(seq, start, end - start, sample, forks=children))

    def _append(self, step: V0Pass, request: Request) -> None:
        lookahead = self._lookahead(request)
        for seq in request.computing:
            self._tell_change(step, seq, self.blocks.append(seq, lookahead))

    def _tell_change(self, step: V0Pass, seq: Sequence, change: TableChange) -> None:
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

    def _wanted(self, step: V0Pass, request: Request, chunked: bool) -> tuple[int, int]:
        """(tokens to compute, tokens that are cached) of what a request wants in this step."""
        uncached = cached = 0
        seqs = request.computing
        for seq in seqs:
            left = seq.num_tokens - seq.num_computed
            if len(seqs) == 1 and not self.blocks.decodes(seq):
                # the last token is computed even where it is cached, for its logits (26)
                cached = max(0, min(self.blocks.cached_tokens(seq) - seq.num_computed, left - 1))
            uncached += left - cached
        if chunked and len(seqs) == 1:
            uncached = self._chunk(step, uncached)
        return uncached, cached

    def _chunk(self, step: V0Pass, tokens: int) -> int:
        return tokens

    def _lookahead(self, request: Request) -> int:
        """Slots past the known tokens, for sequences that decode."""
        return self.options.lookahead if self.blocks.decodes(request.computing[0]) else 0

    def _ignore(self, request: Request, reason: FinishReason, message: str) -> None:
        self.finish(request, reason, message=message)

    def _blocks_of_prompt(self, request: Request) -> int:
        return sum(self.blocks.blocks_for(seq.num_tokens) for seq in request.computing)

    def _too_large(self, request: Request) -> str:
        total, watermark = self.blocks.pool.total, self.options.watermark_blocks
        need = self._blocks_of_prompt(request)
        size = self.blocks.block_size
        return f"needs {need} blocks of {size}; the pool has {total}, of which {watermark} stay available"
