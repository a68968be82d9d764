"""A Feed without a thread: commands act at once on a ToyEngine, and steps happen when the test says so."""

from __future__ import annotations

import contextlib
from collections import deque

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.thread import ThreadState, ThreadStatus
from vtop_support.toy_engine import ToyEngine


class FakeFeed:
    """`sent` keeps every command. `status` and `meta` may be set by the test."""

    def __init__(self, engine: ToyEngine | None = None, *, loaded: bool = True) -> None:
        self.engine = engine or ToyEngine()
        self.sent: list[cmd.Command] = []
        self.frames: deque[ev.Frame] = deque()
        self.meta: ev.Meta | None = None
        self.status = ThreadStatus(ThreadState.LOADING, "weights", 3, 10)
        self.started = False
        self.problem = ""
        self.closed = False
        self.paused = False
        self.engine.on_frame(self.frames.append)
        if loaded:
            self.load()

    def load(self) -> None:
        self.meta = self.engine.meta
        self.status = ThreadStatus(ThreadState.IDLE)

    def fail(self, error: str, trace: str = "") -> None:
        self.status = ThreadStatus(ThreadState.FAILED, error=error, trace=trace)

    def start(self) -> None:
        self.started = True

    @property
    def pending(self) -> int:
        return len(self.frames)

    def drain(self, limit: int | None = None) -> list[ev.Frame]:
        count = len(self.frames) if limit is None else min(limit, len(self.frames))
        return [self.frames.popleft() for _ in range(count)]

    def busy(self, busy: bool) -> None:
        """Nobody computes meanwhile."""

    def run(self, steps: int = 1) -> None:
        """Let the engine do `steps` steps, whatever the pause says."""
        for _ in range(steps):
            self.engine.step()

    def send(self, command: cmd.Command) -> None:
        self.sent.append(command)
        engine = self.engine
        match command:
            case cmd.AddRequest():
                with contextlib.suppress(BadValue):
                    engine.add_request(
                        command.request_id,
                        command.prompt if isinstance(command.prompt, str) else list(command.prompt),
                        command.params,
                        priority=command.priority,
                        group=command.group,
                    )
            case cmd.AbortRequest(request_id):
                engine.abort_request(request_id)
            case cmd.Pause():
                engine.note(ev.Paused("command"))
            case cmd.Resume():
                engine.note(ev.Resumed())
            case cmd.Step(count):
                self.run(count)
                engine.note(ev.Paused("step"))
            case cmd.SetSpeed(steps_per_second):
                engine.note(ev.SpeedSet(steps_per_second))
            case cmd.ResizePool(num_blocks):
                engine.resize_pool(num_blocks)
            case cmd.RunUntil():
                engine.note(ev.Resumed())
        engine.flush()

    def close(self, timeout: float = 1.0) -> bool:
        self.closed = True
        return True
