"""What becomes of a sampled token: text, and whether the request ends with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vtop.engine.executor import SampledToken
from vtop.engine.request import FinishReason, Request, Sequence


@dataclass(frozen=True, slots=True)
class Accepted:
    """A token was taken: text that became final with it, and why the request ends, if it does."""

    text: str = ""
    finish: FinishReason | None = None
    stop_reason: str | int | None = None


class OutputProcessor(Protocol):
    """Per-request text and stop rules."""

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        """Called once per output token, after it was appended to the sequence."""
        ...

    def close(self, request: Request) -> str:
        """The request ended; returns text still held back, and forgets the request."""
        ...


def length_reached(seq: Sequence) -> bool:
    """Whether the sequence is as long as max_tokens or the model allows."""
    return len(seq.token_ids) >= seq.request.limit
