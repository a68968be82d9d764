"""Runs without a screen: signals end them as an exception, and a call that hangs is told."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vtop.app.terminal.printing import tell

LOOK_EVERY = 0.5  # seconds


class Ended(BaseException):
    """The process was told to end by signal `number`."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Ended in the main thread. One that is ignored (nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    old = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number in numbers if old[number] is signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, _end)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: object) -> None:
    raise Ended(number)


@contextmanager
def report_stuck_calls(way_out: str = "Ctrl-C ends it") -> Iterator[None]:
    """Say on stderr, once, when a user's policy that this thread asks does not return, and the way out."""
    from vtop.engine.policies.user import stuck_call  # the command line imports Ended, and waits for no policies

    done, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not done.wait(LOOK_EVERY):
            if stuck := stuck_call(thread):
                tell(f"vtop: {stuck}; {way_out}")
                return

    threading.Thread(target=watch, name="vtop-stuck", daemon=True).start()
    try:
        yield
    finally:
        done.set()
