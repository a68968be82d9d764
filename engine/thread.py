"""EngineThread: the engine in a thread of its own. Commands in, Frames out.

The thread sleeps on a condition while it is paused or has nothing to do, so it then takes no CPU. Frames go into each
subscriber's deque; publishing never blocks. A subscriber that falls more than `max_behind` Frames behind makes the
engine wait before its next step, still answering commands; nothing is ever dropped. Engine time stops while the engine
is paused or waits for a subscriber, and while the process is suspended; it runs on between the steps of a capped speed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.apply import apply
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue, VtopError, error_line
from vtop.engine.fields import check
from vtop.engine.policies.user import stuck_call
from vtop.engine.workload.engine import WorkloadEngine

_log = logging.getLogger(__name__)

DEFAULT_MAX_BEHIND = 5000
COMMANDS_PER_STEP = 256  # a burst of commands must not keep the engine from stepping

Progress = Callable[[str, int, int | None], None]
"""progress(stage, done, total): what is being loaded and how far; total None while unknown."""


class ThreadState(StrEnum):
    LOADING = "loading"
    RUNNING = "running"
    IDLE = "idle"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """What the thread is doing now. `stage`, `done`, `total` while loading; `error` and `trace` after a failure.

    `stuck` says in one line which call into a user's policy has not returned for long; else it is empty.
    """

    state: ThreadState
    stage: str = ""
    done: int = 0
    total: int | None = None
    error: str = ""
    trace: str = ""
    stuck: str = ""


class Subscription:
    """Frames for one reader, in order, none dropped. Made by EngineThread.subscribe; read from one thread.

    `max_behind` may be changed by the reader. `quiet`: that the engine waits for this reader is no news. While `held`
    is set it waits too.

    The engine decides to sleep while it has the lock of `wake`. So whatever may end `too_far_behind` is done first and
    `wake` called then, always: deciding here whether the engine sleeps would be out of date by the time it does.
    """

    def __init__(self, name: str, wake: Callable[[], None], max_behind: int, quiet: bool = False) -> None:
        self.name = name
        self.quiet = quiet
        self._frames: deque[ev.Frame] = deque()
        self._wake = wake
        self._max_behind = max_behind
        self.held = False
        self.closed = False

    @property
    def max_behind(self) -> int:
        return self._max_behind

    @max_behind.setter
    def max_behind(self, frames: int) -> None:
        self._max_behind = frames
        self._wake()

    def drain(self, limit: int | None = None) -> list[ev.Frame]:
        """Frames since the last call, oldest first; at most `limit`."""
        frames = self._frames
        count = len(frames) if limit is None else min(limit, len(frames))
        taken = [frames.popleft() for _ in range(count)]
        if taken:
            self._wake()
        return taken

    @property
    def pending(self) -> int:
        return len(self._frames)

    @property
    def too_far_behind(self) -> bool:
        return not self.closed and (self.held or len(self._frames) > self._max_behind)

    def hold(self, held: bool) -> None:
        """Let the engine wait before its next step, or go on."""
        self.held = held
        if not held:
            self._wake()

    def close(self) -> None:
        """Want no more Frames."""
        self.closed = True
        self._wake()
        self._frames.clear()

    def put(self, frame: ev.Frame) -> None:
        """Called by the engine's thread only, while it has the lock."""
        if not self.closed:
            self._frames.append(frame)


