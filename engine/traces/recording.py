"""Our own recordings as traces: what arrived, and how long its output became."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vtop.engine import events as ev
from vtop.engine.events import FAULTS, inconsistent
from vtop.engine.events.journal import Recording
from vtop.engine.traces.source import Draft

_AS_SEEN = frozenset({"stop", "abort"})


class _Seen:
    """A request of the recording, while its events come."""

    def __init__(self, arrived: ev.Arrived) -> None:
        self.arrived = arrived
        self.tokens: dict[int, int] = {}  # sequence -> output tokens
        self.reason = ""

    def output_tokens(self) -> int:
        """Of its longest sequence. One that neither stopped nor was aborted got what it asked for, or would have."""
        seen = max(self.tokens.values(), default=0)
        asked = self.arrived.max_tokens
        if self.reason in _AS_SEEN or asked is None:
            return max(1, seen)
        return max(1, seen, min(asked, self.arrived.limit - self.arrived.prompt_tokens))


def recording(path: Path) -> Iterator[Draft]:
    """Requests in order of arrival. Raises BadValue, InconsistentFrame.

    Refused requests are none. What prompts shared is not told, since a recording holds no token ids. Requests that
    were cut short (time-out, capacity, failure, end of the recording) have the length that they asked for.
    """
    alive: dict[str, _Seen] = {}
    seen: list[_Seen] = []
    for frame in Recording(path).frames():
        for event in frame.events:
            try:
                _take(event, alive, seen)
            except FAULTS as error:
                raise inconsistent(frame, event, error) from error
    for request in seen:
        yield _draft(request)


def _take(event: ev.AnyEvent, alive: dict[str, _Seen], seen: list[_Seen]) -> None:
    if isinstance(event, ev.Arrived):
        alive[event.id] = request = _Seen(event)
        seen.append(request)
    elif isinstance(event, ev.Tokens):
        for index, request_id in enumerate(event.ids):
            if found := alive.get(request_id):
                seq = event.seqs[index] if event.seqs else 0
                found.tokens[seq] = found.tokens.get(seq, 0) + 1
    elif isinstance(event, ev.Forked) and event.prompt_tokens is None:
        if found := alive.get(event.id):
            found.tokens[event.child] = found.tokens.get(event.parent, 0)
    elif isinstance(event, ev.SequenceFinished):
        if found := alive.get(event.id):
            found.tokens[event.seq] = event.output_tokens
    elif isinstance(event, ev.Searched):
        if found := alive.get(event.id):
            found.tokens = {0: max((len(output.tokens) for output in event.outputs), default=0)}
    elif isinstance(event, ev.Finished) and (found := alive.pop(event.id, None)):
        found.reason = event.reason
        if found.arrived.samples == 1:
            found.tokens = {0: event.output_tokens}


def _draft(request: _Seen) -> Draft:
    arrived = request.arrived
    own_deadline = arrived.deadline if arrived.deadline != arrived.expires else None
    beams = arrived.samples > 1 and arrived.temperature == 0  # greedy samples would all be the same and are refused
    more: dict[str, Any] = {
        "priority": arrived.priority,
        "group": arrived.group,
        "timeout": _after(arrived, arrived.expires),
        "deadline": _after(arrived, own_deadline),
        "n": 1 if beams else arrived.samples,
        "beam_width": arrived.samples if beams else None,
        "expected_tokens": arrived.expected_tokens,
    }
    return Draft(arrived.arrival, arrived.prompt_tokens, request.output_tokens(), id=arrived.id, more=more)


def _after(arrived: ev.Arrived, moment: float | None) -> float | None:
    return None if moment is None else max(moment - arrived.arrival, 1e-9)  # one that was due on arrival stays so
