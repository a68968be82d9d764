"""V0Scheduler: vLLM V0 without chunking. Numbers are those of `RULES.md`."""

from __future__ import annotations

from collections import deque

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.executor import StepPlan
from vtop.engine.presets.groups import seats_of
from vtop.engine.presets.options import PresetOptions, PresetStopped
from vtop.engine.presets.v0_blocks import Room, V0Blocks
from vtop.engine.presets.v0_core import V0Core
from vtop.engine.presets.v0_swap import V0Pass
from vtop.engine.request import Request
from vtop.engine.sched.output import OutputProcessor


class V0Scheduler(V0Core):
    """A step is all prefill or all decode (2).

    Prompts first, unless somebody is swapped out; a step that admitted nobody may make way for an urgent request (21),
    then decodes, and lets swapped requests return if no decode took another's blocks.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: V0Blocks,
        outputs: OutputProcessor,
        token_budget: int,
        options: PresetOptions,
    ) -> None:
        super().__init__(config, blocks, outputs, token_budget, options)
        self._stranded: set[Request] = set()

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step."""
        self._begin(now)
        step = self.deciding = V0Pass(now, self.token_budget, seats=sum(seats_of(request) for request in self.running))
        if not self.swapped:
            self._admit(step)
        if not step.admitted:
            if self.options.priority:
                self._make_way(step)
            self._run_running(step)
            if not step.gave_way:
                self._return_swapped(step)
        batch = step.admitted + step.decodes + step.returned_decodes
        order = self.running.snapshot() if step.admitted else step.unreached + step.decodes + step.returned_decodes
        return self._decided(step, order, batch)

    def _make_way(self, step: V0Pass) -> None:
        """Sort running; the least urgent give way until the head of waiting fits. It is admitted in a later step (21).

        Only the head of the queue as it is, is looked at; only then waiting is sorted. Victims are recomputed even
        where swapping is preferred: a swapped one would shut the door for the urgent one (22).
        """
        queue = deque(sorted(self.running.snapshot(), key=_urgency))
        head = self.waiting.peek()
        if head is not None:
            tokens, _ = self._wanted(step, head, False)
            while queue and _urgency(queue[-1]) > _urgency(head) and not self._fits(step, head, tokens):
                victim = queue.pop()
                step.seats -= seats_of(victim)
                if self.options.faithful and self._mode_for(victim) == "swap":
                    self._strand(victim)
                self._preempt(victim, head, ev.PreemptCause.MORE_URGENT, step)
        self._arrange(queue)
        self._arrange(sorted(self.waiting.ordered(), key=_urgency))

    def _strand(self, victim: Request) -> None:
        """The original swaps it out, forgets where to, and stops when it comes to the head of waiting (22)."""
        if not self.blocks.room_to_swap_out(victim.computing):
            raise PresetStopped("host_pool_full", "the host pool has no room for a victim")
        self.blocks.host.lose_new(sum(len(seq.blocks) for seq in victim.sequences))
        self._stranded.add(victim)

    def _next_waiting(self, step: V0Pass) -> Request | None:
        head = super()._next_waiting(step)
        if head in self._stranded:
            raise PresetStopped("internal_assertion", "a swapped request is at the head of waiting")
        return head

    def _fits(self, step: V0Pass, head: Request, tokens: int) -> bool:
        room = self.blocks.room_for(self._blocks_of_prompt(head), self.options.watermark_blocks)
        return room is Room.OK and self._why_not(step, head, tokens, room) is None


def _urgency(request: Request) -> tuple[float, float]:
    return request.priority, request.arrival
