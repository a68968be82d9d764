"""What a policy decides: its part of the key by which requests are ordered, smaller first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vtop.engine import events as ev
from vtop.engine.request import Key, Request


class KeyChange(NamedTuple):
    """A policy moved a request to another place: its key must be asked for again."""

    cause: ev.MoveCause
    before: float
    after: float


class Policy:
    """One policy of a stack. A subclass gives `key`; hooks it does not override cost nothing.

    The key of a request must not change by itself: it is asked for when the request is queued (on arrival and after a
    preemption), when its priority is set, and when a hook returns a KeyChange. `width` is how many numbers it has.
    """

    name = ""
    width = 1
    urgent = True  # with preempt_for_waiting, a smaller rank is a reason to take somebody's blocks

    def key(self, request: Request) -> Key:
        """This policy's part of the key."""
        raise NotImplementedError

    def rank(self, request: Request) -> Key:
        """How little the request matters, for the choice of victims: the key, unless waiting has bettered it."""
        return self.key(request)

    def urgency(self, request: Request) -> Key:
        """What preempt_for_waiting compares: the rank, unless requests are admitted by more than that."""
        return self.rank(request)

    def on_arrival(self, request: Request, now: float) -> None:
        """Called before the first `key` of a request."""

    def on_admit(self, request: Request, now: float, cached: int) -> KeyChange | None:
        """From waiting or swapped to running; `cached` tokens need not be computed. At first, it has no preemptions.

        A KeyChange returned here is told only: the key is as it was.
        """
        return None

    def on_tokens(self, request: Request, computed: int, outputs: int) -> KeyChange | None:
        """A step computed `computed` tokens that never were before, and gave `outputs` output tokens."""
        return None

    def on_preempt(self, request: Request, now: float) -> None:
        """From running back to waiting, or to swapped; called before its key is asked for."""

    def on_priority(self, request: Request, before: float) -> None:
        """The priority of a request was changed; called before its key is asked for."""

    def on_finish(self, request: Request) -> None:
        """The request ends; its status still says where it was: running, or among those that wait."""

    def due(self, now: float) -> list[tuple[Request, KeyChange]]:
        """Waiting requests that time alone moved. Asked once a step; must not look at all that wait."""
        return []

    def adopt(self, waiting: Sequence[Request], running: Sequence[Request], now: float, old: Policy | None) -> None:
        """Take over requests that are there already (swapped ones among the waiting).

        `old` is the policy of the same name that ordered them, if any.
        """

    def take_events(self) -> list[ev.AnyEvent]:
        """What changed in the policy since the last call."""
        return []
