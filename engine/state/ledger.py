"""Ledger: the numbers of a run, kept from Frames as they come. Its size grows by one small record per request.

It knows less than EngineState (no blocks, no texts) and costs less, so that a simulation of a hundred thousand requests
is not a fold of its every block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from vtop.engine import events as ev
from vtop.engine.events import FAULTS, MOST_SAMPLES, inconsistent
from vtop.engine.policy_spec import parse_weights
from vtop.engine.state.ledger_blocks import BLOCK_HANDLERS, BlockLedger
from vtop.engine.state.records import GapHistogram, Refusals, RequestRecord, Sample

SERIES_POINTS = 2000  # of a time series, at most; twice as coarse whenever there are more
MOST_NOTES = 50  # of a run that are kept


class Ledger(BlockLedger):
    """`apply` takes Frames in order. With `keep_gaps`, every gap between tokens of a request is kept by its id;
    with `keep_spans`, the phases of every request: (from, to, phase)."""

    def __init__(self, meta: ev.Meta, *, keep_gaps: bool = False, keep_spans: bool = False) -> None:
        super().__init__(meta.block_size)
        self.meta = meta
        self.num_blocks = meta.num_blocks
        self.records: list[RequestRecord] = []
        self.gaps = GapHistogram()
        self.gaps_of: dict[str, list[float]] | None = {} if keep_gaps else None
        self.spans: dict[str, list[tuple[float, float, str]]] | None = {} if keep_spans else None
        self.service: dict[str, float] = {}  # per group: prompt tokens + 2 · output tokens, each counted once
        self.series: list[Sample] = []
        self.refusals: dict[str, Refusals] = {}  # by code
        self.notes: list[ev.Note] = []  # warnings and errors, at most MOST_NOTES; of texts that differ in numbers one
        # per group: service while it and another one waited, and what its share of that was by the weights
        self.contested: dict[str, tuple[float, float]] = {}
        self.time = meta.engine_time
        self._phase: dict[str, tuple[float, str]] = {}
        self._waiting = self._running = self._swapped = 0
        self._stride = 1
        self._frames = 0
        self._began = 0.0
        self._held = 0  # blocks, while the latest step was computed
        self._noted: set[str] = set()
        self._paid: dict[str, int] = {}  # id -> prompt tokens that were counted as service
        self._queued: Counter[str] = Counter()  # group -> requests that wait, preempted and swapped ones too
        self._weights = parse_weights(str(meta.config.get("group_weights") or ""))

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def running(self) -> int:
        return self._running

    @property
    def alive(self) -> int:
        return len(self._alive)

    def apply(self, frame: ev.Frame) -> None:
        """Take the next Frame. Raises InconsistentFrame when it does not follow from those before."""
        before, used = self.time, len(self._refs) / self.num_blocks
        self._held = len(self._refs)
        served = dict(self.service)
        self.time = frame.time
        self._began = frame.time if frame.began is None else frame.began
        for event in frame.events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                try:
                    handler(self, event)
                except FAULTS as error:
                    raise inconsistent(frame, event, error) from error
        totals = self.totals
        # up to this step what the last one left was held, and while it was computed what it was scheduled with
        held = self._held / self.num_blocks
        totals.pass_time(self._began - before, used, frame.time - self._began, held)
        totals.peak_swapped = max(totals.peak_swapped, self._swapped)
        totals.peak_waiting = max(totals.peak_waiting, self._waiting)
        if frame.ran:
            totals.steps += 1
            totals.busy += frame.time - self._began
            if len(self.service) > 1:
                services = self.service.values()
                totals.service_gap = max(totals.service_gap, max(services) - min(services))
            if len(self._queued) > 1:
                self._share(served)
            self._sample()

    def _share(self, before: dict[str, float]) -> None:
        """What this step gave the groups that still wait after its admissions: `before` is the service up to it."""
        got = {group: self.service.get(group, 0.0) - before.get(group, 0.0) for group in self._queued}
        total, weights = sum(got.values()), {group: self._weights.get(group, 1.0) for group in got}
        each = total / sum(weights.values())
        if total:
            for group, service in got.items():
                so_far, due = self.contested.get(group, (0.0, 0.0))
                self.contested[group] = so_far + service, due + each * weights[group]

    def _sample(self) -> None:
        self._frames += 1
        if self._frames % self._stride:
            return
        totals = self.totals
        self.series.append(
            Sample(
                self.time,
                self._held,
                self._waiting,
                self._running,
                self._swapped,
                totals.preemptions,
                totals.output_tokens,
                dict(self.service),
            )
        )
        if len(self.series) > SERIES_POINTS:
            del self.series[::2]
            self._stride *= 2

    # --- events ------------------------------------------------------------------------------------------------------

    def _arrived(self, e: ev.Arrived) -> None:
        if not 0 < e.samples <= MOST_SAMPLES:
            raise ValueError(f"{e.samples} samples")
        record = RequestRecord(
            e.id, e.number, e.arrival, e.prompt_tokens, e.group, e.priority, e.samples, e.deadline, e.expires
        )
        self.records.append(record)
        self.totals.arrive(record)
        self._alive[e.id] = record
        self._waiting += 1
        self._queued[e.group] += 1
        if e.samples > 1:
            for index in range(e.samples):
                self._again[e.id, index] = [0, 0]
        self._enter(e.id, "waiting", e.arrival)

    def _refused(self, e: ev.Refused) -> None:
        self.totals.refused += 1
        self.refusals.setdefault(str(e.code), Refusals(0, e.message)).count += 1

    def _note(self, e: ev.Note) -> None:
        kind = re.sub(r"[0-9]+", "#", e.text)  # how full a pool was is no news
        if e.level != "info" and len(self.notes) < MOST_NOTES and kind not in self._noted:
            self._noted.add(kind)
            self.notes.append(e)

    def _leave_queue(self, group: str) -> None:
        if not self._queued[group]:
            raise ValueError(f"nobody of group {group!r} waits")
        self._queued[group] -= 1
        if not self._queued[group]:
            del self._queued[group]

    def _admitted(self, e: ev.Admitted) -> None:
        record = self._alive[e.id]
        if record.first_scheduled is None:
            record.first_scheduled = self._began
        self._leave_queue(record.group)
        self._waiting -= 1
        self._running += 1
        self._enter(e.id, "prefill", self._began)

    def _prefix_lookup(self, e: ev.PrefixLookup) -> None:
        self.totals.look_up(self._alive[e.id], e)
        if (known := self._again.get((e.id, e.seq))) is not None:
            known[0] = e.hit
            known[1] = max(known)
        if not e.resumed:
            self.totals.looked_up_blocks += (e.tokens - 1) // self.block_size
            self.totals.hit_blocks += e.hit // self.block_size
            self._paid[e.id] = e.hit

    def _scheduled(self, e: ev.Scheduled) -> None:
        self.totals.tokens_computed += sum(e.tokens)
        self._held = len(self._refs)
        self.totals.hold(self._held, self.num_blocks)
        self.totals.peak_entries = max(self.totals.peak_entries, self._entries)
        if self._again:
            self._count_again(e)
        if len(e.tokens) == sum(e.tokens):
            return  # decodes only, or nearly
        for request_id, tokens in zip(e.ids, e.tokens, strict=True):
            if tokens > 1:
                self.totals.prefill_tokens += tokens
                self._serve_prompt(request_id, tokens)

    def _serve_prompt(self, request_id: str, tokens: int) -> None:
        """Prompt tokens count as service once, whatever is computed again."""
        record = self._alive[request_id]
        paid = self._paid.get(request_id, 0)
        new = min(tokens, record.prompt_tokens - paid)
        if new > 0:
            self._paid[request_id] = paid + new
            self.service[record.group] = self.service.get(record.group, 0.0) + new

    def _tokens(self, e: ev.Tokens) -> None:
        now = self.time
        if self.gaps_of is not None:
            for request_id in dict.fromkeys(e.ids):
                if (last := self._alive[request_id].last_token) is not None and last < now:
                    self.gaps_of.setdefault(request_id, []).append(now - last)
        first, groups, lasts = self.totals.output(self._alive, e.ids, now)
        for request_id in first:
            self._enter(request_id, "decode", now)
        for group, tokens in groups.items():
            self.service[group] = self.service.get(group, 0.0) + 2.0 * tokens
        for last, count in lasts.items():  # most of a batch had their last token in the same step
            self.gaps.add(now - last, count)

    def _searched(self, e: ev.Searched) -> None:
        gap = self._alive[e.id].search_over(e.steps, self.time)
        if gap is not None:
            self.gaps.add(gap)
            if self.gaps_of is not None:
                self.gaps_of.setdefault(e.id, []).append(gap)

    def _preempted(self, e: ev.Preempted) -> None:
        record = self._alive[e.id]
        self.totals.preempt(record, e)
        if record.samples == 1:
            known = self._again.setdefault((e.id, 0), [0, 0])
            known[:] = 0, max(known[1], e.tokens_lost)
        self._queued[record.group] += 1
        self._running -= 1
        self._waiting += 1
        self._enter(e.id, "preempted", self._began)

    def _swapped_out(self, e: ev.SwappedOut) -> None:
        record = self._alive[e.id]
        self.totals.preempt(record, e)
        self._queued[record.group] += 1
        self._running -= 1
        self._swapped += 1
        self._move_out(e)
        self._enter(e.id, "swapped", self._began)

    def _swap_out_failed(self, e: ev.SwapOutFailed) -> None:
        record = self._alive[e.id]
        self.totals.lose(record, e.tokens_lost)
        if record.samples == 1:
            self._again.setdefault((e.id, 0), [0, e.tokens_lost])
        self._forget_computed(record)
        self._swapped -= 1
        self._waiting += 1
        self._enter(e.id, "preempted", self._began)

    def _swapped_in(self, e: ev.SwappedIn) -> None:
        self.totals.swapped_in_blocks += len(e.pairs)
        self._leave_queue(self._alive[e.id].group)
        self._running += 1
        self._swapped -= 1
        self._move_in(e)
        self._enter(e.id, "decode", self._began)

    def _missed(self, e: ev.DeadlineMissed) -> None:
        self.totals.miss_deadline(self._alive[e.id])

    def _finished(self, e: ev.Finished) -> None:
        record = self._alive.pop(e.id)
        self._forget_tables(record)
        self._paid.pop(e.id, None)
        phase = self._phase[e.id][1]
        if phase in ("waiting", "preempted", "swapped"):
            self._leave_queue(record.group)
        if phase == "swapped":
            self._swapped -= 1
        elif phase in ("waiting", "preempted"):
            self._waiting -= 1
        else:
            self._running -= 1
        self.totals.finish(record, e, self.time)
        self._enter(e.id, "", self.time)
        del self._phase[e.id]

    def _step_failed(self, e: ev.StepFailed) -> None:
        self.totals.failures += 1

    def _times(self, e: ev.StepTimes) -> None:
        self.totals.swapping += e.swap

    def _resized(self, e: ev.PoolResized) -> None:
        self.num_blocks = e.after

    def _enter(self, request_id: str, phase: str, now: float) -> None:
        before = self._phase.get(request_id)
        self._phase[request_id] = now, phase
        if self.spans is not None and before is not None and now > before[0]:
            self.spans.setdefault(request_id, []).append((before[0], now, before[1]))


_HANDLERS: dict[type, Callable[[Ledger, Any], None]] = {
    **BLOCK_HANDLERS,
    ev.Arrived: Ledger._arrived,
    ev.Refused: Ledger._refused,
    ev.Admitted: Ledger._admitted,
    ev.PrefixLookup: Ledger._prefix_lookup,
    ev.Scheduled: Ledger._scheduled,
    ev.Tokens: Ledger._tokens,
    ev.Searched: Ledger._searched,
    ev.Preempted: Ledger._preempted,
    ev.SwappedOut: Ledger._swapped_out,
    ev.SwapOutFailed: Ledger._swap_out_failed,
    ev.SwappedIn: Ledger._swapped_in,
    ev.DeadlineMissed: Ledger._missed,
    ev.Finished: Ledger._finished,
    ev.StepFailed: Ledger._step_failed,
    ev.StepTimes: Ledger._times,
    ev.PoolResized: Ledger._resized,
    ev.Note: Ledger._note,
}
