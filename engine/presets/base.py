"""PresetScheduler: what the presets share: their options, and queues that are ordered by place.

Numbers are those of `RULES.md`, with the list that they are of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.policies.queues import HeapQueue, RunningList
from vtop.engine.request import Key, Request, RequestStatus
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.core import SchedulerCore
from vtop.engine.sched.output import OutputProcessor

LIVE = ("max_num_seqs", "max_waiting", "request_timeout")
"""Options that a preset's rules do not fix: these change while requests run."""


@dataclass(frozen=True, slots=True)
class PresetOptions:
    """What the rules of both presets depend on; each reads its own.

    `own_victim_ends_pass` is a fault of the original that costs time and nothing else (V1: 5).
    """

    max_model_len: int
    chunked: bool = False
    priority: bool = False
    watermark_blocks: int = 0
    prefer_swap: bool = False  # also victims of one sequence (V0: 15)
    reserve_full_prompt: bool = True  # (V1: 8)
    own_victim_ends_pass: bool = False


def preset_options(config: EngineConfig, num_blocks: int, max_model_len: int) -> PresetOptions:
    """The options that an engine's configuration gives its preset."""
    return PresetOptions(
        max_model_len=max_model_len,
        chunked=config.batching == "chunked",
        priority=config.scheduling_policy == "priority",
        watermark_blocks=config.watermark_blocks(num_blocks),
        prefer_swap=config.preemption_mode == "swap",
        reserve_full_prompt=config.admission != "first-chunk",
        own_victim_ends_pass=config.preset_quirks,
    )


class PresetScheduler(SchedulerCore):
    """Queues are ordered by place, not by a policy: a key is where a request stands, and moving it tells a new key."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        outputs: OutputProcessor,
        token_budget: int,
        options: PresetOptions,
    ) -> None:
        plain = replace(config, preset="sensible", preemption_mode="recompute")
        super().__init__(plain, blocks, outputs, token_budget, options.max_model_len)
        self.config = config
        self.options = options
        self.waiting = HeapQueue()
        self.running = RunningList()
        self._back = -1.0  # the largest place ever given in `waiting`

    # --- places ------------------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float | None = None) -> Request | None:
        turned_away = super().add(request, now)
        self._rekey(request, self._arrival_key(request))
        return turned_away

    def _arrival_key(self, request: Request) -> Key:
        self._back = max(float(request.number), self._back + 1)
        return (self._back,)

    def place_of(self, request: Request) -> Key:
        place = float(request.number)
        return (float(request.priority), request.arrival, place) if self.options.priority else (place,)

    def _returning_key(self, request: Request) -> Key:
        """In front of everybody who waits."""
        head = self.waiting.peek()
        number = float(request.number)
        return (number,) if head is None or number < head.key[0] else (head.key[0] - 1,)

    def _running_key(self, request: Request) -> Key:
        """Behind everybody who runs."""
        last = max((r.key[0] for r in self.running), default=None)
        number = float(request.number)
        return (number,) if last is None or number > last else (last + 1,)

    def _swapped_key(self, victim: Request) -> Key:
        """Behind everybody who is swapped out."""
        return (max((r.key[0] for r in self.swapped.ordered()), default=-1.0) + 1,)

    def _returned_key(self, request: Request) -> Key:
        return self._running_key(request)

    def _rekey(self, request: Request, key: Key) -> None:
        if key != request.key:
            queue = self.running if request.status is RequestStatus.RUNNING else self.waiting
            queue.remove(request)
            request.key = key
            queue.push(request)
            self._events.append(ev.Rekeyed([request.request_id], [key]))

    def rekey(self, request: Request) -> None:
        if request.status is RequestStatus.WAITING:
            self._rekey(request, self._arrival_key(request))

    def _arrange(self, order: Iterable[Request]) -> None:
        """Put requests of one queue into this order, with as few new keys as possible."""
        place: float | None = None
        for request in order:
            if place is not None and request.key[0] <= place:
                self._rekey(request, (place + 1,))
            place = request.key[0]
        if place is not None:
            self._back = max(self._back, place)

    def take_events(self) -> list[ev.AnyEvent]:
        self._tell_evicted()
        return super().take_events()

    def resize(self, num_blocks: int) -> list[Request]:
        """As in the core; the watermark is a part of the pool that there is now."""
        self.options = replace(self.options, watermark_blocks=self.config.watermark_blocks(num_blocks))
        return super().resize(num_blocks)

    # --- changes of state --------------------------------------------------------------------------------------------

    def _start(self, request: Request, step: StepPass, need: int, watermark: int) -> None:
        """From waiting to running, at its end."""
        free, cached = self.blocks.pool.free, self.blocks.pool.cached
        resumed = self._leave_waiting(request, step.now)
        key, request.key = request.key, self._running_key(request)
        self.running.push(request)
        self._events.append(
            ev.Admitted(request.request_id, request.admitted_serial, resumed, need, free, watermark, cached)
        )
        if request.key != key:
            self._events.append(ev.Rekeyed([request.request_id], [request.key]))
        self.policy.on_admit(request, step.now)

    def _tokens_lost(self, victim: Request) -> int:
        """Of several sequences each computes the prompt again by itself."""
        return sum(seq.num_computed for seq in victim.sequences)

    @property
    def rule_name(self) -> str:
        return "preset"

    def _chosen_by(self, victim: Request, beneficiary: Request) -> tuple[str, Key, Key]:
        """A preset has one rule, which compares no ranks."""
        return self.rule_name, (), ()

    def set_option(self, name: str, value: Any) -> None:
        """Presets fix what their rules read."""
        if name not in LIVE:
            raise BadValue("option", name, f"preset {self.config.preset} fixes it; these can: {', '.join(LIVE)}")
        super().set_option(name, value)

    def _undo(self, step: StepPass, at: Request | None) -> None:
        """Presets take a running prompt for computed, and its blocks for cached: who was in the step begins anew."""
        for request in self.running.snapshot():
            if request in step.chunks or not all(seq.blocks for seq in request.computing):
                self._preempt(request, request, ev.PreemptCause.STEP_FAILED, step)
