"""First come, first served."""

from __future__ import annotations

from vtop.engine.request import Request


class Fcfs:
    """In the order in which requests were added to the engine.

    The serial number counts, not a client's own arrival time: a preempted request thereby stands before all that
    never ran, and nobody can move ahead by claiming an earlier time.
    """

    name = "fcfs"

    def key(self, request: Request) -> tuple[float, ...]:
        return (request.number,)
