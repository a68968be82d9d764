"""PresetScheduler: what the presets share: queues in an order of their own, groups, swaps, and the step's result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, SampledToken
from vtop.engine.order import Key
from vtop.engine.policies.queues import HeapQueue, RunningList
from vtop.engine.presets.options import PresetOptions
from vtop.engine.request import Request, RequestStatus
from vtop.engine.sched.changes import StepPass
from vtop.engine.sched.core import SchedulerCore
from vtop.engine.sched.output import Given, OutputProcessor
from vtop.engine.sched.samples import fork_samples

LIVE = ("max_num_seqs", "max_waiting", "request_timeout")


class PresetScheduler(SchedulerCore):
    """Queues are ordered by place, not by a policy: a key is where the request stands, and moving it tells a new key.

    `paused`: "new" admits nobody, "all" runs nothing, None is neither.
    """

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
        self.paused: str | None = None
        self._back = -1.0  # the largest place ever given in `waiting`
        self._put_aside: list[Request] = []  # victims that join `waiting` when the step is decided

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
        heads = [r.key[0] for r in self._put_aside]
        head = self.waiting.peek()
        front = min([*heads, head.key[0]] if head is not None else heads, default=None)
        number = float(request.number)
        return (number,) if front is None or number < front else (front - 1,)

    def _running_key(self, request: Request) -> Key:
        """Behind everybody who runs."""
        last = max((r.key[0] for r in self.running), default=None)
        number = float(request.number)
        return (number,) if last is None or number > last else (last + 1,)

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
        self.options = replace(self.options, watermark_blocks=int(self.config.watermark * num_blocks))
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

    def _chosen_by(self, victim: Request, needy: Request) -> tuple[str, Key, Key]:
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
        for request in self._put_aside:
            self.waiting.push(request)
        self._put_aside = []

    # --- the result of a step ----------------------------------------------------------------------------------------

    @property
    def capacity(self) -> float:
        return math.inf if self.options.faithful else super().capacity

    def _take_chunk(
        self,
        given: Given,
        chunk: Chunk,
        sampled: SampledToken | None,
        forked: Mapping[int, list[SampledToken]],
        index: int,
    ) -> None:
        """As in the core, but what is written is indexed in the preset's own way, and may have ended meanwhile."""
        if chunk.sequence.request.finished:
            return
        self._written(chunk)
        if sampled is not None:
            others = fork_samples(self, chunk.sequence, chunk.forks, forked[index]) if chunk.forks else ()
            for seq, token in (*others, (chunk.sequence, sampled)):
                self._accept(given, seq, token)

    def _written(self, chunk: Chunk) -> None:
        chunk.sequence.num_computed = chunk.start + chunk.num_tokens
