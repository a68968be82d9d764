"""PolicyStack: policies composed, from the most to the least significant. What the scheduler talks to."""

from __future__ import annotations

from collections.abc import Sequence

from vtop.engine import events as ev
from vtop.engine.policies.base import KeyChange, Policy
from vtop.engine.policies.fair import Fair
from vtop.engine.policies.fcfs import Fcfs
from vtop.engine.policies.queues import FairQueue, HeapQueue, RunningList, WaitingQueue
from vtop.engine.request import NO_FAIR, Key, Request, order_key


class PolicyStack:
    """Orders requests by the keys of its parts one after the other; `fcfs` is added at the end, so keys are unique.

    `spec` is the name it was made from. `fair_at` is the place of the group counter in the order, NO_FAIR without one.
    Hooks that no part overrides are not called, so that a policy costs what it uses; `token_hooks` are the `on_tokens`
    of those that do, called for every chunk of every step.
    """

    def __init__(self, spec: str, parts: Sequence[Policy]) -> None:
        self.spec = spec
        self.parts = list(parts)
        if not isinstance(self.parts[-1], Fcfs):
            self.parts.append(Fcfs())
        self.fair: Fair | None = None
        self.fair_at, at = NO_FAIR, 0
        for part in self.parts:
            if isinstance(part, Fair):
                self.fair, self.fair_at = part, at
            at += part.width
        self.counters: dict[str, float] = {}  # of the fair part; the same object for good
        if self.fair is not None:
            self.counters = self.fair.counters
        self._urgent = [part for part in self.parts if part.urgent]
        self._arrival = self._overriding("on_arrival")
        self._admit = self._overriding("on_admit")
        self.token_hooks = [part.on_tokens for part in self._overriding("on_tokens")]
        self._due = self._overriding("due")
        self._tell = self._overriding("take_events")

    def _overriding(self, hook: str) -> list[Policy]:
        return [part for part in self.parts if getattr(type(part), hook) is not getattr(Policy, hook)]

    # --- order -------------------------------------------------------------------------------------------------------

    def key(self, request: Request) -> Key:
        """The key of a request that is queued now. Equal for no two requests."""
        key: Key = ()
        for part in self.parts:
            key += part.key(request)
        return key

    def order(self, request: Request) -> Key:
        """What requests are sorted by: the stored key, with the counter of the group where the policy has one."""
        return order_key(request.key, request.group, self.fair_at, self.counters)

    def rank(self, request: Request) -> Key:
        """How little a running request matters; the victim rule `policy` takes the largest."""
        rank: Key = ()
        for part in self.parts:
            rank += part.rank(request)
        return rank

    def urgency(self, request: Request) -> Key:
        """With preempt_for_waiting, a strictly smaller one may take the blocks of a larger one behind it in order.

        One in front of it in order would be admitted again before it.
        """
        urgency: Key = ()
        for part in self._urgent:
            urgency += part.urgency(request)
        return urgency

    def make_queue(self) -> WaitingQueue:
        """An empty queue in this order."""
        return HeapQueue() if self.fair_at == NO_FAIR else FairQueue(self.fair_at, self.counters)

    def make_running(self) -> RunningList:
        """An empty list of running requests in this order."""
        return RunningList(None if self.fair_at == NO_FAIR else self.order)

    # --- hooks, called by the scheduler ------------------------------------------------------------------------------

    def on_arrival(self, request: Request, now: float) -> None:
        for part in self._arrival:
            part.on_arrival(request, now)

    def on_admit(self, request: Request, now: float, cached: int = 0) -> KeyChange | None:
        changed = None
        for part in self._admit:
            changed = part.on_admit(request, now, cached) or changed
        return changed

    def on_preempt(self, request: Request, now: float) -> None:
        for part in self.parts:
            part.on_preempt(request, now)

    def on_priority(self, request: Request, before: float) -> None:
        for part in self.parts:
            part.on_priority(request, before)

    def on_finish(self, request: Request) -> None:
        for part in self.parts:
            part.on_finish(request)

    def due(self, now: float) -> list[tuple[Request, KeyChange]]:
        return [moved for part in self._due for moved in part.due(now)] if self._due else []

    def take_events(self) -> list[ev.AnyEvent]:
        return [event for part in self._tell for event in part.take_events()] if self._tell else []

    def adopt(self, waiting: Sequence[Request], running: Sequence[Request], now: float, old: PolicyStack) -> list[Key]:
        """Take over what is there from the stack before; returns the keys, waiting ones first.

        Changes no request. Raises BadValue when a user's policy cannot order them; the old stack is as it was.
        """
        before = {part.name: part for part in old.parts}
        for part in self.parts:
            part.adopt(waiting, running, now, before.get(part.name))
        if self.fair is not None:
            self.counters = self.fair.counters
        return [self.key(request) for request in (*waiting, *running)]
