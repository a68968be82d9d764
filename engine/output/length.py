"""Outputs of a simulation: requests end by length, and nobody reads text."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

from vtop.engine.beam import Hypothesis
from vtop.engine.executor import Logprob, SampledToken
from vtop.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.output import Accepted

_GOES_ON = Accepted()
_FULL = Accepted(finish=FinishReason.LENGTH)


class LengthOutput:
    """Implements EngineOutputs. Only ended requests are told as changed, without their tokens."""

    def __init__(self) -> None:
        self._changed: list[RequestOutput] = []

    def open(self, request: Request) -> None:
        """Nothing is kept."""

    def forget(self, request: Request) -> None:
        """Nothing was kept."""

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        if sampled.logprob is not None:
            seq.cumulative_logprob += sampled.logprob
        return _FULL if len(seq.token_ids) >= seq.request.limit else _GOES_ON

    def end(self, seq: Sequence, reason: FinishReason, stop_reason: str | int | None) -> str:
        return ""

    def grow_beams(self, request: Request) -> None:
        """Nothing is kept."""

    def close_beams(self, request: Request, best: Sequence_[Hypothesis]) -> list[str]:
        return [""] * len(best)

    def close(self, request: Request) -> str:
        reason = request.finish_reason.value if request.finish_reason else None
        outputs = [CompletionOutput(seq.index, finish_reason=reason) for seq in request.chosen()]
        metrics = RequestMetrics(request.arrival, request.first_scheduled, preemptions=request.preemptions)
        output = RequestOutput(request.request_id, None, [], outputs, metrics, finished=True)
        output.message = request.finish_message
        self._changed.append(output)
        return ""

    def fail(self, request: Request) -> None:
        """`close` cannot."""

    def add_prompt_logprobs(self, seq: Sequence, entries: list[tuple[int, Logprob, tuple[Logprob, ...]]]) -> None:
        """A simulation has none."""

    def result(self, request: Request) -> RequestOutput | None:
        return None

    def take_changed(self) -> list[RequestOutput]:
        changed, self._changed = self._changed, []
        return changed
