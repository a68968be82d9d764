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
from typing import Any

from vtop.engine.user_files import user_folder

KEEP_LOGS = 10
TERMINAL = 1  # stdout: what `check_terminal` looked at; stderr may lead to a file
_TAIL = 4096  # bytes of new output that are looked at for the last line


def new_log() -> tuple[Path, int]:
    """A fresh file in the platform's log folder, open for appending; old ones beyond the latest few are removed.

    Where that folder cannot be written to it is one of the folder for temporary files, else nowhere.
    """
    import tempfile

    name = f"vtop-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND  # nobody's file, nor a link that somebody laid there
    for folder in (user_folder("log"), Path(tempfile.gettempdir())):
        if folder is None:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for old in sorted(folder.glob("vtop-*.log"))[:-KEEP_LOGS]:
                with contextlib.suppress(OSError):
                    old.unlink()
            return folder / name, os.open(folder / name, flags, 0o600)
    return Path(os.devnull), os.open(os.devnull, os.O_WRONLY)


class _Log(io.FileIO):
    """A full disk must not become an error of the library that prints."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return len(data)


class StrayOutput:
    """While entered, file descriptors 1 and 2 and sys.stdout and sys.stderr lead to the log file.

    `terminal` is a text stream to where stdout led before: the screen is drawn through it. Handlers that were made
    before, C libraries and child processes are covered, because the descriptors themselves are changed.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path`: the log; else a new one in the person's folder for them."""
        self._given = path
        self.path = path or Path(os.devnull)
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
        if self._given is None:
            self.path, fd = new_log()
        else:
            fd = os.open(self._given, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        log: Any = _Log(fd, "ab")
        self._log = io.TextIOWrapper(log, encoding="utf-8", errors="backslashreplace", write_through=True)
        self.terminal = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(os.dup(TERMINAL), "wb")), encoding="utf-8", errors="backslashreplace"
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
            if self.path.is_file() and self.path.stat().st_size == 0:
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
