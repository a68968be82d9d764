"""vLLM V0 with the faults that vtop leaves out, and with what it has no option for.

Faults: steps that stop the engine, host blocks that never return, hits on K/V that is not written yet. Options: delay
factor (12), lookahead slots (13), partial prefills (31). Numbers are those of V0's list in `presets/RULES.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Literal

from vtop.engine import request as rq
from vtop.engine.blocks.host import HostPool
from vtop.engine.config import EngineConfig
from vtop.engine.executor import StepPlan
from vtop.engine.presets.base import PresetOptions
from vtop.engine.presets.blocks import StackPool, V0Blocks
from vtop.engine.presets.v0 import V0Scheduler, V0Step
from vtop.engine.presets.v0_chunked import V0ChunkedScheduler
from vtop.engine.request import Request, Sequence
from vtop.engine.sched.output import OutputProcessor

Preemption = Literal["auto", "recompute", "swap"]


@dataclass(frozen=True, slots=True)
class V0CaseOptions(PresetOptions):
    """What a recorded case may say beside the options of the product."""

    preemption: Preemption = "auto"
    delay_factor: float = 0.0
    max_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_threshold: int = 0


class PresetStopped(RuntimeError):
    """The original engine stops here with an exception; `kind` names it."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


# --- blocks ----------------------------------------------------------------------------------------------------------


class LeakyHostPool(HostPool):
    """A host pool of which blocks get lost."""

    def __init__(self, total: int, *, highest_first: bool = False) -> None:
        super().__init__(total, StackPool(total, highest_first=highest_first) if total else None)
        self.lost = 0

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return super().used - self.lost

    def check(self, tables: Iterable[Sequence_[int]]) -> None:
        if not self.lost:
            super().check(tables)

    def lose(self, sequences: Iterable[rq.Sequence]) -> None:
        """The sequences end and their host blocks never return."""
        lost: set[int] = set()
        for seq in sequences:
            lost.update(seq.host_blocks)
            seq.host_blocks.clear()
        self.lost += len(lost)

    def lose_new(self, count: int) -> None:
        """Take blocks that never return."""
        if self._pool is not None:
            self.lost += len(self._pool.allocate(count))


