"""A histogram of times, so that a million gaps between tokens take no more room than a hundred."""

from __future__ import annotations

import math
from collections import Counter

LEAST = 1e-6  # seconds; shorter ones count as this
WIDTH = math.log(1.01)  # a bucket is 1 % wide: so exact are percentiles


class GapHistogram:
    """Count, mean and extremes are exact; percentiles are within 1 %. Times in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a time, or `count` equal ones."""
        self.count += count
        self.total += seconds * count
        if seconds > self.most:
            self.most = seconds
        self._buckets[int(math.log(seconds / LEAST) / WIDTH) if seconds > LEAST else 0] += count

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, share: float) -> float:
        """The time below which `share` (0 … 1) of all lie; NaN for none."""
        if not self.count:
            return math.nan
        left = share * (self.count - 1)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left < 0:
                return min(LEAST * math.exp((bucket + 0.5) * WIDTH), self.most)
        return self.most

    def above(self, seconds: float) -> int:
        """How many are longer, to the nearest bucket."""
        edge = int(math.log(seconds / LEAST) / WIDTH) if seconds > LEAST else 0
        return sum(count for bucket, count in self._buckets.items() if bucket > edge)
