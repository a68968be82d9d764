"""A stand-in for LLMEngine without a model: first come first served, the latest admitted is the victim.

It tells the same Frames as the engine, so that everything above it can be tested without torch. Its clock moves by a
fixed amount per step, so that what it tells is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vtop.engine import events as ev
from vtop.engine.clock import Clock, ManualClock
from vtop.engine.errors import BadValue
from vtop.engine.request import SamplingParams

WORDS = "the cat sat on a mat and saw the moon rise over quiet hills while rain fell softly".split()  # noqa: SIM905


def toy_meta(num_blocks: int = 64, block_size: int = 16) -> ev.Meta:
    return ev.Meta(
        schema=ev.SCHEMA_VERSION,
        version="0.1.0",
        model="toy",
        device="cpu",
        dtype="float32",
        backend="torch",
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=2048,
        token_budget=128,
        max_num_seqs=16,
        config={
            "scheduling_policy": "fcfs",
            "batching": "chunked",
            "preemption_mode": "recompute",
            "admission": "reserve-full-prompt",
            "victim": "latest",
        },
        unix_time=1_700_000_000.0,
        engine_time=0.0,
        kv_note=f"{num_blocks} blocks of {block_size} tokens",
    )


@dataclass
class ToyRequest:
    id: str
    number: int
    prompt_tokens: int
    max_tokens: int
    text: str = ""
    computed: int = 0
    known: int = 0
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def output(self) -> int:
        return self.known - self.prompt_tokens


class ToyEngine:
    """The part of LLMEngine's interface that EngineThread and the headless run use."""

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        block_size: int = 16,
        step_seconds: float = 0.02,
        clock: Clock | None = None,
        before_step: Callable[[int], None] | None = None,
    ) -> None:
        self.meta = toy_meta(num_blocks, block_size)
        self.clock = clock if clock is not None else ManualClock(self.meta.engine_time)
        self.step_seconds = step_seconds
        self.before_step = before_step
        self.waiting: list[ToyRequest] = []
        self.running: list[ToyRequest] = []
        self.free = list(range(num_blocks))
        self.pool = num_blocks
        self.step_number = 0
        self.serial = 0
        self.numbers = 0
        self.admissions = 0
        self.last_step_ran = False
        self.not_before = 0.0
        self.closed = False
        self._events: list[ev.AnyEvent] = []
        self._listeners: list[Callable[[ev.Frame], None]] = []
        self._told: tuple[str, type] | None = None

    # --- LLMEngine's interface ---------------------------------------------------------------------------------

    def on_frame(self, callback: Callable[[ev.Frame], None]) -> None:
        self._listeners.append(callback)

    def note(self, event: ev.AnyEvent) -> None:
        self._events.append(event)

    def flush(self) -> None:
        if self._events:
            self._publish(ran=False)

    def close(self) -> None:
        self.closed = True

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(
        self,
        request_id: str,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        group: str = "default",
        timeout: float | None = None,
        deadline: float | None = None,
        expected_tokens: int | None = None,
        cache_salt: str = "",
    ) -> None:
        params = params or SamplingParams()
        tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        text = prompt if isinstance(prompt, str) else None
        need = -(-tokens // self.meta.block_size)
        if tokens == 0 or need > self.pool:
            code = ev.RefusalCode.EMPTY_PROMPT if tokens == 0 else ev.RefusalCode.NEVER_FITS
            self._events.append(ev.Refused(request_id, code, f"{code}: {need} of {self.pool}", need, self.pool, text))
            raise BadValue("prompt", prompt, "give a prompt that fits")
        max_tokens = params.max_tokens or 32
        self.numbers += 1
        request = ToyRequest(request_id, self.numbers, tokens, max_tokens, known=tokens)
        self.waiting.append(request)
        self._events.append(
            ev.Arrived(
                id=request_id,
                number=request.number,
                key=(float(-priority), float(request.number)),
                arrival=self.clock.now(),
                prompt_tokens=tokens,
                limit=tokens + max_tokens,
                max_tokens=params.max_tokens,
                prompt=text,
                priority=priority,
                group=group,
                temperature=params.temperature,
                seed=params.seed or 0,
            )
        )

    def abort_request(self, request_id: str) -> bool:
        for queue in (self.waiting, self.running):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._give_back(request)
                    self._events.append(ev.Finished(request_id, "abort", request.output))
                    return True
        return False

    def resize_pool(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise BadValue("num_blocks", num_blocks, "give at least 1")
        for request in [r for r in self.running if any(b >= num_blocks for b in r.blocks)]:
            self._preempt(request, request, ev.PreemptCause.POOL_RESIZED)
        held = {b for r in self.running for b in r.blocks}
        self._events.append(ev.PoolResized(self.pool, num_blocks))
        self.pool = num_blocks
        self.free = [b for b in range(num_blocks) if b not in held]

    def step(self) -> None:
        if self.before_step is not None:
            self.before_step(self.step_number)
        self.step_number += 1
        if isinstance(self.clock, ManualClock):
            self.clock.advance(self.step_seconds)
        preempted = False
        left = self.meta.token_budget
        plan: list[tuple[ToyRequest, int]] = []
        for request in list(self.running):
            if request not in self.running or left == 0:
                continue
            count = min(left, request.known - request.computed)
            while not self._grow(request, request.computed + count):
                victim = self.running[-1]
                plan = [(r, n) for r, n in plan if r is not victim]
                self._preempt(victim, request, ev.PreemptCause.NO_FREE_BLOCK)
                preempted = True
                if victim is request:
                    break
            if request in self.running:
                plan.append((request, count))
                left -= count
        limit = ev.Limit.PREEMPTED if preempted else ev.Limit.NONE
        while self.waiting and not preempted:
            head = self.waiting[0]
            reason = self._why_not(head, left)
            if reason is not None:
                kind = (head.id, type(reason))
                if kind != self._told:
                    self._told = kind
                    self._events.append(ev.Waits(head.id, reason))
                limit = ev.Limit.BLOCKS if isinstance(reason, ev.NeedsBlocks) else ev.Limit.BUDGET
                limit = ev.Limit.SEQS if isinstance(reason, ev.NeedsSeat) else limit
                break
            self.waiting.pop(0)
            self.running.append(head)
            self.admissions += 1
            need = -(-head.known // self.meta.block_size)
            self._events.append(ev.Admitted(head.id, self.admissions, head.preemptions > 0, need, len(self.free)))
            count = min(left, head.known)
            self._grow(head, head.known)
            plan.append((head, count))
            left -= count
        self._compute(plan, limit)
        self.last_step_ran = bool(plan)
        self._publish(ran=True)

    # --- inside ------------------------------------------------------------------------------------------------

    def _why_not(self, head: ToyRequest, left: int) -> Any:
        need = -(-head.known // self.meta.block_size)
        if len(self.running) >= self.meta.max_num_seqs:
            return ev.NeedsSeat(self.meta.max_num_seqs)
        if left == 0:
            return ev.NeedsBudget(head.known, left, self.meta.token_budget)
        if need > len(self.free):
            return ev.NeedsBlocks(need, len(self.free))
        return None

    def _grow(self, request: ToyRequest, tokens: int) -> bool:
        missing = -(-tokens // self.meta.block_size) - len(request.blocks)
        if missing <= 0:
            return True
        if missing > len(self.free):
            return False
        taken = [self.free.pop(0) for _ in range(missing)]
        request.blocks += taken
        self._events.append(ev.BlocksTaken(request.id, taken))
        return True

    def _give_back(self, request: ToyRequest) -> None:
        if request.blocks:
            self.free += reversed(request.blocks)
            self._events.append(ev.BlocksFreed(request.id, request.blocks[::-1]))
            request.blocks = []

    def _preempt(self, victim: ToyRequest, winner: ToyRequest, cause: ev.PreemptCause) -> None:
        used = self.pool - len(self.free)
        lost, freed = victim.computed, len(victim.blocks)
        victim.preemptions += 1
        self._give_back(victim)
        victim.computed = 0
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self._events.append(
            ev.Preempted(
                id=victim.id,
                for_id=winner.id,
                cause=cause,
                mode="recompute",
                rule="latest",
                key=(0.0, float(victim.number)),
                for_key=(0.0, float(winner.number)),
                blocks_freed=freed,
                tokens_lost=lost,
                used_before=used,
                used_after=used - freed,
                pool=self.pool,
                count=victim.preemptions,
            )
        )

    def _compute(self, plan: list[tuple[ToyRequest, int]], limit: ev.Limit) -> None:
        ids = [r.id for r, _ in plan]
        self._events.append(ev.Scheduled(ids, [n for _, n in plan], self.meta.token_budget, limit))
        done: list[ToyRequest] = []
        told: list[tuple[str, int, str]] = []
        for request, count in plan:
            request.computed += count
            if request.computed < request.known:
                continue
            token = (request.number * 7 + request.output * 3) % len(WORDS)
            told.append((request.id, token, " " + WORDS[token]))
            request.known += 1
            if request.output >= request.max_tokens:
                done.append(request)
        if told:
            self._events.append(ev.Tokens([t[0] for t in told], [t[1] for t in told], [t[2] for t in told]))
        for request in done:
            self.running.remove(request)
            self._give_back(request)
            self._events.append(ev.Finished(request.id, "length", request.output))
        model = self.step_seconds * 0.8
        self._events.append(ev.StepTimes(0.0002, 0.0005, model, 0.001, 0.0004))

    def _publish(self, ran: bool) -> None:
        frame = ev.Frame(self.serial, self.step_number, self.clock.now(), ran, self._events)
        self.serial += 1
        self._events = []
        for listener in self._listeners:
            listener(frame)
