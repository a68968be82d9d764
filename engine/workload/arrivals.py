"""Arrivals: which jobs of a workload come when, those that wait for the end of another one included."""

from __future__ import annotations

import heapq
from collections.abc import Container, Sequence
from dataclasses import replace

from vtop.engine.workload.jobs import Job, Workload


class Arrivals:
    """Jobs still to come. Times are seconds from the start of the engine's time line."""

    def __init__(self, workload: Workload | None = None) -> None:
        self._heap: list[tuple[float, int, Job]] = []
        self._after: dict[str, list[tuple[int, Job]]] = {}
        self._number = 0
        self._left = 0
        if workload is not None:
            self.add(workload.jobs)

    def add(self, jobs: Sequence[Job], start: float = 0.0) -> None:
        """Let jobs come, their times counted from `start`."""
        for number, job in enumerate(jobs, self._number):
            if job.after is None:
                self._heap.append((start + job.at, number, job))
            else:
                self._after.setdefault(job.after, []).append((number, job))
        heapq.heapify(self._heap)
        self._number += len(jobs)
        self._left += len(jobs)

    def __len__(self) -> int:
        """Jobs that have not arrived, those that wait for others included."""
        return self._left

    @property
    def next_at(self) -> float | None:
        """When the next job comes; None when all that are left wait for the end of others."""
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[tuple[float, Job]]:
        """(arrival, job) of everything that came up to `now`, in order."""
        taken = []
        while self._heap and self._heap[0][0] <= now:
            at, _, job = heapq.heappop(self._heap)
            taken.append((at, job))
        self._left -= len(taken)
        return taken

    def ended(self, job_id: str, now: float) -> None:
        """A job ended, was refused or timed out: what comes after it is on its way."""
        for number, job in self._after.pop(job_id, ()):
            heapq.heappush(self._heap, (now + job.at, number, job))


def with_free_names(jobs: Sequence[Job], taken: Container[str]) -> tuple[Job, ...]:
    """The same jobs under names that nobody has: `d0` becomes `d0.2`, and so on.

    What their prompts share is named anew too, so that a second run finds nothing of the first one in a cache.
    """
    number = 1
    while any(_named(job.id, number) in taken for job in jobs):
        number += 1
    if number == 1:
        return tuple(jobs)
    return tuple(
        replace(
            job,
            id=_named(job.id, number),
            after=None if job.after is None else _named(job.after, number),
            prefix=tuple((_named(name, number), tokens) for name, tokens in job.prefix),
        )
        for job in jobs
    )


def _named(name: str, number: int) -> str:
    return name if number == 1 else f"{name}.{number}"


def stretched(jobs: Sequence[Job], factor: float) -> tuple[Job, ...]:
    """The same jobs on another machine's time line: arrivals, pauses, time-outs and deadlines times `factor`."""
    if factor == 1.0:
        return tuple(jobs)
    return tuple(
        replace(
            job,
            at=job.at * factor,
            timeout=None if job.timeout is None else job.timeout * factor,
            deadline=None if job.deadline is None else job.deadline * factor,
        )
        for job in jobs
    )
