"""EngineState: what the engine looks like, rebuilt from Frames alone.

The live view, a recording, a replay and the audit all read this. Nothing here asks the engine.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vtop.engine import events as ev
from vtop.engine.request import Phase, RequestStatus

FREE = -1  # in `owner`: the block belongs to nobody
KEEP_FINISHED = 1000
KEEP_REFUSED = 200


@dataclass(slots=True)
class SequenceView:
    """One sequence: its tokens so far (counts), its text, its block table."""

    num_tokens: int
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    text_parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        if len(self.text_parts) > 1:
            self.text_parts[:] = ["".join(self.text_parts)]
        return self.text_parts[0] if self.text_parts else ""


@dataclass(slots=True)
class RequestView:
    """A request as a person sees it. Times are engine seconds; None until they happen."""

    id: str
    number: int
    prompt: str | None
    prompt_tokens: int
    limit: int
    max_tokens: int | None
    priority: int
    group: str
    key: tuple[float, ...]
    arrival: float
    temperature: float
    seed: int
    deadline: float | None = None
    status: RequestStatus = RequestStatus.WAITING
    sequences: list[SequenceView] = field(default_factory=list)
    admitted_serial: int = -1
    admissions: int = 0
    preemptions: int = 0
    tokens_lost: int = 0
    hit_tokens: int = 0  # that need not be computed, over all admissions
    reason: ev.WaitReason | None = None
    reason_since: float = 0.0
    scheduled_tokens: int = 0  # in the latest step that ran
    phase: Phase | None = None  # of the latest chunk
    queued_at: float = 0.0  # when it last entered the waiting queue
    preempted_wait: float = 0.0  # seconds waited after preemptions, until admitted again
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    longest_gap: float = 0.0  # seconds between two output tokens
    ended: float | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None
    message: str = ""

    @property
    def output_tokens(self) -> int:
        return sum(len(seq.output_tokens) for seq in self.sequences)

    @property
    def computed(self) -> int:
        return sum(seq.num_computed for seq in self.sequences)

    @property
    def num_blocks(self) -> int:
        return sum(len(seq.blocks) for seq in self.sequences)

    @property
    def text(self) -> str:
        return self.sequences[0].text

    @property
    def planned_output(self) -> int:
        """Most output tokens it may give."""
        return self.limit - self.prompt_tokens

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival to the first admission; waits after preemptions are `preempted_wait`."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first."""
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.output_tokens - 1)


@dataclass(slots=True)
class StepView:
    """The latest step that ran."""

    step: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    sequences: int = 0
    budget: int = 0
    limit: ev.Limit = ev.Limit.NONE
    times: ev.StepTimes | None = None
    preemptions: int = 0


@dataclass(slots=True)
class Totals:
    """Counters since the first Frame."""

    arrived: int = 0
    refused: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    tokens_computed: int = 0
    tokens_lost: int = 0
    output_tokens: int = 0
    peak_used: int = 0
    steps: int = 0
    failures: int = 0
    looked_up_tokens: int = 0  # by first admissions; each counts once
    hit_tokens: int = 0
    resumed_hit_tokens: int = 0  # found again after a preemption
    evictions: int = 0  # blocks
    copies: int = 0  # on write


