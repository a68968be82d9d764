"""The one way out to stdout and stderr for the command line: everything printed is cleaned here, whoever made it.

Values of options, variables and settings, names of files and models, and what libraries say in errors come from
outside. A control sequence among them would be obeyed by the terminal: retitle it, fill its clipboard, hide a text.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from vtop.app.terminal.safe_text import clean


def tell(text: str) -> None:
    """One line on stderr, for people. Where stderr takes nothing (closed, full, its reader gone), nothing is told."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(clean(text), file=sys.stderr, flush=True)


def put(line: str) -> None:
    """One line on stdout, for people or programs. Raises OSError when it cannot be written."""
    print(clean(line), flush=True)


class CleanConsole(Console):
    """A Rich console that writes no control characters but its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As Console.render. Also called for each cell of a table, before the cell is filled up to its width."""
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                lines = segment.text.split("\n")
                yield Segment("\n".join(clean(line) if line else line for line in lines), segment.style)


def progress_console() -> Console:
    """stderr, for what comes and goes: nothing at all is written where it is no terminal."""
    stream = sys.stderr
    return CleanConsole(stderr=True, quiet=stream is None or not stream.isatty())
