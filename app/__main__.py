"""Entry of the `vtop` command and of `python -m vtop.app`."""

from __future__ import annotations

import contextlib
import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    fill_descriptors()
    try:
        from vtop.app.cli import main as run

        code = run()
    except KeyboardInterrupt:  # while it is being imported
        code = 130
    sys.exit(code)


def fill_descriptors() -> None:
    """Where stdin, stdout or stderr was closed, the next file to be opened would take its place and be written over."""
    for wanted in range(3):
        try:
            os.fstat(wanted)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:  # libraries write to it without a look
        sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115


if __name__ == "__main__":
    main()
