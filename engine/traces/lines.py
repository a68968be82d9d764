"""Traces that are JSON lines: Mooncake, Qwen-Bailian, and the request logs of recorded vLLM runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vtop.engine.traces.draft import Draft
from vtop.engine.traces.source import Row, json_object, numbered_lines

MOONCAKE_BLOCK = 512  # tokens behind one hash id
BAILIAN_BLOCK = 16


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """What a real engine did with a request: seconds from the first arrival; lengths in tokens."""

    id: str
    prompt_tokens: int
    output_tokens: int
    arrival: float
    queued: float
    scheduled: float
    first_token: float
    last_token: float


def rows(path: Path) -> Iterator[Row]:
    """One row per line. Raises BadValue."""
    for place, line in numbered_lines(path):
        yield Row(place, json_object(place, line))


def mooncake(path: Path) -> Iterator[Draft]:
    """Mooncake: milliseconds, hash ids of 512 tokens."""
    pieces = _Pieces(MOONCAKE_BLOCK)
    for row in rows(path):
        prompt = row.tokens("input_length")
        yield Draft(row.seconds("timestamp") / 1000, prompt, row.tokens("output_length"), prefix=pieces.of(row, prompt))


def bailian(path: Path) -> Iterator[Draft]:
    """Qwen-Bailian: seconds, hash ids of 16 tokens.

    A later turn arrives when it did, not after the end of its parent: when that ended is not in the trace. What it
    shares with its parent is in the hash ids.
    """
    pieces = _Pieces(BAILIAN_BLOCK)
    for row in rows(path):
        prompt = row.tokens("input_length")
        name = f"{row.name('chat_id')}.{row.name('turn')}"
        prefix = pieces.of(row, prompt)
        yield Draft(row.seconds("timestamp"), prompt, row.tokens("output_length"), id=name, prefix=prefix)


class _Pieces:
    """Prefix chains from hash ids: every id is a piece of `block` tokens, the last one of what is left.

    Whole pieces are kept once: traces name the same ones millions of times.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._whole: dict[int, tuple[str, int]] = {}

    def of(self, row: Row, prompt: int) -> tuple[tuple[str, int], ...]:
        ids = row.values.get("hash_ids") or []
        if not isinstance(ids, list):
            raise row.place.bad(ids, "is no list of hash ids", "hash_ids")
        if (need := -(-prompt // self.block)) < len(ids):
            remedy = f"holds {len(ids)} ids; a prompt of {prompt} tokens has {need} blocks of {self.block}"
            raise row.place.bad(ids[:3], remedy, "hash_ids")
        pieces = []
        left = prompt
        for value in ids:
            if type(value) is not int:
                raise row.place.bad(value, "is no hash id; use whole numbers", "hash_ids")
            if left >= self.block:
                pieces.append(self._whole.setdefault(value, (str(value), self.block)))
            else:
                pieces.append((str(value), left))
            left -= self.block
        return tuple(pieces)


def vllm_log(path: Path) -> Iterator[Draft]:
    """A request log of vLLM (as LLMServingSim records it): arrivals on the wall clock."""
    for row in rows(path):
        prompt, output = row.tokens("input_toks"), row.tokens("output_toks")
        yield Draft(row.seconds("arrival_time"), prompt, output, id=row.name("request_id"))


_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def measured(path: Path) -> list[MeasuredRequest]:
    """The requests of a vLLM log with their times, by arrival. Raises BadValue.

    Arrivals are on the wall clock, the rest on a monotonic one. The two are brought together so that the request that
    was queued soonest after its arrival was queued at once; true waits are longer by that unknown, small time.
    """
    found = list(rows(path))
    arrivals = [row.seconds("arrival_time") for row in found]
    times = [tuple(row.seconds(column) for column in _TIMES) for row in found]
    for row, at in zip(found, times, strict=True):
        if list(at) != sorted(at):
            raise row.place.bad(at, f"{', '.join(_TIMES)} go backwards; one of them is wrong")
    start = min(arrivals, default=0.0)
    apart = min((t[0] - (arrival - start) for t, arrival in zip(times, arrivals, strict=True)), default=0.0)
    requests = [
        MeasuredRequest(
            row.name("request_id"),
            row.tokens("input_toks"),
            row.tokens("output_toks"),
            arrival - start,
            *(t - apart for t in at),
        )
        for row, arrival, at in zip(found, arrivals, times, strict=True)
    ]
    return sorted(requests, key=lambda request: request.arrival)
