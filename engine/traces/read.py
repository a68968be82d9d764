"""Request traces as workloads: the format is chosen by what the file holds, never by its name.

Known are Azure's LLM traces, BurstGPT, Mooncake, Qwen-Bailian, Vidur's processed traces, ShareGPT dumps, request logs
of vLLM, and recordings of vtop. Some small ones come with vtop: `shipped_trace`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtop.engine.errors import BadValue
from vtop.engine.traces import rows, sharegpt
from vtop.engine.traces.recording import recording
from vtop.engine.traces.rows import MeasuredRequest as MeasuredRequest
from vtop.engine.traces.source import Draft, Place, first_line, jobs_of, json_object
from vtop.engine.workload.jobs import Workload

SHIPPED = {
    "azure-code": "azure-code.csv",
    "azure-conv": "azure-conv.csv",
    "mooncake-conversation": "mooncake-conversation.jsonl",
    "mooncake-synthetic": "mooncake-synthetic.jsonl",
    "rtx4090": "rtx4090.jsonl",
    "rtxpro6000": "rtxpro6000.jsonl",
}
_DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, slots=True)
class Format:
    """A known format: its rows have `columns`; `read` yields the requests of a file."""

    name: str
    columns: frozenset[str]
    read: Callable[[Path], Iterator[Draft]]


def _format(name: str, read: Callable[[Path], Iterator[Draft]], *columns: str) -> Format:
    return Format(name, frozenset(columns), read)


# The first whose columns are all there is taken; Bailian's rows have Mooncake's columns too.
JSON_FORMATS = (
    _format("qwen-bailian", rows.bailian, "chat_id", "turn", "timestamp", "input_length", "output_length"),
    _format("mooncake", rows.mooncake, "timestamp", "input_length", "output_length"),
    _format("vllm-log", rows.vllm_log, "request_id", "input_toks", "output_toks", "arrival_time"),
    _format("sharegpt", sharegpt.sharegpt, "conversations"),
    _format("sharegpt", sharegpt.sharegpt, "messages"),
    _format("vtop-recording", recording, "schema", "engine_time", "num_blocks"),
)
TABLE_FORMATS = (
    _format("azure", rows.azure, "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _format("burstgpt", rows.burstgpt, "Timestamp", "Request tokens", "Response tokens"),
    _format("vidur", rows.vidur, "num_prefill_tokens", "num_decode_tokens"),
)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read. `left_out` counts the requests that the workload does not have, by reason."""

    workload: Workload
    format: str
    left_out: Mapping[str, int] = field(default_factory=dict)


def read_trace(path: str | os.PathLike[str], *, limit: int | None = None) -> Workload:
    """The requests of a trace, by arrival, the first at 0 s; at most the first `limit` of the file. Raises BadValue."""
    return open_trace(path, limit=limit).workload


def open_trace(
    path: str | os.PathLike[str], *, limit: int | None = None, count_tokens: Callable[[str], int] | None = None
) -> Trace:
    """As read_trace, with what was found. `count_tokens` measures texts (ShareGPT) instead of an estimate."""
    if limit is not None and limit < 1:
        raise BadValue("limit", limit, "use 1 or more requests, or leave it out")
    path = Path(path)
    form = trace_format(path)
    drafts = form.read(path)
    if count_tokens is not None and form.name == "sharegpt":
        drafts = sharegpt.sharegpt(path, count_tokens)
    left_out: Counter[str] = Counter()
    jobs = jobs_of(drafts, limit, left_out)
    if not jobs:
        why = ", ".join(f"{count} with {reason}" for reason, count in left_out.items()) or "it has no rows"
        raise Place(path).bad(str(path), f"holds no request that can be run: {why}")
    return Trace(Workload(path.name, jobs), form.name, dict(left_out))


def read_measured(path: str | os.PathLike[str]) -> list[MeasuredRequest]:
    """What a recorded vLLM run did with each request, by arrival; seconds from the first arrival. Raises BadValue."""
    path = Path(path)
    form = trace_format(path)
    if form.name != "vllm-log":
        raise Place(path).bad(str(path), f"is {form.name}, which has no measured times; use a request log of vLLM")
    return rows.measured(path)


def trace_format(path: Path) -> Format:
    """The format of a file, by its first line. Raises BadValue that lists the known ones."""
    first = first_line(path)
    if first is None:
        raise Place(path).bad(str(path), "is empty")
    place, line = first
    if line[0] == "[":
        return next(form for form in JSON_FORMATS if form.name == "sharegpt")
    if line[0] == "{":
        found: Any = json_object(place, line)
        return _matching(place, set(found), JSON_FORMATS, "keys")
    return _matching(place, set(rows.columns(place, line)), TABLE_FORMATS, "columns")


def _matching(place: Place, columns: set[str], forms: tuple[Format, ...], what: str) -> Format:
    for form in forms:
        if form.columns <= columns:
            return form
    known = "; ".join(f"{form.name} ({', '.join(sorted(form.columns))})" for form in JSON_FORMATS + TABLE_FORMATS)
    raise place.bad(sorted(columns), f"are the {what} of no known trace; known are {known}")


def shipped_trace(name: str) -> Path:
    """The file of a trace that comes with vtop. Raises BadValue that lists the names."""
    try:
        return _DATA / SHIPPED[name]
    except KeyError:
        raise BadValue("trace", name, f"no trace of this name comes with vtop; use {', '.join(SHIPPED)}") from None


def shipped_settings(name: str) -> Path | None:
    """The settings of the engine that a shipped trace was recorded on (TOML); None where it was no known engine."""
    path = shipped_trace(name).with_suffix(".toml")
    return path if path.exists() else None
