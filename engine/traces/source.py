"""A trace file as numbered lines, rows whose columns are checked, and the requests made of them: what readers share.

Traces come from strangers: a line, a number and an id have bounds, a file is read line by line, and every error names
the place in one line.
"""

from __future__ import annotations

import codecs
import gzip
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from vtop.engine import user_files
from vtop.engine.errors import BadValue
from vtop.engine.user_files import GZIP_MAGIC, CountedReader
from vtop.engine.workload.jobs import Job

A_TRACE = "a file with a trace"
MAX_LINE = 1 << 24  # bytes
MAX_TOKENS = 10_000_000  # of one prompt or output; models take far fewer
MAX_SECONDS = 1e15  # a wall clock in milliseconds fits
MAX_ID = 200  # characters
NO_OUTPUT = "no output tokens (failed)"
NO_PROMPT = "no prompt tokens"
_CHUNK = 1 << 16
_WHOLE = re.compile(r"[0-9]{1,18}(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands; `line` counts from 1."""

    path: Path
    line: int | None = None

    @property
    def name(self) -> str:
        """The file's, printable."""
        return "".join(c if c.isprintable() else "?" for c in self.path.name)

    def bad(self, value: object, remedy: str, column: str = "") -> BadValue:
        """The error for a value at this place."""
        where = self.name if self.line is None else f"{self.name}, line {self.line}"
        return BadValue(f"{where}, {column}" if column else where, value, remedy)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unzipped when its first bytes say gzip. Raises BadValue when it cannot be read."""
    name = Place(path).name
    with user_files.opened(name, path, A_TRACE) as file:
        zipped = file.read(2) == GZIP_MAGIC
        file.seek(0)
        if not zipped:
            yield file
            return
        try:
            with gzip.open(file) as unzipped:
                size = os.fstat(file.fileno()).st_size
                yield io.BufferedReader(CountedReader(name, path, unzipped, size), _CHUNK)  # type: ignore[arg-type]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadValue(name, str(path), f"is damaged gzip ({error}); fetch it again") from error


def numbered_lines(path: Path) -> Iterator[tuple[Place, str]]:
    """Lines that are not blank, without their ends and a byte order mark. Raises BadValue."""
    with opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            place = Place(path, number)
            if text := decoded(place, line):
                yield place, text


def first_line(path: Path) -> tuple[Place, str] | None:
    """The first line that is not blank, or "[" where a JSON list begins: such a list may be one endless line.

    Reads no more than it needs, so that a recording cut right behind its first line is still known. Raises BadValue.
    """
    head = bytearray()  # from the first byte that is not blank
    lines_before = 0
    start = codecs.BOM_UTF8
    for more in user_files.pieces(Place(path).name, path, A_TRACE):
        if not head:
            text = more.removeprefix(start).lstrip()
            lines_before += more[: len(more) - len(text)].count(b"\n")
            start, more = b"", text
        head += more
        if head[:1] == b"[" or b"\n" in more or len(head) > MAX_LINE:
            break
    if not head:
        return None
    place = Place(path, lines_before + 1)
    return place, "[" if head[:1] == b"[" else decoded(place, bytes(head.partition(b"\n")[0]))


def decoded(place: Place, line: bytes) -> str:
    """A line as text. Raises BadValue when it is too long or no UTF-8."""
    if len(line) > MAX_LINE:
        raise place.bad(line[:20], f"is longer than {MAX_LINE >> 20} MiB; traces have one request a line")
    try:
        return line.decode("utf-8-sig" if place.line == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise place.bad(line[max(0, error.start - 10) : error.start + 10], "is not UTF-8 text") from error


def json_object(place: Place, text: str | bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises BadValue."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise place.bad(text[:80], f"is not JSON ({error}); every line is one request") from error
    if not isinstance(value, dict):
        raise place.bad(text[:80], "is not a JSON object; every line is one request")
    return value


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace: its columns as they stand in the file (text of a CSV, values of JSON)."""

    place: Place
    values: Mapping[str, Any]

    def get(self, column: str) -> Any:
        """A column as it is. Raises BadValue when it is missing."""
        try:
            return self.values[column]
        except KeyError:
            raise self.place.bad(None, "is missing", column) from None

    def tokens(self, column: str) -> int:
        """A number of tokens, 0 or more. Raises BadValue."""
        value = self.get(column)
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            whole = int(value.strip().partition(".")[0])
        elif isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == value // 1:
            whole = int(value)
        else:
            raise self.place.bad(value, "is no whole number of tokens", column)
        if whole > MAX_TOKENS:
            raise self.place.bad(value, f"is more than {MAX_TOKENS:,} tokens, which no model takes", column)
        return whole

    def seconds(self, column: str) -> float:
        """A finite number. Raises BadValue."""
        value = self.get(column)
        if isinstance(value, str):
            number = float(value) if len(value) < 64 and _NUMBER.fullmatch(value.strip()) else math.nan
        else:
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not abs(number) < MAX_SECONDS:
            raise self.place.bad(value, "is no time; use a number", column)
        return float(number)

    def name(self, column: str) -> str:
        """A text or number that names something. Raises BadValue."""
        value = self.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int) or not 0 < len(str(value)) <= MAX_ID:
            raise self.place.bad(value, f"is no id; use a text of 1 to {MAX_ID} characters or a number", column)
        return str(value)


@dataclass(frozen=True, slots=True)
class Draft:
    """One request as a reader finds it. `at` is seconds on the clock of the trace; `id` may be None or used before."""

    at: float
    prompt_tokens: int
    output_tokens: int
    id: str | None = None
    prefix: tuple[tuple[str, int], ...] = ()
    more: dict[str, Any] = field(default_factory=dict)  # further fields of Job


def jobs_of(drafts: Iterable[Draft], limit: int | None, left_out: Counter[str]) -> tuple[Job, ...]:
    """The first `limit` usable drafts as jobs by arrival, the first at 0 s. Others are counted in `left_out` by reason.

    Ids are those of the trace, or the position in it; one that comes again gets a number.
    """
    taken = list(_usable(drafts, limit, left_out))
    start = min((draft.at for draft in taken), default=0.0)
    used: Counter[str] = Counter()
    jobs = []
    for position, draft in enumerate(taken):
        jobs.append(
            Job(
                id=_fresh(draft.id or str(position), used),
                at=draft.at - start,
                prompt_tokens=draft.prompt_tokens,
                output_tokens=draft.output_tokens,
                prefix=draft.prefix,
                **draft.more,
            )
        )
    return tuple(sorted(jobs, key=lambda job: job.at))


def _usable(drafts: Iterable[Draft], limit: int | None, left_out: Counter[str]) -> Iterator[Draft]:
    left = limit
    for draft in drafts:
        if draft.output_tokens < 1:
            left_out[NO_OUTPUT] += 1
        elif draft.prompt_tokens < 1:
            left_out[NO_PROMPT] += 1
        else:
            yield draft
            if left is not None and (left := left - 1) == 0:  # before the next row is read, which may be bad
                return


def _fresh(name: str, used: Counter[str]) -> str:
    fresh = name
    while used[fresh]:
        used[name] += 1
        fresh = f"{name}#{used[name]}"
    used[fresh] = 1
    return fresh
