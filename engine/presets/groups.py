"""Groups of V0: n sequences of one request, which share a prompt and then go their own ways."""

from __future__ import annotations

from vtop.engine.request import Request


def seats_of(request: Request) -> int:
    """Seats that a request takes: all of a group's until it forks, then those of its unfinished sequences."""
    return len(request.computing) if request.forked else len(request.sequences)