class EngineThread:
    """Owns an LLMEngine. `build` makes it, in the thread, telling `progress` how far it is.

    Every public method may be called from any thread and returns at once, `shutdown` and `wait_ready` excepted.
    """

    def __init__(
        self,
        build: Callable[[Progress], LLMEngine],
        *,
        paused: bool = False,
        steps_per_second: float | None = None,
        max_behind: int = DEFAULT_MAX_BEHIND,
    ) -> None:
        self._build = build
        self._max_behind = max_behind
        self._wanted = threading.Condition()
        self._commands: deque[cmd.Command] = deque()
        self._subscriptions: list[Subscription] = []
        self._stopping = False
        self._paused = paused
        self._steps_left: int | None = None
        self._until: frozenset[str] = frozenset()
        check("speed", steps_per_second)
        check("max_behind", max_behind)
        self._interval = 1.0 / steps_per_second if steps_per_second else 0.0
        self._next_step = 0.0
        self._engine: LLMEngine | None = None
        self._status = ThreadStatus(ThreadState.LOADING, "starting")
        self._ready = threading.Event()
        # A daemon: a step that takes ten seconds must not keep the program from leaving.
        self._thread = threading.Thread(target=self._main, name="vtop-engine", daemon=True)

    # --- for other threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def status(self) -> ThreadStatus:
        stuck = stuck_call(self._thread.ident)
        return replace(self._status, stuck=stuck) if stuck else self._status

    @property
    def meta(self) -> ev.Meta | None:
        """Facts about the engine; None until it is loaded."""
        return None if self._engine is None else self._engine.meta

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until the engine is loaded or has failed to; false on time-out."""
        return self._ready.wait(timeout)

    def subscribe(self, name: str, max_behind: int | None = None, *, quiet: bool = False) -> Subscription:
        """Frames from the next one on. Subscribe before `start` to miss none. See Subscription for `quiet`."""
        check("group", name, shown="name")
        check("max_behind", max_behind)
        bound = self._max_behind if max_behind is None else max_behind
        subscription = Subscription(name, self._notify, bound, quiet)
        with self._wanted:
            self._subscriptions.append(subscription)
        return subscription

    def send(self, command: cmd.Command) -> None:
        """Queue a command. Commands sent while the model loads are applied when it is there."""
        with self._wanted:
            self._commands.append(command)
            self._wanted.notify_all()

    def shutdown(self, timeout: float = 2.0) -> bool:
        """Ask the engine to stop and wait at most `timeout` seconds; true when it did."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- in the engine's thread ----------------------------------------------------------------------------------

    def _notify(self) -> None:
        with self._wanted:
            self._wanted.notify_all()

    def _main(self) -> None:
        try:
            self._load()
            self._loop()
            self._status = ThreadStatus(ThreadState.STOPPED)
        except VtopError as error:
            self._status = ThreadStatus(ThreadState.FAILED, error=str(error))
        except BaseException as error:
            text = error_line(error)
            self._status = ThreadStatus(ThreadState.FAILED, error=text, trace=traceback.format_exc())
        finally:
            if self._engine is not None:
                with contextlib.suppress(Exception):
                    self._engine.close()
            self._ready.set()

    def _load(self) -> None:
        def progress(stage: str, done: int, total: int | None) -> None:
            if self._stopping:
                raise _Stop
            self._status = ThreadStatus(ThreadState.LOADING, stage, done, total)

        with contextlib.suppress(_Stop):
            engine = self._build(progress)
            engine.on_frame(self._publish)
            if self._paused:
                engine.hold()
                engine.note(ev.Paused("start"))
            if self._interval:
                engine.note(ev.SpeedSet(1.0 / self._interval))
            self._engine = engine
            self._ready.set()
            engine.flush()

    def _loop(self) -> None:
        if self._engine is not None:
            with self._engine.clock.watched():
                self._run(self._engine)

    def _run(self, engine: LLMEngine) -> None:
        while True:
            commands = self._wait_for_work(engine)
            if self._stopping:
                return
            for command in commands:
                self._apply(engine, command)
            if self._may_step(engine) and time.monotonic() >= self._due(engine) and self._slowest() is None:
                self._step(engine)
            else:
                engine.flush()  # what the commands did is seen at once, not with the next step
            if not self._may_step(engine):
                engine.flush()

    def _wait_for_work(self, engine: LLMEngine) -> list[cmd.Command]:
        """Sleep until there is a command or a step is due; take the commands."""
        with self._wanted:
            while not self._stopping and not self._commands:
                if not self._may_step(engine):
                    self._let_time_run(engine, not self._paused)
                    self._status = ThreadStatus(ThreadState.PAUSED if self._paused else ThreadState.IDLE)
                    self._wanted.wait()
                    continue
                pause = self._due(engine) - time.monotonic()
                slow = self._slowest()
                self._let_time_run(engine, slow is None)
                if slow is not None:
                    started = time.monotonic()
                    while slow.too_far_behind and not self._stopping and not self._commands:
                        self._wanted.wait()
                    if not slow.quiet:
                        engine.note(ev.SubscriberBehind(slow.name, time.monotonic() - started))
                elif pause > 0:
                    self._wanted.wait(pause)
                else:
                    break
            count = min(COMMANDS_PER_STEP, len(self._commands))
            return [self._commands.popleft() for _ in range(count)]

    def _let_time_run(self, engine: LLMEngine, runs: bool) -> None:
        """Engine time stands still while the engine is paused or waits for a subscriber; not while a cap slows it."""
        if runs:
            engine.clock.go_on()
        else:
            engine.clock.hold()

    def _may_step(self, engine: LLMEngine) -> bool:
        return not self._paused and engine.has_unfinished_requests()

    def _due(self, engine: LLMEngine) -> float:
        """When the next step may begin. Steps by hand do not wait for the engine's own pace."""
        return self._next_step if self._steps_left is not None else max(self._next_step, engine.not_before)

    def _slowest(self) -> Subscription | None:
        return next((s for s in self._subscriptions if s.too_far_behind), None)

    def _step(self, engine: LLMEngine) -> None:
        self._status = ThreadStatus(ThreadState.RUNNING)
        started = time.monotonic()
        self._let_time_run(engine, True)
        try:
            engine.step()
        except Exception as error:  # nothing helps but what a person does: change an option, abort somebody
            _log.exception("no step can be decided")  # the screen's log file has the traceback
            engine.note(ev.Note("error", f"the engine pauses: no step can be decided ({error_line(error)})"))
            self._pause(engine, "failed")
            return
        if self._interval:
            # keep the beat through small delays, start a new one after a long one
            late = started - self._next_step
            self._next_step = (self._next_step if late < self._interval else started) + self._interval
        if self._steps_left is not None and engine.last_step_ran:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._pause(engine, "step")
        if isinstance(engine, WorkloadEngine) and (end := engine.take_end()):
            self._pause(engine, "end", end)

    def _publish(self, frame: ev.Frame) -> None:
        with self._wanted:
            self._subscriptions = [s for s in self._subscriptions if not s.closed]
            for subscription in self._subscriptions:
                subscription.put(frame)
        if self._until and self._engine is not None:
            met = next((e for e in frame.events if e.__struct_config__.tag in self._until), None)
            if met is not None:
                self._pause(self._engine, str(met.__struct_config__.tag))

    def _pause(self, engine: LLMEngine, why: str, text: str = "") -> None:
        self._paused, self._steps_left, self._until = True, None, frozenset()
        engine.hold()
        engine.note(ev.Paused(why, text))

    def _apply(self, engine: LLMEngine, command: cmd.Command) -> None:
        try:
            self._apply_checked(engine, command)
        except BadValue as error:
            # add_request has told a refusal as an event already; the rest becomes a notice
            if not isinstance(command, cmd.AddRequest):
                engine.note(ev.Note("error", str(error)))
        except Exception as error:  # nobody foresaw it: it is told, and the engine goes on with the next one
            engine.note(ev.Note("error", f"{type(command).__name__} failed: {error_line(error)}"))

    def _apply_checked(self, engine: LLMEngine, command: cmd.Command) -> None:
        cmd.check_command(command)
        match command:
            case cmd.Pause():
                if not self._paused:
                    self._pause(engine, "command")
            case cmd.Resume():
                self._resume(engine)
                self._steps_left, self._until = None, frozenset()
            case cmd.Step(count):
                self._resume(engine)
                self._steps_left, self._until = count, frozenset()
            case cmd.RunUntil(tags):
                self._resume(engine)
                self._steps_left, self._until = None, tags
            case cmd.SetSpeed(steps_per_second):
                self._interval = 1.0 / steps_per_second if steps_per_second else 0.0
                self._next_step = 0.0
                engine.note(ev.SpeedSet(steps_per_second))
            case _:
                apply(engine, command)

    def _resume(self, engine: LLMEngine) -> None:
        if self._paused:
            self._paused = False
            engine.go_on()
            engine.note(ev.Resumed())


class _Stop(BaseException):
    """Raised out of loading when the thread was asked to stop."""
