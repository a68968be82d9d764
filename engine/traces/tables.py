"""Traces that are CSV tables: Azure, BurstGPT and Vidur. Columns are found by name, never by position."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from vtop.engine.traces.draft import Draft
from vtop.engine.traces.source import Place, Row, numbered_lines

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_COLUMNS = 1000


def columns(place: Place, line: str) -> list[str]:
    """The cells of one line. Raises BadValue."""
    try:
        cells = next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise place.bad(line, f"is no line of a CSV table ({error})") from error
    if len(cells) > MAX_COLUMNS:
        raise place.bad(len(cells), f"has more than {MAX_COLUMNS} columns")
    return [cell.strip() for cell in cells]


def rows(path: Path) -> Iterator[Row]:
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
    for row in rows(path):
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
    for row in rows(path):
        yield Draft(row.seconds("Timestamp"), row.tokens("Request tokens"), row.tokens("Response tokens"))


def vidur(path: Path) -> Iterator[Draft]:
    """Vidur's processed traces: lengths, and arrivals where the table has them (otherwise all at 0 s)."""
    for row in rows(path):
        at = row.seconds("arrived_at") if "arrived_at" in row.values else 0.0
        yield Draft(at, row.tokens("num_prefill_tokens"), row.tokens("num_decode_tokens"))
