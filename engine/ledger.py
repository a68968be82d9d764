"""Ledger: the numbers of a run, kept from Frames as they come. Its size grows by one small record per request.

It knows less than EngineState (no blocks, no texts) and costs less, so that a simulation of a hundred thousand requests
is not a fold of its every block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vtop.engine import events as ev
from vtop.engine.gaps import GapHistogram
from vtop.engine.policy_spec import parse_weights

SERIES_POINTS = 2000  # of a time series, at most; twice as coarse whenever there are more
MOST_NOTES = 50  # of a run that are kept


@dataclass(slots=True)
class RequestRecord:
    """A request. Times are engine seconds, None until they happen; tokens are counts over all its samples.

    `deadline` is one that its sender gave; a request that is only timed out has none.
    """

    id: str
    number: int
    arrival: float
    prompt_tokens: int
    group: str
    priority: int
    samples: int
    deadline: float | None = None
    missed: bool = False
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    reason: str = ""
    output_tokens: int = 0
    longest_gap: float = 0.0
    preemptions: int = 0
    tokens_lost: int = 0
    hit_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; of several samples, per round of them."""
        rounds = self.output_tokens / self.samples - 1
        if self.first_token is None or self.last_token is None or rounds <= 0:
            return None
        return (self.last_token - self.first_token) / rounds

    @property
    def e2e(self) -> float | None:
        return None if self.ended is None else self.ended - self.arrival

    @property
    def wait(self) -> float | None:
        """Seconds from arrival to the first admission."""
        return None if self.admitted is None else self.admitted - self.arrival


@dataclass(slots=True)
class Sample:
    """The engine at the end of a step."""

    time: float
    used: int
    waiting: int
    running: int
    swapped: int
    preemptions: int  # so far
    output_tokens: int  # so far
    service: dict[str, float]  # per group, so far; see Ledger.service


@dataclass(slots=True)
class Refusals:
    """Requests that were refused for one reason, and the message of the first of them."""

    count: int
    example: str


@dataclass(slots=True)
class Counts:
    """Totals. Tokens, blocks and events; seconds for the two times."""

    steps: int = 0
    computed: int = 0
    prefill: int = 0  # of the computed ones, those of prompts
    output: int = 0
    lost: int = 0
    preemptions: int = 0
    swaps: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    recomputed_victims: Counter[str] = field(default_factory=Counter)  # id -> preemptions by recompute
    copies: int = 0
    evictions: int = 0
    looked_up: int = 0
    hit: int = 0
    recomputed: int = 0  # of the computed ones, those that the same sequence had computed or found before
    looked_up_blocks: int = 0  # blocks of first lookups, the last partial one not counted
    hit_blocks: int = 0
    refused: int = 0
    deadline_misses: int = 0
    peak_used: int = 0
    peak_entries: int = 0  # table entries: blocks as if nothing were shared
    peak_swapped: int = 0
    peak_waiting: int = 0
    failed_steps: int = 0
    busy: float = 0.0
    swapping: float = 0.0
    service_gap: float = 0.0  # the most that two groups' service ever differed
    used_seconds: float = 0.0  # blocks used, integrated over time


