"""SchedulerCore: what every scheduler shares between steps and after them: arrivals, ends, results, live options.

Rules (who runs next, who gives way) are in its subclasses: `scheduler.py` and `presets/`.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from vtop.engine import events as ev
from vtop.engine.errors import error_line
from vtop.engine.executor import Chunk, SampledToken, StepOutput, StepPlan
from vtop.engine.policies.queues import RunningList, WaitingQueue
from vtop.engine.request import FinishReason, Request, RequestStatus, Sequence
from vtop.engine.sched import admission
from vtop.engine.sched import live as live_options
from vtop.engine.sched.changes import SchedulerState, StepPass
from vtop.engine.sched.output import Accepted, Given
from vtop.engine.sched.samples import advance_beams, fork_samples, tell_result

Sample = tuple[Sequence, SampledToken]


class SchedulerCore(SchedulerState):
    """Decides nothing about who runs."""

    # --- between steps -----------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float | None = None) -> Request | None:
        """Queue a new request at engine time `now` (None: its arrival). Raises Refusal when too many wait.

        Returns the request that was ended for it, where it is more urgent than one of those.
        """
        return admission.queue_request(self, request, now)

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        message: str = "",
    ) -> None:
        """End an alive request in whatever state; its blocks return at once."""
        self.queue_of(request).remove(request)
        self.policy.on_finish(request)
        self._leave(request, reason, stop_reason, message)

    def _leave(self, request: Request, reason: FinishReason, stop_reason: str | int | None, message: str) -> None:
        """It is in no queue any more: give its blocks back, close its outputs, and tell."""
        self.forget_skipped(request)
        for seq in request.sequences:
            self._tell_freed(seq, self.blocks.free(seq))
            self.blocks.host.drop(seq)
            self.blocks.forget_sequence(seq)
        rest = [seq for seq in request.sequences if not seq.ended]
        for seq in rest[1:]:
            if seq.num_output and request.beam is None:  # a sample of its own, with text that may be held back
                self._tell_ended(seq, reason, stop_reason, message)
        request.status = RequestStatus.FINISHED
        request.finish_reason, request.stop_reason, request.finish_message = reason, stop_reason, message
        tell_result(self, request, reason)
        self.ended.append(request)
        try:
            text = self.outputs.close(request)
        except Exception as error:  # of the text that was still held back
            text, request.finish_reason, request.stop_reason = "", FinishReason.FAILED, None
            request.finish_message = error_line(error)
            self.outputs.fail(request)
        self._events.append(
            ev.Finished(
                id=request.request_id,
                reason=request.finish_reason.value,
                output_tokens=sum(seq.num_output for seq in request.sequences),
                text=text,
                stop_reason=request.stop_reason,
                message=request.finish_message,
                seq=rest[0].index if rest else 0,
            )
        )

    def resize(self, num_blocks: int) -> list[Request]:
        """Change the size of the pool. Holders of blocks beyond it are preempted; returns requests that never fit."""
        return live_options.resize_pool(self, num_blocks)

    def reset_prefix_cache(self) -> int:
        """Forget all cached content; blocks in use stay with their holders. Returns blocks forgotten."""
        forgotten = self.blocks.pool.forget()
        self._events.append(ev.CacheReset(forgotten))
        return forgotten

    def set_option(self, name: str, value: Any) -> None:
        """Change an option of LIVE_OPTIONS while requests run; text is read as a person types it. Raises BadValue."""
        live_options.switch_option(self, name, value)
        if name in ("batching", "max_num_batched_tokens"):
            self.token_budget = self.config.token_budget(self._max_model_len)

    def set_priority(self, request: Request, priority: float) -> None:
        """Give an alive request another priority. Raises BadValue."""
        live_options.set_priority(self, request, priority)

    # --- a step ------------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, output: StepOutput) -> None:
        """Take the result of a plan: K/V are written, tokens appended, requests ended."""
        given = Given(self.capacity)
        for index, chunk in enumerate(plan.chunks):
            sampled = output.tokens[index]
            request = chunk.sequence.request
            if given.failed and request in given.failed:
                continue
            try:
                self._take_chunk(given, chunk, sampled, output.forked, index)
            except Exception as error:
                given.blame(request, error)
        self._tell_tokens(given)
        for request in given.beams:
            try:
                self.outputs.grow_beams(request)
                advance_beams(self, request)
            except Exception as error:
                given.blame(request, error)
        self._end(given)

    def _take_chunk(
        self,
        given: Given,
        chunk: Chunk,
        sampled: SampledToken | None,
        forked: Mapping[int, list[SampledToken]],
        index: int,
    ) -> None:
        """One chunk is computed: what of it can be hit from now on, what it counts for the policy, and its token."""
        seq = chunk.sequence
        request = seq.request
        if sampled is not None and sampled.fault:
            given.failed[request] = sampled.fault
            return
        seq.num_computed = chunk.start + chunk.num_tokens
        blocks = self.blocks
        if blocks.prefix_caching and seq.num_computed // blocks.block_size > seq.num_indexed:
            self._index_written(seq)
        if self.policy.token_hooks:
            self._count_service(chunk, sampled is not None)
        if sampled is None:
            return
        others = fork_samples(self, seq, chunk.forks, forked[index]) if chunk.forks else None
        request.owed_token = False
        if request.beam is not None:
            request.beam_found[seq] = [(entry.token_id, entry.logprob) for entry in sampled.top]
            if len(request.beam_found) == len(request.beam_order):
                given.beams.append(request)
            return
        if others is None:
            self._accept(given, seq, sampled)
            return
        for sample, token in self._in_order((seq, sampled), others):
            self._accept(given, sample, token)

    def _in_order(self, own: Sample, others: list[Sample]) -> list[Sample]:
        """The samples of a prompt in the order in which they get their first tokens; `own` computed it."""
        return [own, *others]

    @property
    def capacity(self) -> float:
        """Tokens that fit in the whole pool."""
        return self.blocks.pool.total * self.blocks.block_size

    def _accept(self, given: Given, seq: Sequence, sampled: SampledToken) -> None:
        """Append a token to its sequence, and note whether that ends with it."""
        if sampled.fault:
            given.failed.setdefault(seq.request, sampled.fault)
            return
        seq.token_ids.append(sampled.token_id)
        try:
            accepted = self.outputs.accept(seq, sampled)
        except Exception as error:  # the token is there all the same
            given.blame(seq.request, error)
            accepted = Accepted()
        given.ids.append(seq.request.request_id)
        given.seqs.append(seq.index)
        given.tokens.append(sampled.token_id)
        given.texts.append(accepted.text)
        if accepted.finish is not None:
            given.ended.append((seq, accepted.finish, accepted.stop_reason, ""))
        elif len(seq.token_ids) > given.capacity:
            given.ended.append((seq, FinishReason.CAPACITY, None, self.capacity_message(seq)))

    def _tell_tokens(self, given: Given) -> None:
        if given.ids:
            seqs = given.seqs if any(given.seqs) else []
            self._events.append(ev.Tokens(given.ids, given.tokens, given.texts, seqs))

    def _end(self, given: Given) -> None:
        for seq, reason, stop_reason, message in given.ended:
            request = seq.request
            if request not in given.failed:
                try:
                    self.end_sequence(seq, reason, stop_reason=stop_reason, message=message)
                except Exception as error:
                    given.blame(request, error)
        for request, text in given.failed.items():
            if not request.finished:
                self.fail_alone(request, text)

    def fail_alone(self, request: Request, message: str) -> None:
        """End a request by its own fault, wherever that left it: in its queue, in none, or in another than it says."""
        for queue in self._queues:
            if request in queue:
                queue.remove(request)
        with contextlib.suppress(Exception):  # the policy may have been told half of what happened
            self.policy.on_finish(request)
        self._leave(request, FinishReason.FAILED, None, message)

    def end_sequence(
        self, seq: Sequence, reason: FinishReason, *, stop_reason: str | int | None = None, message: str = ""
    ) -> None:
        """One sequence has all its tokens; with the last one of a request the request ends."""
        request = seq.request
        seq.finish_reason, seq.stop_reason = reason, stop_reason
        last = all(other.ended or other is seq for other in request.sequences)
        aborted = reason is FinishReason.ABORT and any(
            o.finish_reason is not FinishReason.ABORT for o in request.sequences
        )
        if last and len(request.sequences) == request.params.n and not aborted:
            self.finish(request, reason, stop_reason=stop_reason, message=message)
            return
        if seq.blocks and seq is request.computing[0] and (heirs := request.awaiting):
            self._share_prompt(seq, heirs[0])  # which is the one that computes the prompt from now on
        seq.ended = True
        self._tell_freed(seq, self.blocks.free(seq))
        self.blocks.host.drop(seq)
        self.blocks.forget_sequence(seq)
        self._tell_ended(seq, reason, stop_reason, message)
        if last:
            best = request.chosen()[0]
            assert best.finish_reason is not None
            text = message if best.finish_reason is reason else ""
            self.finish(request, best.finish_reason, stop_reason=best.stop_reason, message=text)

    def _tell_ended(self, seq: Sequence, reason: FinishReason, stop_reason: str | int | None, message: str) -> None:
        name, text = seq.request.request_id, self.outputs.end(seq, reason, stop_reason)
        self._events.append(
            ev.SequenceFinished(name, seq.index, reason.value, seq.num_output, text, stop_reason, message)
        )

    def fail(self, plan: StepPlan, message: str) -> list[Request]:
        """The executor raised: the requests of the batch end, everybody else goes on. Returns those ended.

        Whoever had blocks copied in, or on the device, is in the batch. Victims that were to be copied out are not, and
        nobody knows how far that came.
        """
        failed = list(dict.fromkeys(chunk.sequence.request for chunk in plan.chunks))
        for request in failed:
            if not request.finished:
                self.fail_alone(request, message)
        unsaved = {host for _, host in plan.swap_out}
        for request in self.swapped.ordered() if unsaved else ():
            if any(not unsaved.isdisjoint(seq.host_blocks) for seq in request.sequences):
                self.preemption.lose(request)
        return failed

    def _count_service(self, chunk: Chunk, output: bool) -> None:
        """Tell the policy what a chunk did, without what was computed before and what came out of the cache."""
        seq = chunk.sequence
        known, end = seq.most_computed, seq.num_computed
        new = end - (known if known > chunk.start else chunk.start)
        if new > 0:
            seq.most_computed = end
        else:
            new = 0
        for hook in self.policy.token_hooks:
            change = hook(seq.request, new, int(output))
            if change is not None:
                self.change_key(seq.request, change)

    def _begin(self, now: float) -> StepPass:
        """What comes first in every step, whatever the rules."""
        self.now = self.blocks.pool.now = now
        self.concerns = self.deciding = None
        self._expire(now)
        for request, change in self.policy.due(now):
            self.change_key(request, change)
        self.deciding = StepPass(now, self.token_budget)
        return self.deciding

    def abandon(self, error: Exception, alive: Iterable[Request], again: bool) -> tuple[list[Request], StepPlan]:
        """`schedule` raised: of the step nothing is left but its copies. Returns who ended, and these as a plan.

        What was told is true once that plan is executed. Of requests, those end that the fault left half-way between
        two queues, and, when the step before failed too (`again`), the one that was looked at: a fault that passes
        harms nobody, one that stays ends whose it is.
        """
        step, at = self.deciding, self.concerns
        self.concerns = self.deciding = None
        if step is not None:
            self._undo(step, at)
        failed = [r for r in alive if not any(r in queue for queue in self._queues)]
        if again and at is not None and not at.finished and at not in failed:
            failed.append(at)
        for request in failed:
            if step is not None:
                step.give_back(request)
            self.fail_alone(request, error_line(error))
        if step is None:
            return failed, StepPlan()
        copies = [pair for pairs in step.copies.values() for pair in pairs]
        return failed, StepPlan([], copies, step.swap_out, step.swap_in)

    def _undo(self, step: StepPass, at: Request | None) -> None:
        """What requests were given to compute is not computed: they are given it again.

        The one that was looked at may be half admitted, so it begins anew.
        """
        if at is not None and at in self.running:
            self._preempt(at, at, ev.PreemptCause.STEP_FAILED, step)

    @property
    def _queues(self) -> tuple[RunningList | WaitingQueue, ...]:
        return self.running, self.waiting, self.swapped

    def _expire(self, now: float) -> None:
        while self.deadlines and (self.deadlines[0][0] <= now or self.deadlines[0][2].finished):
            at, _, request = heapq.heappop(self.deadlines)
            if request.finished:
                continue
            self.concerns = request
            if at == request.expires:
                waited = at - request.arrival
                self.finish(request, FinishReason.TIMEOUT, message=f"not done {waited:g} s after it arrived")
            else:
                done = sum(seq.num_output for seq in request.sequences)
                self._events.append(ev.DeadlineMissed(request.request_id, at, done))
            self.concerns = None
