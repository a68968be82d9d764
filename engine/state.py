"""EngineState: what the engine looks like, rebuilt from Frames alone.

The live view, a recording, a replay and the audit all read this. Nothing here asks the engine.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from vtop.engine import events as ev
from vtop.engine.order import Key, order_key
from vtop.engine.request import Phase, RequestStatus
from vtop.engine.state_blocks import FREE, BlockHolders
from vtop.engine.views import Move, Moves, RequestView, SequenceView, StepView, Told, Totals

__all__ = ["FREE", "EngineState", "Move", "Moves", "RequestView", "SequenceView", "StepView", "Told", "Totals"]

KEEP_FINISHED = 1000
KEEP_REFUSED = 200


class EngineState(BlockHolders):
    """Fold of Frames.

    `hashed` marks blocks whose content can be hit; cached ones are those that nobody holds.
    `ref_count` and `owner` are int32 arrays with one entry per block of the device pool: how many table entries hold
    it, and the `number` of the request that took it last (FREE when nobody holds it). `host_ref_count` and
    `host_owner` are the same for the host pool. `moved_out` and `moved_in` are swaps between the two (source block,
    target block), `copied` is copies on write, each of the latest step that had any.
    `waiting` maps id to view; `running` is in policy order (by key). Finished requests are kept up to a bound.
    """

    def __init__(self, meta: ev.Meta, keep_finished: int = KEEP_FINISHED) -> None:
        super().__init__(meta.num_blocks, meta.num_host_blocks)
        self.meta = meta
        self.block_size = meta.block_size
        self.requests: dict[str, RequestView] = {}  # alive ones
        self.waiting: dict[str, RequestView] = {}
        self.running: dict[str, RequestView] = {}
        self.swapped: dict[str, RequestView] = {}
        self.moved_out, self.moved_in, self.copied = Moves(), Moves(), Moves()
        self.finished: deque[RequestView] = deque(maxlen=keep_finished)
        self.refused: deque[ev.Refused] = deque(maxlen=KEEP_REFUSED)
        self.blocked_head: str | None = None
        self.options: dict[str, Any] = dict(meta.config)  # as they are now, after live switches
        self.fair_at = meta.fair_at
        self.counters: dict[str, float] = {}  # virtual token counters by group; what `fair` orders by
        self.lifts: dict[str, ev.Lifted] = {}  # the latest of each group
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

    def waiting_order(self) -> list[RequestView]:
        """Waiting requests, next one first."""
        return sorted(self.waiting.values(), key=self.order)

    def running_order(self) -> list[RequestView]:
        """Running requests in policy order."""
        return sorted(self.running.values(), key=self.order)

    def swapped_order(self) -> list[RequestView]:
        """Swapped requests, the next one to return first."""
        return sorted(self.swapped.values(), key=self.order)

    def order(self, request: RequestView) -> Key:
        """What requests are sorted by now."""
        return order_key(request.key, request.group, self.fair_at, self.counters)

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
            kind = type(event)
            if kind in _DECISIONS:
                self._remember(event)
            _HANDLERS[kind](self, event)
        self.totals.peak_used = max(self.totals.peak_used, self.used)
        if frame.ran:
            stuck = bool(self.waiting or self.swapped) and not self.running and self.last_step.tokens == 0
            self.idle_frames = self.idle_frames + 1 if stuck else 0

    def _remember(self, event: Any) -> None:
        view = self.requests.get(event.id)
        if view is not None:
            view.history.append(Told(self.step, self.began, event))

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
            expires=e.expires,
            temperature=e.temperature,
            seed=e.seed,
            expected_tokens=e.expected_tokens,
            queued_at=e.arrival,
            sequences=[SequenceView(e.prompt_tokens) for _ in range(e.samples)],
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
        view.passed = 0
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
        seq = view.sequences[e.seq]
        seq.blocks.extend(e.blocks)
        seq.num_computed = max(seq.num_computed, e.computed)
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
        view.sequences[e.seq].num_computed = e.hit
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
        self.copied.add(self.step, self.time, view.number, [(e.source, e.target)])
        self.totals.copies += 1

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

    def _swapped_out(self, e: ev.SwappedOut) -> None:
        view = self.running.pop(e.id)
        self.swapped[e.id] = view
        view.status = RequestStatus.SWAPPED
        view.key, view.preemptions = e.key, e.count
        view.queued_at = self.began
        view.scheduled_tokens = 0
        view.reason = None
        for seq, table in zip(view.sequences, e.tables, strict=True):
            for block in seq.blocks:
                self._let_go(view, block)
            for block in table:
                self.host_ref_count[block] += 1
                self.host_owner[block] = view.number  # blocks are shared inside a request only
            seq.blocks, seq.host_blocks = [], list(table)
        self.last_step.preemptions += 1
        self.totals.preemptions += 1
        self.moved_out.add(self.step, self.time, view.number, e.pairs)
        self.totals.swapped_out_blocks += len(e.pairs)

    def _swapped_in(self, e: ev.SwappedIn) -> None:
        view = self.swapped.pop(e.id)
        self.running[e.id] = view
        view.status = RequestStatus.RUNNING
        view.key, view.reason = e.key, None
        view.preempted_wait += self.began - view.queued_at
        for seq, table in zip(view.sequences, e.tables, strict=True):
            self._free_host(seq)
            for block in table:
                self._hold(view, block)
            seq.blocks = list(table)
        self.moved_in.add(self.step, self.time, view.number, e.pairs)
        self.totals.swapped_in_blocks += len(e.pairs)

    def _free_host(self, seq: SequenceView) -> None:
        for block in seq.host_blocks:
            self.host_ref_count[block] -= 1
            if self.host_ref_count[block] == 0:
                self.host_owner[block] = FREE
        seq.host_blocks = []

    def _forked(self, e: ev.Forked) -> None:
        view = self.requests[e.id]
        parent, child = view.sequences[e.parent], view.sequences[e.child]
        child.num_tokens, child.num_computed = parent.num_tokens, parent.num_computed
        child.output_tokens, child.text_parts = list(parent.output_tokens), list(parent.text_parts)
        child.blocks = list(e.blocks)
        for block in e.blocks:
            self._hold(view, block)

    def _merged(self, e: ev.Merged) -> None:
        view = self.requests[e.id]
        view.sequences[e.seq].blocks[e.logical] = e.into
        self._hold(view, e.into)
        self._let_go(view, e.block)

    def _passed(self, e: ev.Passed) -> None:
        for request_id in e.heads:
            self.requests[request_id].passed += 1

    def _group_service(self, e: ev.GroupService) -> None:
        self.counters.update(e.counters)

    def _lifted(self, e: ev.Lifted) -> None:
        self.lifts[e.group] = e

    def _moved(self, e: ev.Promoted | ev.Demoted) -> None:
        self.requests[e.id].key = e.key  # as it was, after aging

    def _priority_set(self, e: ev.PrioritySet) -> None:
        view = self.requests[e.id]
        view.priority, view.key = e.after, e.key

    def _switched(self, e: ev.Switched) -> None:
        self.options[e.option] = e.after

    def _rekeyed(self, e: ev.Rekeyed) -> None:
        for request_id, key in zip(e.ids, e.keys, strict=True):
            self.requests[request_id].key = key
        if e.fair_at is not None:
            if self.blocked_head is not None:  # somebody else may be the head; who it is will be told
                self.requests[self.blocked_head].reason = None
                self.blocked_head = None
            self.fair_at = e.fair_at
            self.counters = dict(e.counters)

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

    def _deadline_missed(self, e: ev.DeadlineMissed) -> None:
        self.requests[e.id].missed_deadline = True
        self.totals.deadline_misses += 1

    def _sequence_finished(self, e: ev.SequenceFinished) -> None:
        seq = self.requests[e.id].sequences[e.seq]
        seq.finish_reason, seq.stop_reason = e.reason, e.stop_reason
        if e.text:
            seq.text_parts.append(e.text)

    def _finished(self, e: ev.Finished) -> None:
        view = self.requests.pop(e.id)
        self.waiting.pop(e.id, None)
        self.running.pop(e.id, None)
        if self.swapped.pop(e.id, None) is not None:
            for seq in view.sequences:
                self._free_host(seq)
        if e.text:
            view.sequences[e.seq].text_parts.append(e.text)
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
        self._resize(e.before, e.after)

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


# Arrived is told before its view exists; it stands in the view's own fields
_DECISIONS = frozenset(
    {
        ev.Admitted, ev.PrefixLookup, ev.Waits, ev.Skipped, ev.Preempted, ev.SwappedOut, ev.SwappedIn, ev.Forked,
        ev.Passed, ev.Promoted, ev.Demoted, ev.PrioritySet, ev.DeadlineMissed, ev.SequenceFinished, ev.Finished,
    }
)  # fmt: skip

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
    ev.SwappedOut: EngineState._swapped_out,
    ev.SwappedIn: EngineState._swapped_in,
    ev.Forked: EngineState._forked,
    ev.Merged: EngineState._merged,
    ev.Passed: EngineState._passed,
    ev.GroupService: EngineState._group_service,
    ev.Lifted: EngineState._lifted,
    ev.Promoted: EngineState._moved,
    ev.Demoted: EngineState._moved,
    ev.PrioritySet: EngineState._priority_set,
    ev.Switched: EngineState._switched,
    ev.Rekeyed: EngineState._rekeyed,
    ev.Tokens: EngineState._tokens,
    ev.DeadlineMissed: EngineState._deadline_missed,
    ev.SequenceFinished: EngineState._sequence_finished,
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
