"""A histogram of times, so that a million gaps between tokens take no more room than a hundred."""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST = 1e-6  # seconds; shorter ones share a bucket
WIDTH = math.log(1.01)  # a bucket is 1 % wide: so far off is a percentile at most


@dataclass(slots=True)
class _Bucket:
    """Times that differ by 1 % at most."""

    count: int
    least: float
    most: float

    def place(self, number: int) -> float:
        """About the time at place `number` (0 … count - 1) of them in order; the two ends are exact."""
        share = number / (self.count - 1) if self.count > 1 else 0.0
        return self.least + (self.most - self.least) * share


class GapHistogram:
    """Count, mean and extremes are exact. Percentiles are those of `metrics.percentile`, within 1 %; of equal times
    they are that time. Times in seconds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self._buckets: dict[int, _Bucket] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a time, or `count` equal ones."""
        self.count += count
        self.total += seconds * count
        if seconds > self.most:
            self.most = seconds
        number = int(math.log(seconds / SHORTEST) / WIDTH) if seconds > SHORTEST else -1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = _Bucket(count, seconds, seconds)
            return
        bucket.count += count
        if seconds > bucket.most:
            bucket.most = seconds
        elif seconds < bucket.least:
            bucket.least = seconds

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, share: float) -> float:
        """The time below which `share` (0 … 1) of all lie, interpolated linearly; NaN for none."""
        if not self.count:
            return math.nan
        place = share * (self.count - 1)
        low = math.floor(place)
        at_low = self._place(low)
        return at_low if low == place else at_low + (self._place(low + 1) - at_low) * (place - low)

    def _place(self, number: int) -> float:
        for _, bucket in sorted(self._buckets.items()):
            if number < bucket.count:
                return bucket.place(number)
            number -= bucket.count
        return self.most
