"""The Feed of an engine in this process, and the thread that records it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from vtop.engine.commands import Command
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.events import Frame, Meta, Scheduled
from vtop.engine.thread import EngineThread, Progress, Subscription, ThreadStatus
from vtop.engine.workload.engine import WorkloadEngine

RECORD_EVERY = 0.25  # seconds between two writes of a recording
ROWS_AHEAD = 2000  # rows of batches that take some ten milliseconds to fold
LEAST_AHEAD, MOST_AHEAD = 2, 200  # Frames


class LiveFeed:
    """Frames of an EngineThread. The model is loaded in that thread, so that the screen is there before torch is."""

    def __init__(self, thread: EngineThread, record: Path | None = None, *, rows_ahead: int | None = None) -> None:
        """`rows_ahead`: the engine may be about so many rows of batches ahead of the screen, and waits then."""
        self._thread = thread
        self._rows_ahead = rows_ahead
        most = None if rows_ahead is None else MOST_AHEAD
        self._subscription = thread.subscribe("screen", most, quiet=rows_ahead is not None)
        self._recording = None if record is None else _Recording(thread, record)
        self._started = False

    @classmethod
    def of_config(
        cls,
        config: EngineConfig,
        *,
        paused: bool = False,
        steps_per_second: float | None = None,
        record: Path | None = None,
    ) -> LiveFeed:
        """Build the engine of `config` in a thread."""

        def build(progress: Progress) -> LLMEngine:
            return WorkloadEngine.from_config(config, progress=progress)

        return cls(EngineThread(build, paused=paused, steps_per_second=steps_per_second), record)

    @classmethod
    def of_engine(
        cls,
        engine: LLMEngine,
        *,
        paused: bool = False,
        steps_per_second: float | None = None,
        record: Path | None = None,
    ) -> LiveFeed:
        """Run a simulation; nobody else may use its engine from now on.

        It is faster than any screen, and would take the interpreter from it, so it never is far ahead.
        """
        thread = EngineThread(lambda progress: engine, paused=paused, steps_per_second=steps_per_second)
        return cls(thread, record, rows_ahead=ROWS_AHEAD)

    @property
    def meta(self) -> Meta | None:
        return self._thread.meta

    @property
    def status(self) -> ThreadStatus:
        return self._thread.status

    @property
    def pending(self) -> int:
        return self._subscription.pending

    @property
    def problem(self) -> str:
        return "" if self._recording is None else self._recording.error

    def start(self) -> None:
        self._started = True
        self._thread.start()

    def drain(self, limit: int | None = None) -> list[Frame]:
        frames = self._subscription.drain(limit)
        if self._rows_ahead is not None and frames:
            rows = next((len(e.ids) for e in frames[-1].events if type(e) is Scheduled), 0)
            self._subscription.max_behind = max(LEAST_AHEAD, min(MOST_AHEAD, self._rows_ahead // max(1, rows)))
        return frames

    def busy(self, busy: bool) -> None:
        if self._rows_ahead is not None:
            self._subscription.hold(busy)

    def send(self, command: Command) -> None:
        self._thread.send(command)

    def close(self, timeout: float = 1.0) -> bool:
        """Stop engine and recording. What the engine published is in the recording, if the disk lets us."""
        until = time.monotonic() + timeout
        self._subscription.close()
        stopped = not self._started or self._thread.shutdown(timeout)
        if self._recording is not None:
            stopped = self._recording.close(max(0.2, until - time.monotonic())) and stopped
        return stopped


class _Recording:
    """Writes every Frame to a file, from a thread of its own: a slow disk must not hold up the screen."""

    def __init__(self, thread: EngineThread, path: Path) -> None:
        self.error = ""
        self._engine = thread
        self._path = path
        self._subscription: Subscription = thread.subscribe("recording")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="vtop-record", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> bool:
        self._stop.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._record()
        except BadValue as error:
            self.error = f"recording to {self._path} stopped: it {error.remedy}"
        except Exception as error:  # ends the recording, not the program
            self.error = f"recording to {self._path} stopped: {type(error).__name__}: {error}"
        finally:
            self._subscription.close()

    def _record(self) -> None:
        from vtop.engine.events.journal import Recorder

        last = False
        while self._engine.meta is None and not last:
            last = self._stop.wait(RECORD_EVERY)
        meta = self._engine.meta  # looked at once more: the engine may be there just as we are told to stop
        if meta is None:
            return
        recorder = Recorder(self._path, meta)
        try:
            while not last and not recorder.error:
                last = self._stop.wait(RECORD_EVERY)
                if not self._write(recorder.write):
                    recorder.flush()  # nothing happens: what happened last is on the disk
            if last:
                self._write(recorder.write)
        finally:
            recorder.close()
            self.error = recorder.error

    def _write(self, write: Callable[[Frame], None]) -> int:
        frames = self._subscription.drain()
        for frame in frames:
            write(frame)
        return len(frames)
