"""What becomes of sampled tokens: text, and which requests end with theirs."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from typing import Protocol

from vtop.engine.beam import Hypothesis
from vtop.engine.errors import error_line
from vtop.engine.executor import Logprob, SampledToken
from vtop.engine.outputs import RequestOutput
from vtop.engine.request import FinishReason, Request, Sequence


@dataclass(frozen=True, slots=True)
class Accepted:
    """A token was taken: text that became final with it, and why the request ends, if it does."""

    text: str = ""
    finish: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Given:
    """The tokens that one step gave, in order, and the sequences that ended with theirs: (sequence, reason, ...).

    A sequence ends too when it has more tokens than `capacity`.
    """

    capacity: float
    ids: list[str] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ended: list[tuple[Sequence, FinishReason, str | int | None, str]] = field(default_factory=list)
    beams: list[Request] = field(default_factory=list)  # those all of whose beams know their likeliest tokens
    failed: dict[Request, str] = field(default_factory=dict)  # those with a fault of their own, and what it is

    def blame(self, request: Request, error: Exception) -> None:
        """What was raised is the fault of that request alone."""
        self.failed.setdefault(request, error_line(error))


class OutputProcessor(Protocol):
    """Per-request text and stop rules."""

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        """Called once per output token, after it was appended to the sequence."""
        ...

    def end(self, seq: Sequence, reason: FinishReason, stop_reason: str | int | None) -> str:
        """One of several samples ended, others go on; returns its text that was still held back."""
        ...

    def grow_beams(self, request: Request) -> None:
        """The beams of a request grow by a token each, or end with it."""
        ...

    def close_beams(self, request: Request, best: Sequence_[Hypothesis]) -> list[str]:
        """A beam search is over: its outputs are these hypotheses, best first; returns their texts.

        Comes before `close`.
        """
        ...

    def close(self, request: Request) -> str:
        """The request ended; returns text still held back, and forgets the request."""
        ...

    def fail(self, request: Request) -> None:
        """`close` raised: forget the request, whose finish reason and message say why, without the text held back."""
        ...


class EngineOutputs(OutputProcessor, Protocol):
    """An OutputProcessor that makes the engine's outputs as well."""

    def open(self, request: Request) -> None:
        """A request was accepted. Comes before its first token."""
        ...

    def forget(self, request: Request) -> None:
        """A request that was opened is not accepted after all."""
        ...

    def add_prompt_logprobs(self, seq: Sequence, entries: list[tuple[int, Logprob, tuple[Logprob, ...]]]) -> None:
        """Log-probabilities of prompt tokens at their positions; a position may be told again after a preemption."""
        ...

    def result(self, request: Request) -> RequestOutput | None:
        """The output of a request that is alive or ended lately, for the audit; None when none is kept."""
        ...

    def take_changed(self) -> list[RequestOutput]:
        """Outputs that changed since the last call, each once; at least those of ended requests."""
        ...
