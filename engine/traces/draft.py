"""Requests as a reader finds them, before they are a workload: times on the trace's own clock, in the file's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vtop.engine.workload.jobs import Job

NO_OUTPUT = "no output tokens (failed)"
NO_PROMPT = "no prompt tokens"


@dataclass(frozen=True, slots=True)
class Draft:
    """One request. `at` is seconds on the clock of the trace; `id` may be None or used before."""

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
