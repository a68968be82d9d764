"""Entry of the `vtop` command and of `python -m vtop.app`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        from vtop.app.cli import main as run

        code = run()
    except KeyboardInterrupt:  # while it is being imported
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
