"""Signals that end a run without a screen, as an exception: what was started is cleaned up, and nothing is traced."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