class EngineState:
    """Fold of Frames.

    `hashed` marks blocks whose content can be hit; cached ones are those that nobody holds.
    `ref_count` and `owner` are int32 arrays with one entry per block of the device pool: how many table entries hold
    it, and the `number` of the request that took it last (FREE when nobody holds it).
    `waiting` maps id to view; `running` is in policy order (by key). Finished requests are kept up to a bound.
    """

    def __init__(self, meta: ev.Meta, keep_finished: int = KEEP_FINISHED) -> None:
        self.meta = meta
        self.block_size = meta.block_size
        self.ref_count: npt.NDArray[np.int32] = np.zeros(meta.num_blocks, np.int32)
        self.owner: npt.NDArray[np.int32] = np.full(meta.num_blocks, FREE, np.int32)
        self.hashed: npt.NDArray[np.bool_] = np.zeros(meta.num_blocks, np.bool_)  # content can be hit
        self._sharers: dict[int, list[int]] = {}  # of blocks with several holders: their numbers, latest last
        self.used = 0
        self.requests: dict[str, RequestView] = {}  # alive ones
        self.waiting: dict[str, RequestView] = {}
        self.running: dict[str, RequestView] = {}
        self.finished: deque[RequestView] = deque(maxlen=keep_finished)
        self.refused: deque[ev.Refused] = deque(maxlen=KEEP_REFUSED)
        self.blocked_head: str | None = None
        self.serial = -1
        self.step = 0
        self.time = meta.engine_time
        self.began = meta.engine_time  # when the decisions of the latest Frame were taken
        self.paused = False
        self.pause_reason = ""
        self.speed: float | None = None
        self.last_step = StepView()
        self.idle_frames = 0  # steps in a row that computed nothing although somebody waits
        self.totals = Totals()

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return len(self.ref_count)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose content can be hit."""
        return int(np.count_nonzero(self.hashed & (self.ref_count == 0)))

    @property
    def free(self) -> int:
        """Blocks that can be handed out: without content, or cached."""
        return self.num_blocks - self.used

    def waiting_order(self) -> list[RequestView]:
        """Waiting requests, next one first."""
        return sorted(self.waiting.values(), key=lambda r: r.key)

    def running_order(self) -> list[RequestView]:
        """Running requests in policy order."""
        return sorted(self.running.values(), key=lambda r: r.key)

    def copy(self) -> EngineState:
        """A state that stands still while this one goes on. Finished requests never change, so they are shared."""
        still = copy.copy(self)
        memo: dict[int, Any] = {id(self.meta): self.meta}
        memo.update((id(view), view) for view in self.finished)
        for name, value in vars(self).items():
            setattr(still, name, copy.deepcopy(value, memo))
        return still

    def find(self, request_id: str) -> RequestView | None:
        """A request by id: alive, or the latest finished one of that id that is still kept."""
        found = self.requests.get(request_id)
        if found is None:
            found = next((r for r in reversed(self.finished) if r.id == request_id), None)
        return found

    def holders(self, block: int) -> Iterator[tuple[RequestView, int, int]]:
        """(request, sequence index, logical index) of every table entry that holds `block`."""
        for request in self.requests.values():
            for index, seq in enumerate(request.sequences):
                for logical, held in enumerate(seq.blocks):
                    if held == block:
                        yield request, index, logical

    # --- folding -----------------------------------------------------------------------------------------------

    def apply(self, frame: ev.Frame) -> None:
        """Take the next Frame. Raises ValueError when a Frame is missing between the last one and this one."""
        if frame.serial != self.serial + 1:
            raise ValueError(f"frame {frame.serial} does not follow {self.serial}")
        self.serial = frame.serial
        self.step = frame.step
        self.time = frame.time
        self.began = frame.time if frame.began is None else frame.began
        if frame.ran:
            self.totals.steps += 1
            self.last_step = StepView(step=frame.step)
        for event in frame.events:
            _HANDLERS[type(event)](self, event)
        self.totals.peak_used = max(self.totals.peak_used, self.used)
        if frame.ran:
            stuck = bool(self.waiting) and not self.running and self.last_step.tokens == 0
            self.idle_frames = self.idle_frames + 1 if stuck else 0

    def _arrived(self, e: ev.Arrived) -> None:
        view = RequestView(
            id=e.id,
            number=e.number,
            prompt=e.prompt,
            prompt_tokens=e.prompt_tokens,
            limit=e.limit,
            max_tokens=e.max_tokens,
            priority=e.priority,
            group=e.group,
            key=e.key,
            arrival=e.arrival,
            deadline=e.deadline,
            temperature=e.temperature,
            seed=e.seed,
            queued_at=e.arrival,
            sequences=[SequenceView(e.prompt_tokens)],
        )
        self.requests[e.id] = self.waiting[e.id] = view
        self.totals.arrived += 1

    def _refused(self, e: ev.Refused) -> None:
        self.refused.append(e)
        self.totals.refused += 1

    def _admitted(self, e: ev.Admitted) -> None:
        view = self.waiting.pop(e.id)
        self.running[e.id] = view
        view.status = RequestStatus.RUNNING
        view.admitted_serial = e.serial
        view.admissions += 1
        view.reason = None
        if view.first_scheduled is None:
            view.first_scheduled = self.began
        else:
            view.preempted_wait += self.began - view.queued_at
        if self.blocked_head == e.id:
            self.blocked_head = None

    def _waits(self, e: ev.Waits) -> None:
        view = self.requests[e.id]
        view.reason = e.reason
        view.reason_since = self.began
        self.blocked_head = e.id

    def _skipped(self, e: ev.Skipped) -> None:
        view = self.requests[e.id]
        view.reason = e.reason
        view.reason_since = self.began

    def _blocks_taken(self, e: ev.BlocksTaken) -> None:
        view = self.requests[e.id]
        view.sequences[e.seq].blocks.extend(e.blocks)
        for block in e.blocks:
            self._hold(view, block)

    def _blocks_freed(self, e: ev.BlocksFreed) -> None:
        view = self.requests[e.id]
        seq = view.sequences[e.seq]
        seq.blocks.clear()
        seq.num_computed = 0
        for block in e.blocks:
            self._let_go(view, block)

    def _prefix_lookup(self, e: ev.PrefixLookup) -> None:
        view = self.requests[e.id]
        view.sequences[0].num_computed = e.hit
        view.hit_tokens += e.hit
        totals = self.totals
        if e.resumed:
            totals.resumed_hit_tokens += e.hit
        else:
            totals.looked_up_tokens += e.tokens
            totals.hit_tokens += e.hit

    def _cached(self, e: ev.Cached) -> None:
        self.hashed[e.blocks] = True

    def _evicted(self, e: ev.Evicted) -> None:
        self.hashed[e.blocks] = False
        self.totals.evictions += len(e.blocks)

    def _cache_reset(self, e: ev.CacheReset) -> None:
        self.hashed[:] = False

    def _copied_on_write(self, e: ev.CopiedOnWrite) -> None:
        view = self.requests[e.id]
        view.sequences[e.seq].blocks[e.logical] = e.target
        self._hold(view, e.target)
        self._let_go(view, e.source)
        self.totals.copies += 1

    def _hold(self, view: RequestView, block: int) -> None:
        if self.ref_count[block] == 0:
            self.used += 1
        else:
            self._sharers.setdefault(block, [int(self.owner[block])]).append(view.number)
        self.ref_count[block] += 1
        self.owner[block] = view.number

    def _let_go(self, view: RequestView, block: int) -> None:
        self.ref_count[block] -= 1
        sharers = self._sharers.get(block)
        if sharers is not None:
            sharers.remove(view.number)
            self.owner[block] = sharers[-1]
            if len(sharers) == 1:
                del self._sharers[block]
        else:
            self.used -= 1
            self.owner[block] = FREE

    def _scheduled(self, e: ev.Scheduled) -> None:
        step = self.last_step
        step.budget, step.limit = e.budget, e.limit
        step.tokens, step.sequences = sum(e.tokens), len(e.ids)
        seqs = e.seqs or [0] * len(e.ids)
        for request_id, index, tokens in zip(e.ids, seqs, e.tokens, strict=True):
            view = self.requests[request_id]
            seq = view.sequences[index]
            decode = seq.num_computed >= max(view.prompt_tokens, seq.num_tokens - 1)
            if decode:
                view.phase = Phase.DECODE
            else:
                step.prefill_tokens += tokens
                view.phase = Phase.RE_PREFILL if view.preemptions else Phase.PREFILL
            seq.num_computed += tokens
            view.scheduled_tokens = tokens
            view.reason = None
        self.totals.tokens_computed += step.tokens

    def _preempted(self, e: ev.Preempted) -> None:
        view = self.running.pop(e.id)
        self.waiting[e.id] = view
        view.status = RequestStatus.WAITING
        view.key = e.key
        view.preemptions = e.count
        view.tokens_lost += e.tokens_lost
        view.queued_at = self.began
        view.scheduled_tokens = 0
        view.reason = None
        self.last_step.preemptions += 1
        self.totals.preemptions += 1
        self.totals.tokens_lost += e.tokens_lost

    def _tokens(self, e: ev.Tokens) -> None:
        seqs = e.seqs or [0] * len(e.ids)
        for request_id, index, token, text in zip(e.ids, seqs, e.tokens, e.texts, strict=True):
            view = self.requests[request_id]
            seq = view.sequences[index]
            seq.num_tokens += 1
            seq.output_tokens.append(token)
            if text:
                seq.text_parts.append(text)
            if view.first_token is None:
                view.first_token = self.time
            elif view.last_token is not None:
                view.longest_gap = max(view.longest_gap, self.time - view.last_token)
            view.last_token = self.time
        self.totals.output_tokens += len(e.ids)

    def _finished(self, e: ev.Finished) -> None:
        view = self.requests.pop(e.id)
        self.waiting.pop(e.id, None)
        self.running.pop(e.id, None)
        if e.text:
            view.sequences[0].text_parts.append(e.text)
        view.status = RequestStatus.FINISHED
        view.finish_reason, view.stop_reason, view.message = e.reason, e.stop_reason, e.message
        view.ended = self.time
        view.reason = None
        view.scheduled_tokens = 0
        if self.blocked_head == e.id:
            self.blocked_head = None
        self.finished.append(view)
        self.totals.finished[e.reason] += 1

    def _step_failed(self, e: ev.StepFailed) -> None:
        self.totals.failures += 1

    def _pool_resized(self, e: ev.PoolResized) -> None:
        keep = min(e.before, e.after)
        ref_count, owner, hashed = self.ref_count, self.owner, self.hashed
        self.ref_count = np.zeros(e.after, np.int32)
        self.owner = np.full(e.after, FREE, np.int32)
        self.hashed = np.zeros(e.after, np.bool_)
        self.hashed[:keep] = hashed[:keep]
        self.ref_count[:keep] = ref_count[:keep]
        self.owner[:keep] = owner[:keep]

    def _step_times(self, e: ev.StepTimes) -> None:
        self.last_step.times = e

    def _paused(self, e: ev.Paused) -> None:
        self.paused, self.pause_reason = True, e.why

    def _resumed(self, e: ev.Resumed) -> None:
        self.paused, self.pause_reason = False, ""

    def _speed_set(self, e: ev.SpeedSet) -> None:
        self.speed = e.steps_per_second

    def _ignore(self, e: ev.Event) -> None:
        pass


_HANDLERS: dict[type, Callable[[EngineState, Any], None]] = {
    ev.Arrived: EngineState._arrived,
    ev.Refused: EngineState._refused,
    ev.Admitted: EngineState._admitted,
    ev.Waits: EngineState._waits,
    ev.Skipped: EngineState._skipped,
    ev.BlocksTaken: EngineState._blocks_taken,
    ev.BlocksFreed: EngineState._blocks_freed,
    ev.PrefixLookup: EngineState._prefix_lookup,
    ev.Cached: EngineState._cached,
    ev.Evicted: EngineState._evicted,
    ev.CacheReset: EngineState._cache_reset,
    ev.CopiedOnWrite: EngineState._copied_on_write,
    ev.Scheduled: EngineState._scheduled,
    ev.Preempted: EngineState._preempted,
    ev.Tokens: EngineState._tokens,
    ev.Finished: EngineState._finished,
    ev.StepFailed: EngineState._step_failed,
    ev.PoolResized: EngineState._pool_resized,
    ev.StepTimes: EngineState._step_times,
    ev.Paused: EngineState._paused,
    ev.Resumed: EngineState._resumed,
    ev.SpeedSet: EngineState._speed_set,
    ev.SubscriberBehind: EngineState._ignore,
    ev.Note: EngineState._ignore,
}
