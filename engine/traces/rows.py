"""Traces with one request a line: JSON (Mooncake, Qwen-Bailian, request logs of recorded vLLM runs), or a CSV table
(Azure, BurstGPT, Vidur), whose columns are found by name, never by position.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vtop.engine.traces.source import Draft, Place, Row, json_object, numbered_lines

MOONCAKE_BLOCK = 512  # tokens behind one hash id
BAILIAN_BLOCK = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_COLUMNS = 1000


# --- JSON lines ----------------------------------------------------------------------------------------------------


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


def json_rows(path: Path) -> Iterator[Row]:
    """One row per line. Raises BadValue."""
    for place, line in numbered_lines(path):
        yield Row(place, json_object(place, line))


def mooncake(path: Path) -> Iterator[Draft]:
    """Mooncake: milliseconds, hash ids of 512 tokens."""
    pieces = _Pieces(MOONCAKE_BLOCK)
    for row in json_rows(path):
        prompt = row.tokens("input_length")
        yield Draft(row.seconds("timestamp") / 1000, prompt, row.tokens("output_length"), prefix=pieces.of(row, prompt))


def bailian(path: Path) -> Iterator[Draft]:
    """Qwen-Bailian: seconds, hash ids of 16 tokens.

    A later turn arrives when it did, not after the end of its parent: when that ended is not in the trace. What it
    shares with its parent is in the hash ids.
    """
    pieces = _Pieces(BAILIAN_BLOCK)
    for row in json_rows(path):
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
    for row in json_rows(path):
        prompt, output = row.tokens("input_toks"), row.tokens("output_toks")
        yield Draft(row.seconds("arrival_time"), prompt, output, id=row.name("request_id"))


_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def measured(path: Path) -> list[MeasuredRequest]:
    """The requests of a vLLM log with their times, by arrival. Raises BadValue.

    Arrivals are on the wall clock, the rest on a monotonic one. The two are brought together so that the request that
    was queued soonest after its arrival was queued at once; true waits are longer by that unknown, small time.
    """
    found = list(json_rows(path))
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


# --- CSV tables ----------------------------------------------------------------------------------------------------


def columns(place: Place, line: str) -> list[str]:
    """The cells of one line. Raises BadValue."""
    try:
        cells = next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise place.bad(line, f"is no line of a CSV table ({error})") from error
    if len(cells) > MAX_COLUMNS:
        raise place.bad(len(cells), f"has more than {MAX_COLUMNS} columns")
    return [cell.strip() for cell in cells]


def table_rows(path: Path) -> Iterator[Row]:
    """The rows under the header. Raises BadValue for a line with another number of cells."""
    header: list[str] = []
    for place, line in numbered_lines(path):
        cells = columns(place, line)
        if not header:
            header = cells
        elif len(cells) != len(header):
            raise place.bad(line, f"has {len(cells)} cells, the header {len(header)}; the file may be cut")
        else:
            yield Row(place, dict(zip(header, cells, strict=True)))


def azure(path: Path) -> Iterator[Draft]:
    """Azure 2023 and 2024, and 2025 without its images. Seven decimals are read as six."""
    for row in table_rows(path):
        yield Draft(_moment(row, "TIMESTAMP"), row.tokens("ContextTokens"), row.tokens("GeneratedTokens"))


def _moment(row: Row, column: str) -> float:
    text = row.get(column)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise row.place.bad(text, "is no time like 2023-11-16 18:17:03.9799600", column) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds()


def burstgpt(path: Path) -> Iterator[Draft]:
    """BurstGPT 1 to 3: seconds; a response of 0 tokens is a failed request."""
    for row in table_rows(path):
        yield Draft(row.seconds("Timestamp"), row.tokens("Request tokens"), row.tokens("Response tokens"))


def vidur(path: Path) -> Iterator[Draft]:
    """Vidur's processed traces: lengths, and arrivals where the table has them (otherwise all at 0 s)."""
    for row in table_rows(path):
        at = row.seconds("arrived_at") if "arrived_at" in row.values else 0.0
        yield Draft(at, row.tokens("num_prefill_tokens"), row.tokens("num_decode_tokens"))
