"""EngineState: what the engine looks like, rebuilt from Frames alone.

The live view, a recording, a replay and the audit all read this. Nothing here asks the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtop.engine import events as ev
from vtop.engine.events import FAULTS, MOST_SAMPLES, InconsistentFrame, inconsistent
from vtop.engine.request import Phase, RequestStatus
from vtop.engine.state.arrays import FREE
from vtop.engine.state.block_fold import BLOCK_HANDLERS, BlockFold
from vtop.engine.state.views import Move, Moves, RequestView, SequenceView, StepView, Told, Totals

__all__ = ["FREE", "EngineState", "Move", "Moves", "RequestView", "SequenceView", "StepView", "Told", "Totals"]


class EngineState(BlockFold):
    """Fold of Frames.

    `hashed` marks blocks whose content can be hit; cached ones are those that nobody holds.
    `ref_count` and `owner` are int32 arrays with one entry per block of the device pool: how many table entries hold
    it, and the `number` of the request that took it last (FREE when nobody holds it). `host_ref_count` and
    `host_owner` are the same for the host pool. `moved_out` and `moved_in` are swaps between the two (source block,
    target block), `copied` is copies on write, each of the latest step that had any.
    `waiting` maps id to view; `running` is in policy order (by key). Finished requests are kept up to a bound.
    """

    def apply(self, frame: ev.Frame) -> None:
        """Take the next Frame. Raises InconsistentFrame when it does not follow from those before."""
        if frame.serial != self.serial + 1:
            raise InconsistentFrame(frame, None, f"the last one was {self.serial}")
        before, used = self.time, self._share_used
        self.serial = frame.serial
        self.step = frame.step
        self.time = frame.time
        self.began = frame.time if frame.began is None else frame.began
        if frame.ran:
            self.totals.steps += 1
            self.last_step = StepView(step=frame.step, used=self.used)
            for view in self._ran:
                view.scheduled_tokens = 0
            self._ran = []
        for event in frame.events:
            kind = type(event)
            if kind in _DECISIONS:
                self._remember(event)
            try:
                _HANDLERS[kind](self, event)
            except FAULTS as error:
                raise inconsistent(frame, event, error) from error
        # up to this step what the last one left was held, and while it was computed what it was scheduled with
        held = self.last_step.used / max(1, self.num_blocks) if frame.ran else self._share_used
        self.totals.pass_time(self.began - before, used, frame.time - self.began, held)
        if frame.ran:
            stuck = bool(self.waiting or self.swapped) and not self.running and self.last_step.tokens == 0
            self.idle_frames = self.idle_frames + 1 if stuck else 0

    @property
    def _share_used(self) -> float:
        return self.used / max(1, self.num_blocks)

    def _remember(self, event: Any) -> None:
        view = self.requests.get(event.id)
        if view is None:
            return
        history = view.history
        if (
            type(event) is ev.Waits
            and len(history) > 1
            and all(_same_wait(told, event) for told in (history[-1], history[-2]))
        ):
            history.pop()  # only numbers changed: the first and the latest are kept
        history.append(Told(self.step, self.began, event))

    def _arrived(self, e: ev.Arrived) -> None:
        if e.id in self.requests:
            raise ValueError(f"{e.id!r} is alive")
        if not 0 < e.samples <= MOST_SAMPLES:
            raise ValueError(f"{e.samples} samples")
        view = RequestView(
            id=e.id,
            number=e.number,
            prompt=e.prompt,
            prompt_tokens=e.prompt_tokens,
            samples=e.samples,
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
        self.totals.arrive(view)
        self.totals.group_tokens.setdefault(view.group, 0)

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
            self.totals.group_tokens[view.group] += view.prompt_tokens
        else:
            view.preempted_wait += self.began - view.queued_at
        if self.blocked_head == e.id:
            self.blocked_head = None

    def _waits(self, e: ev.Waits) -> None:
        view = self.requests[e.id]
        view.reason = e.reason
        view.reason_since = self.began
        view.reason_step = self.step
        self.blocked_head = e.id

    def _skipped(self, e: ev.Skipped) -> None:
        view = self.requests[e.id]
        view.reason = e.reason
        view.reason_since = self.began
        view.reason_step = self.step

    def _scheduled(self, e: ev.Scheduled) -> None:
        step = self.last_step
        step.budget, step.limit = e.budget, e.limit
        step.tokens, step.sequences = sum(e.tokens), len(e.ids)
        step.running, step.waiting = len(self.running), len(self.waiting)
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
            if seq.most_computed > seq.num_computed:
                self.totals.tokens_recomputed += min(tokens, seq.most_computed - seq.num_computed)
            seq.num_computed += tokens
            if seq.num_computed > seq.most_computed:
                seq.most_computed = seq.num_computed
            if not view.scheduled_tokens:
                self._ran.append(view)
            view.scheduled_tokens += tokens
            view.reason = None
        self.totals.tokens_computed += step.tokens
        self._measure(step)

    def _measure(self, step: StepView) -> None:
        """The step is scheduled: this is what is held, and who runs, while it is computed."""
        totals = self.totals
        step.used, step.filled = self.used, self.filled
        totals.hold(step.used, self.num_blocks)
        totals.held_slots += step.used * self.block_size
        totals.filled_slots += step.filled
        totals.peak_running = max(totals.peak_running, len(self.running))
        totals.peak_sequences = max(totals.peak_sequences, self.running_sequences)

    def _preempted(self, e: ev.Preempted) -> None:
        self._gave_way(e, self.waiting, RequestStatus.WAITING)

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
        totals = self.totals
        for group, tokens in totals.output(self.requests, e.ids, self.time).groups.items():
            totals.group_tokens[group] += tokens
        seqs = e.seqs or [0] * len(e.ids)
        for request_id, index, token, text in zip(e.ids, seqs, e.tokens, e.texts, strict=True):
            seq = self.requests[request_id].sequences[index]
            seq.num_tokens += 1
            seq.output_tokens.append(token)
            if text:
                seq.text_parts.append(text)

    def _deadline_missed(self, e: ev.DeadlineMissed) -> None:
        self.totals.miss_deadline(self.requests[e.id])

    def _sequence_finished(self, e: ev.SequenceFinished) -> None:
        seq = self.requests[e.id].sequences[e.seq]
        seq.finish_reason, seq.stop_reason = e.reason, e.stop_reason
        self._free_host(seq)
        seq.num_computed = 0
        if e.text:
            seq.text_parts.append(e.text)

    def _searched(self, e: ev.Searched) -> None:
        view = self.requests[e.id]
        view.found = e.outputs
        view.search_over(e.steps, self.time)

    def _chosen(self, e: ev.Chosen) -> None:
        view = self.requests[e.id]
        for seq, logprob in zip(e.seqs, e.logprobs, strict=True):
            view.sequences[seq].logprob = logprob
        view.chosen = e.seqs

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
        view.stop_reason, view.message = e.stop_reason, e.message
        view.reason = None
        view.scheduled_tokens = 0
        if self.blocked_head == e.id:
            self.blocked_head = None
        self.finished.append(view)
        self.totals.finish(view, e, self.time)

    def _step_failed(self, e: ev.StepFailed) -> None:
        self.totals.failures += 1

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


def _same_wait(told: Told, event: ev.Waits) -> bool:
    return isinstance(told.event, ev.Waits) and type(told.event.reason) is type(event.reason)


# Arrived is told before its view exists; it stands in the view's own fields
_DECISIONS = frozenset(
    {
        ev.Admitted, ev.PrefixLookup, ev.Waits, ev.Skipped, ev.Preempted, ev.SwappedOut, ev.SwapOutFailed, ev.SwappedIn,
        ev.Forked, ev.Passed, ev.Promoted, ev.Demoted, ev.PrioritySet, ev.DeadlineMissed, ev.TurnedAway,
        ev.SequenceFinished, ev.Searched, ev.Chosen, ev.Finished,
    }
)  # fmt: skip

_HANDLERS: dict[type, Callable[[EngineState, Any], None]] = {
    **BLOCK_HANDLERS,
    ev.Arrived: EngineState._arrived,
    ev.Refused: EngineState._refused,
    ev.Admitted: EngineState._admitted,
    ev.Waits: EngineState._waits,
    ev.Skipped: EngineState._skipped,
    ev.Scheduled: EngineState._scheduled,
    ev.Preempted: EngineState._preempted,
    ev.Passed: EngineState._passed,
    ev.GroupService: EngineState._group_service,
    ev.Lifted: EngineState._lifted,
    ev.Promoted: EngineState._moved,
    ev.Demoted: EngineState._moved,
    ev.PrioritySet: EngineState._priority_set,
    ev.Switched: EngineState._switched,
    ev.Rekeyed: EngineState._rekeyed,
    ev.Tokens: EngineState._tokens,
    ev.TurnedAway: EngineState._ignore,
    ev.DeadlineMissed: EngineState._deadline_missed,
    ev.SequenceFinished: EngineState._sequence_finished,
    ev.Searched: EngineState._searched,
    ev.Chosen: EngineState._chosen,
    ev.Finished: EngineState._finished,
    ev.StepFailed: EngineState._step_failed,
    ev.StepTimes: EngineState._step_times,
    ev.Paused: EngineState._paused,
    ev.Resumed: EngineState._resumed,
    ev.SpeedSet: EngineState._speed_set,
    ev.SubscriberBehind: EngineState._ignore,
    ev.Note: EngineState._ignore,
}