class Ledger:
    """`apply` takes Frames in order. With `keep_gaps`, every gap between tokens of a request is kept by its id;
    with `keep_spans`, the phases of every request: (from, to, phase)."""

    def __init__(self, meta: ev.Meta, *, keep_gaps: bool = False, keep_spans: bool = False) -> None:
        self.meta = meta
        self.block_size = meta.block_size
        self.num_blocks = meta.num_blocks
        self.records: list[RequestRecord] = []
        self.counts = Counts()
        self.gaps = GapHistogram()
        self.gaps_of: dict[str, list[float]] | None = {} if keep_gaps else None
        self.spans: dict[str, list[tuple[float, float, str]]] | None = {} if keep_spans else None
        self.service: dict[str, float] = {}  # per group: prompt tokens + 2 · output tokens, each counted once
        self.series: list[Sample] = []
        self.outcomes: Counter[str] = Counter()
        self.refusals: dict[str, Refusals] = {}  # by code
        self.notes: list[ev.Note] = []  # warnings and errors, at most MOST_NOTES; of texts that differ in numbers one
        # per group: service while it and another one waited, and what its share of that was by the weights
        self.contested: dict[str, tuple[float, float]] = {}
        self.started = meta.engine_time
        self.time = meta.engine_time
        self._alive: dict[str, RequestRecord] = {}
        self._phase: dict[str, tuple[float, str]] = {}
        self._tables: dict[tuple[str, int], int] = {}  # (id, sequence) -> table entries
        self._refs: dict[int, int] = {}
        self._entries = 0
        self._waiting = self._running = self._swapped = 0
        self._stride = 1
        self._frames = 0
        self._began = 0.0
        self._noted: set[str] = set()
        self._paid: dict[str, int] = {}  # id -> prompt tokens that were counted as service
        self._queued: Counter[str] = Counter()  # group -> requests that wait, preempted and swapped ones too
        # (id, sequence) -> [tokens computed, the most that ever were]: of groups always, of others once preempted
        self._again: dict[tuple[str, int], list[int]] = {}
        self._weights = parse_weights(str(meta.config.get("group_weights") or ""))

    @property
    def used(self) -> int:
        return len(self._refs)

    @property
    def entries(self) -> int:
        """Block table entries of everybody on the device."""
        return self._entries

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
        before, used = self.time, len(self._refs)
        served = dict(self.service)
        self.time = frame.time
        self._began = frame.time if frame.began is None else frame.began
        for event in frame.events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)
        counts = self.counts
        # what was held while the step ran is what it ended with, and before it what the last one ended with
        counts.used_seconds += used * (self._began - before) + max(used, len(self._refs)) * (frame.time - self._began)
        counts.peak_swapped = max(counts.peak_swapped, self._swapped)
        counts.peak_waiting = max(counts.peak_waiting, self._waiting)
        if frame.ran:
            counts.steps += 1
            counts.busy += frame.time - self._began
            if len(self.service) > 1:
                services = self.service.values()
                counts.service_gap = max(counts.service_gap, max(services) - min(services))
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
        counts = self.counts
        self.series.append(
            Sample(
                self.time,
                len(self._refs),
                self._waiting,
                self._running,
                self._swapped,
                counts.preemptions,
                counts.output,
                dict(self.service),
            )
        )
        if len(self.series) > SERIES_POINTS:
            del self.series[::2]
            self._stride *= 2

    # --- events ------------------------------------------------------------------------------------------------------

    def _arrived(self, e: ev.Arrived) -> None:
        deadline = None if e.deadline == e.expires else e.deadline  # the policy's stand-in for a deadline is none
        record = RequestRecord(e.id, e.number, e.arrival, e.prompt_tokens, e.group, e.priority, e.samples, deadline)
        self.records.append(record)
        self._alive[e.id] = record
        self._waiting += 1
        self._queued[e.group] += 1
        if e.samples > 1:
            for index in range(e.samples):
                self._again[e.id, index] = [0, 0]
        self._enter(e.id, "waiting", e.arrival)

    def _refused(self, e: ev.Refused) -> None:
        self.counts.refused += 1
        self.outcomes["refused"] += 1
        self.refusals.setdefault(str(e.code), Refusals(0, e.message)).count += 1

    def _note(self, e: ev.Note) -> None:
        kind = re.sub(r"[0-9]+", "#", e.text)  # how full a pool was is no news
        if e.level != "info" and len(self.notes) < MOST_NOTES and kind not in self._noted:
            self._noted.add(kind)
            self.notes.append(e)

    def _leave_queue(self, group: str) -> None:
        self._queued[group] -= 1
        if not self._queued[group]:
            del self._queued[group]

    def _admitted(self, e: ev.Admitted) -> None:
        record = self._alive[e.id]
        if record.admitted is None:
            record.admitted = self._began
        self._leave_queue(record.group)
        self._waiting -= 1
        self._running += 1
        self._enter(e.id, "prefill", self._began)

    def _prefix_lookup(self, e: ev.PrefixLookup) -> None:
        self._alive[e.id].hit_tokens += e.hit
        if (known := self._again.get((e.id, e.seq))) is not None:
            known[0] = e.hit
            known[1] = max(known)
        if not e.resumed:
            counts = self.counts
            counts.looked_up += e.tokens
            counts.hit += e.hit
            counts.looked_up_blocks += (e.tokens - 1) // self.block_size
            counts.hit_blocks += e.hit // self.block_size
            self._paid[e.id] = e.hit

    def _blocks_taken(self, e: ev.BlocksTaken) -> None:
        refs = self._refs
        for block in e.blocks:
            refs[block] = refs.get(block, 0) + 1
        key = e.id, e.seq
        self._tables[key] = self._tables.get(key, 0) + len(e.blocks)
        self._entries += len(e.blocks)
        self._peaks()
        if e.computed and (known := self._again.get(key)) is not None:
            known[0] = max(known[0], e.computed)

    def _forked(self, e: ev.Forked) -> None:
        self._blocks_taken(ev.BlocksTaken(e.id, e.blocks, e.child))
        parent, child = self._again.get((e.id, e.parent)), self._again.get((e.id, e.child))
        if parent is not None and child is not None:
            child[:] = parent[0], max(parent[0], child[1])

    def _peaks(self) -> None:
        counts = self.counts
        if len(self._refs) > counts.peak_used:
            counts.peak_used = len(self._refs)
        if self._entries > counts.peak_entries:
            counts.peak_entries = self._entries

    def _let_go(self, block: int) -> None:
        left = self._refs[block] - 1
        if left:
            self._refs[block] = left
        else:
            del self._refs[block]

    def _blocks_freed(self, e: ev.BlocksFreed) -> None:
        for block in e.blocks:
            self._let_go(block)
        self._tables[e.id, e.seq] -= len(e.blocks)
        if (known := self._again.get((e.id, e.seq))) is not None:
            known[0] = 0
        self._entries -= len(e.blocks)

    def _merged(self, e: ev.Merged) -> None:
        self._refs[e.into] = self._refs.get(e.into, 0) + 1
        self._let_go(e.block)

    def _copied(self, e: ev.CopiedOnWrite) -> None:
        self._refs[e.target] = self._refs.get(e.target, 0) + 1
        self._let_go(e.source)
        self.counts.copies += 1
        self._peaks()

    def _evicted(self, e: ev.Evicted) -> None:
        self.counts.evictions += len(e.blocks)

    def _scheduled(self, e: ev.Scheduled) -> None:
        self.counts.computed += sum(e.tokens)
        if self._again:
            self._count_again(e)
        if len(e.tokens) == sum(e.tokens):
            return  # decodes only, or nearly
        for request_id, tokens in zip(e.ids, e.tokens, strict=True):
            if tokens > 1:
                self.counts.prefill += tokens
                self._serve_prompt(request_id, tokens)

    def _count_again(self, e: ev.Scheduled) -> None:
        """Of what is computed, what had been before: from each sequence's place up to the furthest it ever was."""
        for place, (request_id, tokens) in enumerate(zip(e.ids, e.tokens, strict=True)):
            key = request_id, e.seqs[place] if e.seqs else 0
            known = self._again.get(key)
            if known is None:
                continue
            start, most = known
            self.counts.recomputed += max(0, min(tokens, most - start))
            known[:] = start + tokens, max(most, start + tokens)
            if start + tokens >= most and self._alive[request_id].samples == 1:
                del self._again[key]  # from here on all is new

    def _serve_prompt(self, request_id: str, tokens: int) -> None:
        """Prompt tokens count as service once, whatever is computed again."""
        record = self._alive[request_id]
        paid = self._paid.get(request_id, 0)
        new = min(tokens, record.prompt_tokens - paid)
        if new > 0:
            self._paid[request_id] = paid + new
            self.service[record.group] = self.service.get(record.group, 0.0) + new

    def _tokens(self, e: ev.Tokens) -> None:
        now, alive, service = self.time, self._alive, self.service
        lasts: dict[float, int] = {}  # most of a batch had their last token in the same step
        for request_id in e.ids:
            record = alive[request_id]
            last = record.last_token
            if last is None:
                record.first_token = now
                self._enter(request_id, "decode", now)
            elif last < now:
                gap = now - last
                lasts[last] = lasts.get(last, 0) + 1
                if gap > record.longest_gap:
                    record.longest_gap = gap
                if self.gaps_of is not None:
                    self.gaps_of.setdefault(request_id, []).append(gap)
            record.last_token = now
            record.output_tokens += 1
            service[record.group] = service.get(record.group, 0.0) + 2.0
        for last, count in lasts.items():
            self.gaps.add(now - last, count)
        self.counts.output += len(e.ids)

    def _preempted(self, e: ev.Preempted) -> None:
        record = self._alive[e.id]
        record.preemptions += 1
        record.tokens_lost += e.tokens_lost
        self.counts.preemptions += 1
        self.counts.lost += e.tokens_lost
        self.counts.recomputed_victims[e.id] += 1
        if record.samples == 1:
            known = self._again.setdefault((e.id, 0), [0, 0])
            known[:] = 0, max(known[1], e.tokens_lost)
        self._queued[record.group] += 1
        self._running -= 1
        self._waiting += 1
        self._enter(e.id, "preempted", self._began)

    def _swapped_out(self, e: ev.SwappedOut) -> None:
        record, counts = self._alive[e.id], self.counts
        record.preemptions += 1
        self._queued[record.group] += 1
        counts.preemptions += 1
        counts.swaps += 1
        counts.swapped_out += len(e.pairs)
        self._running -= 1
        self._swapped += 1
        for source in _entries(e.pairs, e.tables):
            self._let_go(source)
        for index in range(len(e.tables)):
            self._entries -= self._tables.pop((e.id, index), 0)
        self._enter(e.id, "swapped", self._began)

    def _swapped_in(self, e: ev.SwappedIn) -> None:
        self.counts.swapped_in += len(e.pairs)
        self._leave_queue(self._alive[e.id].group)
        self._running += 1
        self._swapped -= 1
        for index, table in enumerate(e.tables):
            if table:
                self._blocks_taken(ev.BlocksTaken(e.id, table, index))
        self._enter(e.id, "decode", self._began)

    def _missed(self, e: ev.DeadlineMissed) -> None:
        self._alive[e.id].missed = True
        self.counts.deadline_misses += 1

    def _finished(self, e: ev.Finished) -> None:
        record = self._alive.pop(e.id)
        for index in range(record.samples):
            self._tables.pop((e.id, index), None)
            self._again.pop((e.id, index), None)
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
        record.ended, record.reason = self.time, e.reason
        if record.deadline is not None and self.time > record.deadline and not record.missed:
            record.missed = True
            self.counts.deadline_misses += 1
        self.outcomes[e.reason] += 1
        self._enter(e.id, "", self.time)
        del self._phase[e.id]

    def _step_failed(self, e: ev.StepFailed) -> None:
        self.counts.failed_steps += 1

    def _times(self, e: ev.StepTimes) -> None:
        self.counts.swapping += e.swap

    def _resized(self, e: ev.PoolResized) -> None:
        self.num_blocks = e.after

    def _enter(self, request_id: str, phase: str, now: float) -> None:
        before = self._phase.get(request_id)
        self._phase[request_id] = now, phase
        if self.spans is not None and before is not None and now > before[0]:
            self.spans.setdefault(request_id, []).append((before[0], now, before[1]))


