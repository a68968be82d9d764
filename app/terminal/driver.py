"""Textual's terminal driver, drawing through a stream of our own instead of stderr, which leads to the log by then."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from textual.driver import Driver
    from textual.message import Message

# Escape with what cannot be more of a sequence behind it. Of the keys that terminals send in two characters, four are
# left to Textual: shift+tab, and by word: left, right and delete.
_LONE_ESCAPE = re.compile(r"\x1b(?=[^\x1b\[\]OPX^_\\\t\x7fbf])")
_ESCAPE_KEY = "\x1b[27u"  # the same key in the notation that cannot be mistaken


def lone_escapes(data: str) -> str:
    """What was typed, with Escape told apart from the key behind it.

    Textual takes the two for one when they are read at once, and loses Escape, or both.
    """
    return _LONE_ESCAPE.sub(_ESCAPE_KEY, data)


def screen_driver(terminal: TextIO, *, alt: bool = False) -> type[Driver] | None:
    """A driver class that writes to `terminal`; None where Textual has another driver (Windows).

    `alt`: keys with alt mean something. Terminals send them as Escape and the key.
    """
    if sys.platform == "win32":
        return None
    from textual._xterm_parser import XTermParser
    from textual.drivers import linux_driver
    from textual.drivers.linux_driver import LinuxDriver

    class KeyParser(XTermParser):
        def feed(self, data: str) -> Iterable[Message]:
            return super().feed(data if alt else lone_escapes(data))

    vars(linux_driver)["XTermParser"] = KeyParser  # the driver makes its parser by that name

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
