"""How far the service of two groups drifts apart while both have requests waiting: what VTC bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import combinations

from vtop.engine.state.records import RequestRecord, Sample

Interval = tuple[float, float]


def waiting_times(records: Iterable[RequestRecord], end: float) -> dict[str, list[Interval]]:
    """Per group, when it had at least one request that was never admitted yet."""
    found: dict[str, list[Interval]] = {}
    for record in sorted(records, key=lambda r: r.arrival):
        until = next((t for t in (record.first_scheduled, record.ended) if t is not None), end)
        spans = found.setdefault(record.group, [])
        if spans and record.arrival <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], until))
        else:
            spans.append((record.arrival, until))
    return found


def both(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Where two lists of disjoint, ascending intervals overlap."""
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def drifts(records: Sequence[RequestRecord], series: Sequence[Sample]) -> list[tuple[list[float], list[float]]]:
    """For every time in which two groups both have requests waiting: its samples' times, and the most that the two
    groups' service differed over any part of it so far."""
    times = [sample.time for sample in series]
    waiting = waiting_times(records, times[-1] if times else 0.0)
    found = []
    for one, other in combinations(waiting, 2):
        for low, high in both(waiting[one], waiting[other]):
            part = series[bisect_left(times, low) : bisect_left(times, high)]
            if len(part) < 2:
                continue
            least, most, reach = float("inf"), float("-inf"), []
            for sample in part:
                apart = sample.service.get(one, 0.0) - sample.service.get(other, 0.0)
                least, most = min(least, apart), max(most, apart)
                reach.append(most - least)
            found.append(([sample.time for sample in part], reach))
    return found
