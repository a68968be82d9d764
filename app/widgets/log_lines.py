"""Lines of the event log: one for each event that a person wants to read, none for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from vtop.engine import events as ev
from vtop.engine.state.fold import RequestView


class Kind(StrEnum):
    """What a line is about; also its glyph in `Glyphs` and what the log can be filtered by."""

    PREEMPT = "preempt"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    ARRIVE = "arrive"
    ADMIT = "admit"
    RESUME = "resume"
    REFUSE = "refuse"
    WAIT = "wait"
    FINISH = "finish"
    POOL = "pool"
    HIT = "hit"
    EVICT = "evict"
    COW = "cow"
    CACHE = "cache"
    FAIL = "fail"
    NOTE = "note"
    PAUSE = "pause"
    FORK = "fork"
    SAMPLE = "sample"
    SKIP = "skip"
    MOVE = "move"
    MISS = "miss"
    OPTION = "option"

    @property
    def word(self) -> str:
        """As it is written in a line."""
        return self.value.replace("_", "")


@dataclass(slots=True)
class Line:
    """An event of the log. Its words are made when it comes on the screen."""

    kind: Kind
    step: int
    time: float
    event: ev.AnyEvent
    request: RequestView | None = None  # of a finished one, for its times
    blocks: int = 0  # evicted, in this step and those before it that the line stands for
    steps: int = 1


LOUD = (Kind.PREEMPT, Kind.SWAP_OUT)
"""Lines that must not be missed: a running request lost its place."""

_KINDS: dict[type, Kind] = {
    ev.Arrived: Kind.ARRIVE,
    ev.Refused: Kind.REFUSE,
    ev.Admitted: Kind.ADMIT,
    ev.Waits: Kind.WAIT,
    ev.Preempted: Kind.PREEMPT,
    ev.SwappedOut: Kind.SWAP_OUT,
    ev.SwapOutFailed: Kind.FAIL,
    ev.SwappedIn: Kind.SWAP_IN,
    ev.Forked: Kind.FORK,
    ev.SequenceFinished: Kind.SAMPLE,
    ev.Searched: Kind.SAMPLE,
    ev.Chosen: Kind.SAMPLE,
    ev.Passed: Kind.SKIP,
    ev.Promoted: Kind.MOVE,
    ev.Demoted: Kind.MOVE,
    ev.Lifted: Kind.MOVE,
    ev.PrioritySet: Kind.MOVE,
    ev.Switched: Kind.OPTION,
    ev.TurnedAway: Kind.REFUSE,
    ev.DeadlineMissed: Kind.MISS,
    ev.Finished: Kind.FINISH,
    ev.StepFailed: Kind.FAIL,
    ev.PoolResized: Kind.POOL,
    ev.PrefixLookup: Kind.HIT,
    ev.Evicted: Kind.EVICT,
    ev.CopiedOnWrite: Kind.COW,
    ev.CacheReset: Kind.CACHE,
    ev.Paused: Kind.PAUSE,
    ev.Resumed: Kind.PAUSE,
    ev.SpeedSet: Kind.NOTE,
    ev.SubscriberBehind: Kind.NOTE,
    ev.Note: Kind.NOTE,
}


def together(events: Iterable[ev.AnyEvent]) -> Iterator[ev.AnyEvent]:
    """The events of a step, its evictions as one, where the first of them was, and of a request's forks the last."""
    events = list(events)
    evicted = _all_evicted([event for event in events if isinstance(event, ev.Evicted)])
    forked = {event.id: event for event in events if isinstance(event, ev.Forked)}
    for event in events:
        if isinstance(event, ev.Forked):
            if event is forked[event.id]:
                yield event
        elif not isinstance(event, ev.Evicted):
            yield event
        elif evicted is not None:
            yield evicted
            evicted = None


def _all_evicted(events: list[ev.Evicted]) -> ev.Evicted | None:
    if len(events) < 2:
        return events[0] if events else None
    return ev.Evicted(
        [block for event in events for block in event.blocks],
        [hash_ for event in events for hash_ in event.hashes],
        [used for event in events for used in event.last_used],
    )


def line_of(event: ev.AnyEvent, step: int, time: float) -> Line | None:
    """The line of an event, or None: tokens, chunks and single blocks are not lines."""
    kind = _KINDS.get(type(event))
    if kind is None or (isinstance(event, ev.PrefixLookup) and not event.hit):
        return None
    if isinstance(event, ev.Evicted):
        return Line(kind, step, time, event, blocks=len(event.blocks))
    if kind is Kind.ADMIT and isinstance(event, ev.Admitted) and event.resumed:
        kind = Kind.RESUME
    return Line(kind, step, time, event)


def decision(event: ev.AnyEvent, step: int, time: float) -> Line:
    """The line of a decision about a request; in its history some are told that the log leaves out."""
    return line_of(event, step, time) or Line(_KINDS.get(type(event), Kind.WAIT), step, time, event)


def subject(line: Line) -> str:
    """Id of the request a line is about, or an empty string."""
    return str(getattr(line.event, "id", ""))
