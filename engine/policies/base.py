"""What a policy decides: the key by which requests are ordered, smaller first."""

from __future__ import annotations

from typing import Protocol

from vtop.engine.request import Request


class Policy(Protocol):
    """Orders requests, in the waiting queue and among the running ones, by one and the same key.

    Keys of all requests of one policy have the same length and end in something unique, so that no two are equal.
    """

    name: str

    def key(self, request: Request) -> tuple[float, ...]:
        """The key of a request that is queued now: on arrival and after a preemption."""
        ...