class FaithfulV0Blocks(V0Blocks):
    """Blocks count as written when their step is decided, and what of a prompt is cached is looked up once.

    However long the prompt waits: both can hand out wrong K/V. `lookahead` are slots past the known tokens, for
    sequences that decode.
    """

    host: LeakyHostPool

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, host_blocks: int, lookahead: int
    ) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.host = LeakyHostPool(host_blocks)
        self._lookahead = lookahead
        self._looked_up: dict[Sequence, int] = {}

    def _slots(self, seq: Sequence) -> int:
        return seq.num_tokens + (self._lookahead if self.decodes(seq) else 0)

    def touched(self, seq: Sequence) -> int:
        """A last block with room counts as one that an append takes, even of a chunk that takes nothing (13)."""
        filled, size = self.filled(seq), self.block_size
        return max(0, 1 - (size - filled % size - (self._slots(seq) - filled)) // size)

    def can_swap_out(self, seqs: list[Sequence]) -> bool:
        """More blocks are asked for than it takes (17)."""
        return max(sum(len(seq.blocks) for seq in seqs), self._full_and_touched(seqs)) <= self.host.free

    def swap_in_need(self, seqs: list[Sequence]) -> int:
        return self._full_and_touched(seqs)

    def _full_and_touched(self, seqs: list[Sequence]) -> int:
        return sum(self.filled(seq) // self.block_size + self.touched(seq) for seq in seqs)

    def cached_tokens(self, seq: Sequence) -> int:
        if not self.looks_up(seq):
            return 0
        if seq not in self._looked_up:
            self._looked_up[seq] = self._find_cached(seq)
        return self._looked_up[seq]

    def _is_shareable(self, block: int) -> bool:
        return True

    def decided(self, seqs: list[Sequence]) -> None:
        super().decided(seqs)
        for seq in seqs:
            self._written.update(seq.blocks)

    def _forget_unwritten(self, seq: Sequence) -> None:
        """It stays cached."""

    def free(self, seq: Sequence) -> list[int]:
        self._looked_up.pop(seq, None)
        return super().free(seq)

    def forget_sequence(self, seq: Sequence) -> None:
        super().forget_sequence(seq)
        self._looked_up.pop(seq, None)


class OlderV0Blocks(FaithfulV0Blocks):
    """The older manager of 0.6.2: high block ids first, one free block for each sequence that appends, no lookahead."""

    shares_on_swap = True

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, host_blocks: int, lookahead: int
    ) -> None:
        super().__init__(
            num_blocks, block_size, prefix_caching=prefix_caching, host_blocks=host_blocks, lookahead=lookahead
        )
        self.pool = StackPool(num_blocks, highest_first=True)
        self.host = LeakyHostPool(host_blocks, highest_first=True)

    def can_append(self, seqs: list[Sequence]) -> bool:
        return len(seqs) <= self.pool.available

    def can_swap_out(self, seqs: list[Sequence]) -> bool:
        return len({block for seq in seqs for block in seq.blocks}) <= self.host.free

    def swap_in_need(self, seqs: list[Sequence]) -> int:
        return len({block for seq in seqs for block in seq.host_blocks}) + len(seqs)


# --- schedulers ------------------------------------------------------------------------------------------------------


class _FaithfulPasses(V0Scheduler):
    """What both schedulers do otherwise than in the product."""

    blocks: FaithfulV0Blocks
    options: V0CaseOptions

    def __init__(
        self,
        config: EngineConfig,
        blocks: FaithfulV0Blocks,
        outputs: OutputProcessor,
        token_budget: int,
        options: V0CaseOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        self._last_prompt_step: float | None = None  # when the latest step with prompts was decided, if it just was
        self._prompt_seconds = 0.0

    @property
    def capacity(self) -> float:
        """The original ends no request because of the size of its pool."""
        return math.inf

    def _preempt_or_swap(self, step: V0Step, victim: Request, beneficiary: Request) -> None:
        if self._prefers_swap(victim):
            if not self.blocks.can_swap_out(victim.computing):
                raise PresetStopped("host_pool_full", "the host pool has no room for a victim")
        elif len(victim.computing) > 1:
            raise PresetStopped("internal_assertion", "a group of several sequences cannot be recomputed")
        super()._preempt_or_swap(step, victim, beneficiary)

    def _prefers_swap(self, victim: Request) -> bool:
        if self.options.preemption == "auto":
            return super()._prefers_swap(victim)
        return self.options.preemption == "swap"

    def _watermark_of_return(self) -> int:
        return self.options.watermark_blocks

    def _wanted_on_return(self, step: V0Step, head: Request) -> int:
        """All that is left of a prompt at once, and may wait for ever (20)."""
        return self._left(head)[0]

    def _drop_swapped(self, head: Request) -> None:
        """Its host blocks never return (18)."""
        self.blocks.host.lose(head.sequences)
        super()._drop_swapped(head)

    def _next_waiting(self, step: V0Step) -> Request | None:
        return super()._next_waiting(step) if self._delay_is_over(step) else None

    def _delay_is_over(self, step: V0Step) -> bool:
        """With a delay factor, prompts are held back to let a batch gather, unless nothing runs (12)."""
        if self._last_prompt_step is not None:
            self._prompt_seconds = step.now - self._last_prompt_step
            self._last_prompt_step = None
        factor = self.options.delay_factor
        idle = not (step.unreached if self.options.chunked else len(self.running))
        if factor <= 0 or idle or not self.waiting:
            return True
        oldest = min(request.arrival for request in self.waiting.ordered())
        return step.now - oldest > factor * self._prompt_seconds

    def _decided(self, step: V0Step, running: list[Request], batch: list[Request]) -> StepPlan:
        if step.admitted:
            self._last_prompt_step = step.now
        return super()._decided(step, running, batch)


class FaithfulV0(_FaithfulPasses):
    """Without chunking: a victim of the priority pass that is swapped out is lost, and stops the engine later (22)."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: FaithfulV0Blocks,
        outputs: OutputProcessor,
        token_budget: int,
        options: V0CaseOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        self._stranded: set[Request] = set()

    def _displace(self, step: V0Step, victim: Request, head: Request) -> None:
        """Where to it was swapped out is forgotten: from here on it is as if it had been recomputed."""
        if self._prefers_swap(victim):
            if not self.blocks.can_swap_out(victim.computing):
                raise PresetStopped("host_pool_full", "the host pool has no room for a victim")
            self.blocks.host.lose_new(sum(len(seq.blocks) for seq in victim.sequences))
            self._stranded.add(victim)
        super()._displace(step, victim, head)

    def _next_waiting(self, step: V0Step) -> Request | None:
        head = super()._next_waiting(step)
        if head in self._stranded:
            raise PresetStopped("internal_assertion", "a swapped request is at the head of waiting")
        return head


@dataclass(slots=True)
class _Prefills:
    """How many prefills share the budget of this step, and how many long ones run."""

    share: int
    long: int


class FaithfulV0Chunked(_FaithfulPasses, V0ChunkedScheduler):
    """With chunking: 0.8.5's partial prefills, of which short ones may pass long ones (31)."""

    def _run_running(self, step: V0Step) -> None:
        self._prefills = self._count_prefills()
        super()._run_running(step)

    def _count_prefills(self) -> _Prefills:
        """Prefills that run and that could be admitted now. Long ones that could not are left out."""
        count = long = waiting_long = 0
        for request in self.running:
            if not self.blocks.decodes(request.sequences[0]):
                count += 1
                long += self._is_long(request)
        most = self.options.max_partial_prefills
        if most == 1:
            return _Prefills(1, long)
        for request in self.waiting.ordered():
            if count >= most:
                break
            if self._is_long(request):
                if long + waiting_long >= self.options.max_long_partial_prefills:
                    continue
                waiting_long += 1
            count += 1
        return _Prefills(min(count, most), long)

    def _is_long(self, request: Request) -> bool:
        seq = request.sequences[0]
        threshold = self.options.long_prefill_threshold
        if not threshold and self.options.max_partial_prefills > 1:
            threshold = int(self.options.max_model_len * 0.04)
        return seq.num_tokens - seq.num_computed > threshold

    def _chunk(self, tokens: int, left: int) -> int:
        size = self.blocks.block_size
        if self.blocks.prefix_caching and self.token_budget % size:
            raise PresetStopped("budget_not_in_blocks", f"the token budget is not a multiple of {size}")
        return super()._chunk(tokens, min(left, self.token_budget // max(1, self._prefills.share)))

    def _admit(self, step: V0Step) -> None:
        self._passed_over: list[Request] = []
        super()._admit(step)
        for request in self._passed_over:
            self.waiting.push(request)

    def _next_waiting(self, step: V0Step) -> Request | None:
        """The head; a long prompt for which no place is left is passed over by those behind it."""
        while (head := super()._next_waiting(step)) is not None:
            full = self._prefills.long >= self.options.max_long_partial_prefills
            if self.options.max_partial_prefills == 1 or not full or not self._is_long(head):
                return head
            self.waiting.remove(head)
            self._passed_over.append(head)
        return None

    def _place(self, step: V0Step, head: Request, tokens: int, cached: int) -> None:
        self._prefills.long += self._is_long(head)
        super()._place(step, head, tokens, cached)
