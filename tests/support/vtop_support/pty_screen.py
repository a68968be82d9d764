"""What a terminal would show: reads the bytes of a program, as far as Textual uses a terminal, into rows of text."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable

from rich.cells import cell_len

from vtop_support.pty_program import HANG, PtyProgram

_PARTS = re.compile(
    r"""
    \x1b[\]P_^X] .*? (?:\x07|\x1b\\)      # a control string, until BEL or ST
    | \x1b\[ ([0-?]*) [ -/]* ([@-~])       # a control sequence: parameters, what it does
    | \x1b [ -/]* [0-OQ-WYZ\\`-~]          # another escape
    | [\x00-\x1a\x1c-\x1f\x7f]              # a control character
    | [^\x00-\x1f\x7f]+                    # text
    """,
    re.DOTALL | re.VERBOSE,
)


class PtyScreen:
    """Rows of cells. Colours are left out; a wide character is followed by an empty cell."""

    def __init__(self, program: PtyProgram, columns: int, rows: int) -> None:
        self._program = program
        self._cells = [[" "] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._moved = False  # since the last text
        self._parked = 0
        self._seen = 0  # bytes of the program's output
        self._rest = ""  # a sequence that is not complete yet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def lines(self) -> list[str]:
        """The rows as they are now."""
        self._take()
        return ["".join(row) for row in self._cells]

    @property
    def cursor_line(self) -> str:
        """The row where the latest whole picture left the cursor: that of the text field with the focus.

        It is known when the next picture begins, so something on the screen must move.
        """
        return self.lines[self._parked]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, what: Callable[[str], object], seconds: float = HANG) -> str:
        """Read until `what` is true of the text; returns the text."""
        end = time.monotonic() + seconds
        while not what(text := self.text):
            if time.monotonic() > end or self._program.process.poll() is not None:
                raise AssertionError(f"not on the screen in {seconds} s:\n{text}")
            self._program.read(0.05)
        return text

    def _take(self) -> None:
        new = self._program.output[self._seen :]
        self._seen += len(new)
        data = self._rest + self._decoder.decode(new)
        at = 0
        while at < len(data):
            part = _PARTS.match(data, at)
            if part is None:
                break  # the rest of it is still to come
            at = part.end()
            if part[2] is not None:
                self._control(part[1], part[2])
            elif part[0] == "\n":
                self._y = min(self._y + 1, len(self._cells) - 1)
            elif part[0] == "\r":
                self._x = 0
            elif part[0][0] >= " ":
                self._put(part[0])
        self._rest = data[at:]

    def _control(self, parameters: str, final: str) -> None:
        if final == "H":
            if self._moved:  # and nothing was written there
                self._parked = self._y
            self._moved = True
            y, _, x = parameters.partition(";")
            self._y = max(0, min(int(y or 1), len(self._cells)) - 1)
            self._x = max(0, int(x or 1) - 1)
        elif final == "J":
            for row in self._cells:
                row[:] = [" "] * len(row)

    def _put(self, text: str) -> None:
        self._moved = False
        row = self._cells[self._y]
        for character in text:
            width = cell_len(character)
            if width == 0 or self._x + width > len(row):
                continue
            row[self._x] = character
            row[self._x + 1 : self._x + width] = [""] * (width - 1)
            self._x += width
