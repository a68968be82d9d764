"""A Feed without a thread: commands act at once on an engine, and steps happen when the test says so."""

from __future__ import annotations

from collections import deque

import msgspec

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.thread import ThreadState, ThreadStatus
from vtop_support.stub_engine import StubEngine

TIMES = ev.StepTimes(schedule=0.0002, prepare=0.0005, model=0.016, sample=0.001, commit=0.0004)


class FakeFeed:
    """`sent` keeps every command. `status` and `meta` may be set by the test.

    Steps are told to take TIMES: what they really took is another picture in every run.
    """

    def __init__(self, engine: LLMEngine | None = None, *, loaded: bool = True) -> None:
        self.engine = engine or StubEngine()
        self.sent: list[cmd.Command] = []
        self.frames: deque[ev.Frame] = deque()
        self.meta: ev.Meta | None = None
        self.status = ThreadStatus(ThreadState.LOADING, "weights", 3, 10)
        self.started = False
        self.problem = ""
        self.closed = False
        self.engine.on_frame(self._take)
        if loaded:
            self.load()

    def _take(self, frame: ev.Frame) -> None:
        events = [TIMES if isinstance(event, ev.StepTimes) else event for event in frame.events]
        self.frames.append(msgspec.structs.replace(frame, events=events))

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
        """Apply a command at once. Pause and speed are only told: nothing runs by itself. Workloads do not come."""
        self.sent.append(command)
        try:
            self._apply(command)
        except BadValue as error:
            if not isinstance(command, cmd.AddRequest):  # a refusal is told by the engine
                self.engine.note(ev.Note("error", str(error)))
        self.engine.flush()

    def _apply(self, command: cmd.Command) -> None:
        engine = self.engine
        match command:
            case cmd.AddRequest(request_id, prompt, params):
                ids = prompt if isinstance(prompt, str) else list(prompt)
                engine.add_request(request_id, ids, params, priority=command.priority, group=command.group)
            case cmd.AbortRequest(request_id):
                engine.abort_request(request_id)
            case cmd.ResizePool(num_blocks):
                engine.resize_pool(num_blocks)
            case cmd.SetOption(name, value):
                engine.set_option(name, value)
            case cmd.SetPriority(request_id, priority):
                engine.set_priority(request_id, priority)
            case cmd.ReloadPolicy():
                engine.reload_policy()
            case cmd.Pause():
                engine.note(ev.Paused("command"))
            case cmd.Resume() | cmd.RunUntil():
                engine.note(ev.Resumed())
            case cmd.Step(count):
                self.run(count)
                engine.note(ev.Paused("step"))
            case cmd.SetSpeed(steps_per_second):
                engine.note(ev.SpeedSet(steps_per_second))

    def close(self, timeout: float = 1.0) -> bool:
        self.closed = True
        return True
