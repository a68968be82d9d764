"""The terminal: is there one, and how to give it back on every way out."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO, Any

from vtop.engine.errors import VtopError

# Everything the screen turned on, off again: mouse, focus and paste reports, kitty keys, alternate screen; line wrap
# and cursor on. Written when the orderly way out is stuck.
RESET = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l\x1b[<u"
    b"\x1b[?7h\x1b[?1049l\x1b[0m\x1b[?25h"
)
DEADLY = ("SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGIO", "SIGSYS")
"""Signals that end a process which does not expect them, at once, and where asked for with a core dump."""
GRACE = 1.7  # seconds for the orderly way out
HANGUP_GRACE = 1.0


class NoTerminal(VtopError):
    """The screen cannot be shown here."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: run it in a terminal, or without a screen: vtop run --headless")


def check_terminal(stdin: IO[Any], stdout: IO[Any], environment: Mapping[str, str]) -> None:
    """Raise NoTerminal unless a full-screen program can run."""
    for name, stream in (("stdin", stdin), ("stdout", stdout)):
        try:
            fine = stream.isatty()
        except (AttributeError, ValueError):
            fine = False
        if not fine:
            raise NoTerminal(f"{name} is not a terminal")
    if environment.get("TERM", "") in ("", "dumb"):
        term = environment.get("TERM", "")
        raise NoTerminal(f"TERM = {term!r} cannot show a screen" if term else "TERM is not set")


class ExitGuard:
    """Makes sure that the process ends, with the terminal as it was, whatever hangs.

    SIGINT, SIGTERM and SIGHUP call `leave` in the main thread; if the program is still there `GRACE` seconds later, a
    thread restores the terminal and ends the process. The same happens when the terminal itself goes away.

    Other deadly signals end the process by themselves, as without us, but for the terminal, which is restored before.
    """

    def __init__(self, output: int, leave: Callable[[int], None]) -> None:
        self._output = output
        self._leave = leave
        self._input = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
        self._attributes = _terminal_attributes(self._input)
        self._done = threading.Event()
        self._armed = False
        self._old: dict[int, Any] = {}
        self.code: int | None = None  # set by a signal: 128 + its number
        self._wake_read, self._wake_write = os.pipe()

    def __enter__(self) -> ExitGuard:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._old[number] = signal.signal(number, self._on_signal)
        for name in DEADLY:
            deadly: int | None = getattr(signal, name, None)  # not every platform has them all
            if deadly is not None and signal.getsignal(deadly) is signal.SIG_DFL:
                self._old[deadly] = signal.signal(deadly, self._die)
        threading.Thread(target=self._watch_hangup, name="vtop-hangup", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def arm(self, code: int, grace: float = GRACE) -> None:
        """The program is about to leave: end it with `code` if it is still there after `grace` seconds."""
        if not self._armed:
            self._armed = True
            threading.Thread(target=self._force, args=(code, grace), name="vtop-guard", daemon=True).start()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.code is None:
            self.code = 128 + number
        self.arm(self.code)
        self._leave(self.code)

    def _die(self, number: int, _frame: FrameType | None) -> None:
        _restore(self._output, self._input, self._attributes)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _force(self, code: int, grace: float) -> None:
        if not self._done.wait(grace):
            self.end_now(self.code if self.code is not None else code)

    def end_now(self, code: int) -> None:
        """Restore the terminal and end the process without waiting for anybody."""
        _restore(self._output, self._input, self._attributes)
        os._exit(code)

    def _watch_hangup(self) -> None:
        """Sleep until the terminal is gone. A window that was closed must not leave a program behind."""
        poll = select.poll()
        poll.register(self._input, 0)  # only what is always told: hang-up and error
        poll.register(self._wake_read, select.POLLIN)
        for fd, _ in poll.poll():
            if fd == self._wake_read:
                return
        if self._done.is_set():
            return
        if self.code is None:
            self.code = 128 + signal.SIGHUP
        self.arm(self.code, HANGUP_GRACE)
        self._leave(self.code)


def _terminal_attributes(fd: int) -> list[Any] | None:
    try:
        import termios

        return termios.tcgetattr(fd)
    except Exception:  # not a terminal, or no termios on this platform
        return None


def _restore(output: int, input_: int, attributes: list[Any] | None) -> None:
    with contextlib.suppress(Exception):
        # A terminal that takes nothing (gone, or stopped by ^S) must not hold us up.
        if select.select([], [output], [], 0.2)[1]:
            os.write(output, RESET)
    if attributes is not None:
        with contextlib.suppress(Exception):
            import termios

            termios.tcsetattr(input_, termios.TCSANOW, attributes)