def _entries(pairs: list[tuple[int, int]], tables: list[list[int]]) -> list[int]:
    """The device blocks that the entries of `tables` (in the host pool) were, as often as they occur."""
    device = {host: block for block, host in pairs}
    return [device[block] for table in tables for block in table]


_HANDLERS: dict[type, Callable[[Ledger, Any], None]] = {
    ev.Arrived: Ledger._arrived,
    ev.Refused: Ledger._refused,
    ev.Admitted: Ledger._admitted,
    ev.PrefixLookup: Ledger._prefix_lookup,
    ev.BlocksTaken: Ledger._blocks_taken,
    ev.BlocksFreed: Ledger._blocks_freed,
    ev.Forked: Ledger._forked,
    ev.Merged: Ledger._merged,
    ev.CopiedOnWrite: Ledger._copied,
    ev.Evicted: Ledger._evicted,
    ev.Scheduled: Ledger._scheduled,
    ev.Tokens: Ledger._tokens,
    ev.Preempted: Ledger._preempted,
    ev.SwappedOut: Ledger._swapped_out,
    ev.SwappedIn: Ledger._swapped_in,
    ev.DeadlineMissed: Ledger._missed,
    ev.Finished: Ledger._finished,
    ev.StepFailed: Ledger._step_failed,
    ev.StepTimes: Ledger._times,
    ev.PoolResized: Ledger._resized,
    ev.Note: Ledger._note,
}
