"""Runs a program in a pseudo-terminal, as a terminal window would, and keeps what it writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

RESTORED = {
    "alternate screen": (b"\x1b[?1049h", b"\x1b[?1049l"),
    "mouse": (b"\x1b[?1003h", b"\x1b[?1003l"),
    "paste": (b"\x1b[?2004h", b"\x1b[?2004l"),
    "cursor": (b"\x1b[?25l", b"\x1b[?25h"),
}
HANG = 60.0  # seconds until a test gives up; what it waits for comes at once, on a machine that is not busy
STUB = Path(__file__).with_name("stub_vtop.py")


def stub(*options: str) -> list[str]:
    """Command line of the program with a stub in place of the model."""
    return [sys.executable, str(STUB), *options]


class PtyProgram:
    """A context manager: starts the program, and at the end makes sure that it is gone."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        rows: int = 30,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.master, slave = pty.openpty()
        self._slave = slave
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        names = {
            **os.environ,
            "TERM": "xterm-256color",
            "PYTHONPATH": str(STUB.parent.parent),
            **(environment or {}),
        }
        for name in ("COLUMNS", "LINES"):  # pytest's, in its worker processes; the terminal has a size of its own
            if name not in (environment or {}):
                names.pop(name, None)
        self.process = subprocess.Popen(
            list(command), stdin=slave, stdout=slave, stderr=slave, env=names, close_fds=True, preexec_fn=_own_terminal
        )
        self.output = b""

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)
        self.hang_up()

    def hang_up(self) -> None:
        """Close the window."""
        for fd in (self.master, self._slave):
            with contextlib.suppress(OSError):
                os.close(fd)

    def read(self, seconds: float) -> None:
        """Take output for that long, or until the program has closed the terminal."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                return
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                return
            if not data:
                return
            self.output += data

    def expect(self, text: bytes, seconds: float = HANG) -> None:
        """Wait until `text` was written."""
        until = time.monotonic() + seconds
        while text not in self.output:
            if time.monotonic() > until:
                raise AssertionError(f"{text!r} was not written in {seconds} s; the end is {self.output[-2000:]!r}")
            if self.process.poll() is not None:
                self.read(0.2)
                if text in self.output:
                    return
                raise AssertionError(f"ended with {self.process.returncode}: {self.output[-2000:]!r}")
            self.read(0.05)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = HANG) -> int:
        """Wait for the end, reading on; returns the exit code."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > until:
                raise AssertionError(f"still there after {seconds} s; the end is {self.output[-1500:]!r}")
            self.read(0.05)
        self.read(0.2)
        return self.process.returncode

    def unrestored(self) -> list[str]:
        """What the program left turned on."""
        left = []
        for name, (on, off) in RESTORED.items():
            if on in self.output and self.output.rfind(off) < self.output.rfind(on):
                left.append(name)
        after = termios.tcgetattr(self._slave)
        if after[3] != self.before[3]:
            left.append("line mode")
        return left


def ignore_nothing() -> None:
    """Whoever runs the tests may ignore signals, as nohup and jobs in the background do; a person's programs do not."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _own_terminal() -> None:
    ignore_nothing()
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
