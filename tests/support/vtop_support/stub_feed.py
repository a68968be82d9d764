"""A Feed of the real engine over the stub: commands act at once, and steps happen when the test says so."""

from __future__ import annotations

from typing import Any

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop_support.engines import AuditedEngine
from vtop_support.fake_feed import FakeFeed


class StubFeed(FakeFeed):
    """As FakeFeed; `audited.add` adds requests."""

    def __init__(self, num_blocks: int = 8, **options: Any) -> None:
        self.audited = AuditedEngine(num_blocks, **options)
        super().__init__(self.audited.engine)  # type: ignore[arg-type]

    def run(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.audited.step(0.01)

    def send(self, command: cmd.Command) -> None:
        self.sent.append(command)
        engine = self.audited.engine
        try:
            match command:
                case cmd.SetOption(name, value):
                    engine.set_option(name, value)
                case cmd.SetPriority(request_id, priority):
                    engine.set_priority(request_id, priority)
                case cmd.ReloadPolicy():
                    engine.reload_policy()
                case cmd.AbortRequest(request_id):
                    engine.abort_request(request_id)
                case _:
                    raise NotImplementedError(command)
        except BadValue as error:
            engine.note(ev.Note("error", str(error)))
        engine.flush()


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
