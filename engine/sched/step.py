"""What one step has decided so far, and what its tokens did."""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.errors import error_line
from vtop.engine.executor import Chunk
from vtop.engine.request import FinishReason, Request, Sequence


@dataclass(slots=True)
class StepPass:
    """What one call of `schedule` has decided so far."""

    now: float
    left: int  # tokens left of the budget
    chunks: dict[Request, list[Chunk]] = field(default_factory=dict)
    copies: dict[Request, list[tuple[int, int]]] = field(default_factory=dict)  # (source, target) blocks
    swap_out: list[tuple[int, int]] = field(default_factory=list)  # (device, host) blocks
    swap_in: list[tuple[int, int]] = field(default_factory=list)  # (host, device) blocks
    returned: set[Request] = field(default_factory=set)  # swapped in
    victim: Request | None = None  # the first one preempted in this pass
    limit: ev.Limit = ev.Limit.NONE

    def add(self, request: Request, chunk: Chunk) -> None:
        self.left -= chunk.num_tokens
        self.chunks.setdefault(request, []).append(chunk)

    def give_back(self, request: Request) -> None:
        """The request was preempted: what it was given in this pass is there again."""
        self.left += sum(chunk.num_tokens for chunk in self.chunks.pop(request, ()))
        self.copies.pop(request, None)


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
