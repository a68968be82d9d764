"""First come, first served."""

from __future__ import annotations

from vtop.engine.policies.base import Policy
from vtop.engine.request import Key, Request


class Fcfs(Policy):
    """In the order in which requests were added to the engine. It ends every stack, as the tie-break.

    The serial number counts, not a client's own arrival time: a preempted request thereby stands before all that
    never ran, and nobody can move ahead by claiming an earlier time.
    """

    name = "fcfs"
    urgent = False  # having come earlier is no reason to throw somebody out

    def key(self, request: Request) -> Key:
        return (request.number,)
