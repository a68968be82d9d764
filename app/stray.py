"""Keeps what libraries write to stdout and stderr off the screen: it goes to a log file, and a note says so."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys
import time
from pathlib import Path
from types import TracebackType

KEEP_LOGS = 10
_TAIL = 4096  # bytes of new output that are looked at for the last line


def new_log_path() -> Path:
    """A fresh file in the platform's log folder; old ones beyond the latest few are removed."""
    import platformdirs

    try:
        folder = Path(platformdirs.user_log_dir("vtop", appauthor=False))
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("vtop-*.log"))[:-KEEP_LOGS]:
            with contextlib.suppress(OSError):
                old.unlink()
    except OSError:
        import tempfile

        folder = Path(tempfile.gettempdir())
    return folder / f"vtop-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


class StrayOutput:
    """While entered, file descriptors 1 and 2 and sys.stdout and sys.stderr lead to the log file.

    `terminal` is a text stream to where stderr led before: the screen is drawn through it. Handlers that were made
    before, C libraries and child processes are covered, because the descriptors themselves are changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.terminal: io.TextIOWrapper | None = None
        self._log: io.TextIOWrapper | None = None
        self._saved: list[tuple[int, int]] = []
        self._streams = (sys.stdout, sys.stderr)
        self._seen = 0
        self.lines = 0

    def __enter__(self) -> StrayOutput:
        for stream in self._streams:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log = io.TextIOWrapper(
            io.FileIO(fd, "ab"), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        self.terminal = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(os.dup(2), "wb")), encoding="utf-8", errors="backslashreplace"
        )
        for target in (1, 2):
            self._saved.append((target, os.dup(target)))
            os.dup2(fd, target)
        self.catch_streams()
        with contextlib.suppress(RuntimeError, ValueError):
            faulthandler.enable(file=fd)
        return self

    def catch_streams(self) -> None:
        """Point sys.stdout and sys.stderr to the log; Textual replaces them when it starts, so this is called again."""
        if self._log is not None:
            sys.stdout = sys.stderr = self._log

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            faulthandler.disable()
        for stream in self._streams:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = self._streams
        for target, saved in self._saved:
            os.dup2(saved, target)
            os.close(saved)
        self._saved.clear()
        with contextlib.suppress(OSError):
            if self.path.stat().st_size == 0:
                self.path.unlink()

    def write(self, text: str) -> None:
        """Add text of the program's own to the log; it does not count as stray."""
        if self._log is None:
            return
        data = text if text.endswith("\n") else text + "\n"
        with contextlib.suppress(OSError, ValueError):
            self._log.write(data)
            self._seen += len(data.encode("utf-8", "backslashreplace"))

    def news(self) -> str:
        """What arrived since the last call, as one line; empty when nothing did."""
        if self._log is None:
            return ""
        try:
            size = os.fstat(self._log.fileno()).st_size
            if size <= self._seen:
                return ""
            with self.path.open("rb") as file:
                file.seek(self._seen)
                count = 0
                tail = b""
                while piece := file.read(1 << 16):
                    count += piece.count(b"\n")
                    tail = (tail + piece)[-_TAIL:]
        except OSError:
            return ""
        self._seen = size
        count = max(1, count)
        self.lines += count
        text = tail.decode("utf-8", "replace").replace("\r", "\n")
        last = next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")
        lines = "1 line" if count == 1 else f"{count} lines"
        return f"{lines} of output caught ({self.lines} in all, see {self.path}): {last[:200]}"
