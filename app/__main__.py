"""Entry of the `vtop` command and of `python -m vtop.app`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from vtop.app.cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
