"""When vLLM's own engines end a request; no text. Rules (30) of V0 and (14) of V1 in `presets/RULES.md`.

The engine itself has one stop rule for all presets (`engine.output`): what a user asked for does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

from vtop.engine.beam import Hypothesis
from vtop.engine.executor import SampledToken
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.output import Accepted

END_TOKEN = 2


@dataclass(frozen=True, slots=True)
class Repetition:
    """Stop when the tail is one pattern of `min_pattern` … `max_pattern` tokens, `min_count` times."""

    max_pattern: int
    min_pattern: int
    min_count: int

    def found(self, tokens: list[int]) -> bool:
        for size in range(self.min_pattern, self.max_pattern + 1):
            tail = tokens[-size * self.min_count :]
            if len(tail) == size * self.min_count and tail == tail[-size:] * self.min_count:
                return True
        return False


class _NoText:
    """What an OutputProcessor does beside `accept`: nothing, as no text is kept."""

    def end(self, seq: Sequence, reason: FinishReason, stop_reason: str | int | None) -> str:
        return ""

    def grow_beams(self, request: Request) -> None:
        """The runner's beams are the caller's own; nothing is kept of them here."""

    def close_beams(self, request: Request, best: Sequence_[Hypothesis]) -> list[str]:
        return [""] * len(best)

    def close(self, request: Request) -> str:
        return ""

    def fail(self, request: Request) -> None:
        """`close` cannot."""


@dataclass(slots=True)
class V0Stops(_NoText):
    """Below min_tokens nothing is checked, not even the limits; the model's limit may be passed by one token."""

    max_model_len: int

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        params = seq.request.params
        if seq.num_output < params.min_tokens:
            return Accepted()
        if stopped := _stop_token(seq, sampled.token_id):
            return stopped
        if seq.num_tokens > self.max_model_len or seq.num_output == params.max_tokens:
            return Accepted(finish=FinishReason.LENGTH)
        return Accepted()


@dataclass(slots=True)
class V1Stops(_NoText):
    """The end token stops at any length; `repetition` only from min_tokens on."""

    max_model_len: int
    repetition: dict[str, Repetition]  # by request id

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        params = seq.request.params
        if stopped := _stop_token(seq, sampled.token_id):
            return stopped
        if seq.num_tokens >= self.max_model_len or seq.num_output >= (params.max_tokens or self.max_model_len):
            return Accepted(finish=FinishReason.LENGTH)
        rule = self.repetition.get(seq.request.request_id)
        if rule is not None and seq.num_output >= params.min_tokens and rule.found(seq.output_token_ids):
            return Accepted(finish=FinishReason.STOP, stop_reason="repetition")
        return Accepted()


def _stop_token(seq: Sequence, token: int) -> Accepted | None:
    params = seq.request.params
    if token in params.stop_token_ids or (token == END_TOKEN and not params.ignore_eos):
        return Accepted(finish=FinishReason.STOP, stop_reason=token)
    return None
