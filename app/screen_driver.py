"""Textual's terminal driver, drawing through a stream of our own instead of stderr, which leads to the log by then."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from textual.driver import Driver


def screen_driver(terminal: TextIO) -> type[Driver] | None:
    """A driver class that writes to `terminal`; None where Textual has another driver (Windows)."""
    if sys.platform == "win32":
        return None
    from textual.drivers.linux_driver import LinuxDriver

    class ScreenDriver(LinuxDriver):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._file = terminal  # type: ignore[assignment]

        def _get_terminal_size(self) -> tuple[int, int]:
            # The standard look-up asks stdout, which is a file now.
            try:
                size = os.get_terminal_size(terminal.fileno())
            except OSError:
                return 80, 24
            return size.columns or 80, size.lines or 24

    return ScreenDriver
