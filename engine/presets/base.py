"""PresetScheduler: what the presets share: queues in an order of their own, groups, swaps, and the step's result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vtop.engine import events as ev
from vtop.engine.block_manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, SampledToken, StepOutput, StepPlan
from vtop.engine.order import Key
from vtop.engine.output_processor import OutputProcessor
from vtop.engine.preemption import Choice
from vtop.engine.presets.options import PresetOptions
from vtop.engine.queues import HeapQueue, RunningList
from vtop.engine.request import FinishReason, Request, RequestStatus, Sequence
from vtop.engine.scheduler_core import SchedulerCore, StepPass

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

    def add(self, request: Request, now: float | None = None) -> None:
        super().add(request, now)
        self._rekey(request, self._arrival_key(request))

    def _arrival_key(self, request: Request) -> Key:
        self._back = max(float(request.number), self._back + 1)
        return (self._back,)

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
            if isinstance(queue, RunningList):
                queue.add(request)
            else:
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

    # --- changes of state --------------------------------------------------------------------------------------------

    def _start(self, request: Request, step: StepPass, need: int, free: int, watermark: int) -> None:
        """From waiting to running, at its end."""
        self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        resumed = request.admissions > 0
        request.admissions += 1
        request.admitted_serial = self._admissions
        self._admissions += 1
        if request.first_scheduled is None:
            request.first_scheduled = step.now
        key, request.key = request.key, self._running_key(request)
        self.running.add(request)
        self._told_wait = None
        self.policy.on_admit(request, step.now)
        self._events.append(ev.Admitted(request.request_id, request.admitted_serial, resumed, need, free, watermark))
        if request.key != key:
            self._events.append(ev.Rekeyed([request.request_id], [request.key]))

    def _preempt(
        self,
        victim: Request,
        needy: Request,
        cause: ev.PreemptCause,
        step: StepPass | None,
        choice: Choice | None = None,
    ) -> None:
        """Throw the victim's K/V away; it goes to the front of waiting."""
        pool, for_key = self.blocks.pool, needy.key
        used = pool.used
        lost = sum(seq.num_computed for seq in victim.sequences)
        self._leave_running(victim, step)
        for seq in victim.sequences:
            self._tell_freed(seq, self.blocks.free(seq))
        victim.status = RequestStatus.WAITING
        self.policy.on_preempt(victim, self.now)
        victim.key = self._returning_key(victim)
        self._requeue(victim, step)
        self._events.append(
            ev.Preempted(
                id=victim.request_id,
                for_id=needy.request_id,
                cause=cause,
                mode="recompute",
                rule="preset",
                key=victim.key,
                for_key=for_key,
                blocks_freed=used - pool.used,
                tokens_lost=lost,
                used_before=used,
                used_after=pool.used,
                pool=pool.total,
                count=victim.preemptions,
            )
        )

    def _leave_running(self, victim: Request, step: StepPass | None) -> None:
        if step is not None:
            step.give_back(victim)
            step.victim = step.victim or victim
        self.running.remove(victim)
        self._told_skipped.discard(victim)
        victim.preemptions += 1

    def _requeue(self, victim: Request, step: StepPass | None) -> None:
        self.waiting.push(victim)

    def set_option(self, name: str, value: Any) -> None:
        """Presets fix what their rules read."""
        if name not in LIVE:
            raise BadValue("option", name, f"preset {self.config.preset} fixes it; these can: {', '.join(LIVE)}")
        super().set_option(name, value)

    # --- the result of a step ----------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, output: StepOutput) -> None:
        """As in the core, but what is written is indexed in the preset's own way, and may have ended meanwhile."""
        given: list[tuple[Sequence, SampledToken]] = []
        for index, (chunk, sampled) in enumerate(zip(plan.chunks, output.tokens, strict=True)):
            if chunk.sequence.request.finished:
                continue  # ended while this step was in flight
            self._written(chunk)
            if sampled is not None:
                if chunk.forks:
                    given += self._fork(chunk.sequence, chunk.forks, output.forked[index])
                given.append((chunk.sequence, sampled))
        ended: list[tuple[Sequence, FinishReason, str | int | None, str]] = []
        texts = []
        for seq, sampled in given:
            seq.token_ids.append(sampled.token_id)
            accepted = self._outputs.accept(seq, sampled)
            texts.append(accepted.text)
            if accepted.finish is not None:
                ended.append((seq, accepted.finish, accepted.stop_reason, ""))
            elif not self.options.faithful and not self.blocks.ever_fits(seq.num_tokens):
                ended.append((seq, FinishReason.CAPACITY, None, self._capacity_message(seq)))
        if given:
            ids = [seq.request.request_id for seq, _ in given]
            seqs = [seq.index for seq, _ in given]
            tokens = [sampled.token_id for _, sampled in given]
            self._events.append(ev.Tokens(ids, tokens, texts, seqs if any(seqs) else []))
        for seq, reason, stop_reason, message in ended:
            self.end_sequence(seq, reason, stop_reason=stop_reason, message=message)

    def _written(self, chunk: Chunk) -> None:
        chunk.sequence.num_computed = chunk.start + chunk.num_tokens
