"""A plain model of the policies: sorts everybody each time, and knows the engine by its Frames only.

`check` is to be called with every Frame in order; it raises when somebody was admitted who was not the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vtop.engine import events as ev


@dataclass
class Known:
    """What the model knows of a request."""

    arrived: ev.Arrived
    queued: float
    priority: float
    waiting: bool = True
    since: float = 0.0  # in the waiting queue
    admissions: int = 0
    computed: int = 0
    most_computed: int = 0
    level: int = 0
    place: int = 0
    used: int = 0


@dataclass
class PolicyModel:
    """Options as in EngineConfig."""

    policy: str
    priority_order: str = "high-first"
    aging_rate: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)
    quantum: int = 32
    levels: int = 8
    starvation: float = 3.0

    def __post_init__(self) -> None:
        self.known: dict[str, Known] = {}
        self.service: dict[str, float] = {}
        self.left_last: str | None = None
        self.places = 0
        self.now = 0.0
        self.admissions = 0

    def key(self, r: Known) -> tuple[Any, ...]:
        parts = [*self.policy.split("+"), "fcfs"]
        return tuple(x for part in parts for x in getattr(self, "_" + part)(r))

    def _fcfs(self, r: Known) -> tuple[Any, ...]:
        return (r.arrived.number,)

    def _priority(self, r: Known) -> tuple[Any, ...]:
        important = r.priority if self.priority_order == "high-first" else -r.priority
        return (round(-(important + self.aging_rate * (self.now - r.queued)), 9),)

    def _deadline(self, r: Known) -> tuple[Any, ...]:
        return (float("inf") if r.arrived.deadline is None else r.arrived.deadline,)

    def _sjf(self, r: Known) -> tuple[Any, ...]:
        most = r.arrived.limit - r.arrived.prompt_tokens
        return (min(most, r.arrived.expected_tokens or most),)

    def _fair(self, r: Known) -> tuple[Any, ...]:
        return (self.service.get(r.arrived.group, 0.0),)

    def _mlfq(self, r: Known) -> tuple[Any, ...]:
        return (r.level, r.place)

    # --- what happens ------------------------------------------------------------------------------------------------

    def waiting(self, group: str | None = None) -> list[Known]:
        return [r for r in self.known.values() if r.waiting and group in (None, r.arrived.group)]

    def _next_place(self) -> int:
        self.places += 1
        return self.places

    def _charge(self, r: Known, cost: float) -> None:
        group = r.arrived.group
        self.service[group] = self.service.get(group, 0.0) + cost / self.weights.get(group, 1.0)

    def check(self, frame: ev.Frame) -> None:
        self.now = frame.time if frame.began is None else frame.began
        for event in frame.events:
            handler = getattr(self, "on_" + type(event).__name__.lower(), None)
            if handler is not None:
                handler(event)
        if frame.ran and len([e for e in frame.events if isinstance(e, ev.Promoted)]) < 64:
            for r in self.waiting():
                assert "mlfq" not in self.policy or r.level == 0 or r.since + self.starvation > self.now

    def on_arrived(self, e: ev.Arrived) -> None:
        level = 0
        while level < self.levels - 1 and self.quantum * 2**level < e.prompt_tokens:
            level += 1
        queued = {r.arrived.group for r in self.waiting()}
        self.service.setdefault(e.group, 0.0)
        if e.group not in queued:
            if queued:
                self.service[e.group] = max(self.service[e.group], min(self.service[g] for g in queued))
            elif self.left_last is not None:
                self.service[e.group] = max(self.service[e.group], self.service[self.left_last])
        r = Known(e, e.arrival, e.priority, since=e.arrival, level=level, place=self._next_place())
        self.known[e.id] = r

    def on_admitted(self, e: ev.Admitted) -> None:
        first = min(self.waiting(), key=self.key)
        assert first.arrived.id == e.id, f"{e.id} was admitted before {first.arrived.id}"
        self.admissions += 1
        r = self.known[e.id]
        r.waiting = False
        r.admissions += 1
        r.computed = 0
        if not self.waiting(r.arrived.group):
            self.left_last = r.arrived.group
        if r.admissions == 1:
            self._charge(r, r.arrived.prompt_tokens)

    def on_prefixlookup(self, e: ev.PrefixLookup) -> None:
        self.known[e.id].computed = e.hit
        if not e.resumed:
            self._charge(self.known[e.id], -e.hit)

    def on_preempted(self, e: ev.Preempted) -> None:
        r = self.known[e.id]
        r.waiting, r.since = True, self.now

    def on_scheduled(self, e: ev.Scheduled) -> None:
        for request_id, tokens in zip(e.ids, e.tokens, strict=True):
            r = self.known[request_id]
            new = max(0, r.computed + tokens - max(r.computed, r.most_computed))
            r.computed += tokens
            r.most_computed = max(r.most_computed, r.computed)
            r.used += new

    def on_tokens(self, e: ev.Tokens) -> None:
        for request_id in e.ids:
            self._charge(self.known[request_id], 2.0)

    def on_demoted(self, e: ev.Demoted) -> None:
        r = self.known[e.id]
        assert r.level == e.before and r.used > self.quantum * 2**r.level
        r.level, r.used, r.place = r.level + 1, 0, self._next_place()

    def on_promoted(self, e: ev.Promoted) -> None:
        r = self.known[e.id]
        if e.cause is ev.MoveCause.STARVED:
            assert r.waiting and r.level == e.before > 0 and self.now >= r.since + self.starvation
            r.level, r.used, r.place = 0, 0, self._next_place()

    def on_priorityset(self, e: ev.PrioritySet) -> None:
        self.known[e.id].priority = e.after

    def on_finished(self, e: ev.Finished) -> None:
        r = self.known.pop(e.id)
        if r.waiting and not self.waiting(r.arrived.group):
            self.left_last = r.arrived.group
