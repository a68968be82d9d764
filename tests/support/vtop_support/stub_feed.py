"""A FakeFeed whose engine is audited after every step, with a pool small enough for preemptions."""

from __future__ import annotations

from typing import Any

from vtop_support.engines import AuditedEngine
from vtop_support.fake_feed import FakeFeed


class StubFeed(FakeFeed):
    """`audited.add` adds requests."""

    def __init__(self, num_blocks: int = 8, **options: Any) -> None:
        self.audited = AuditedEngine(num_blocks, **options)
        super().__init__(self.audited.engine)

    def run(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.audited.step(0.01)


def swapping_feed(**options: Any) -> StubFeed:
    """Two requests that outgrow the pool: one is swapped out, and a third one waits."""
    feed = StubFeed(8, preemption_mode="swap", num_host_blocks_override=16, **options)
    feed.audited.add("first", 12, 40)
    feed.audited.add("second", 12, 40)
    while not feed.audited.state.swapped:
        feed.run()
    feed.audited.add("third", 8, 4)
    feed.run(2)
    return feed
