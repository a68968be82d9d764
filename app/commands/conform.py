"""`vtop conform`: recorded decisions of vLLM's schedulers against our presets."""

from __future__ import annotations

from pathlib import Path

from vtop.app.terminal.printing import put
from vtop.engine.conform.run import run_file

FAILED = 1


def conform(file: Path) -> int:
    """Print one line for each step that went otherwise than recorded, and the counts; 1 when there was one.

    A file that cannot be used raises BadCaseFile, which the command line shows as one line, with exit code 2.
    """
    report = run_file(file)
    for line in report.lines():
        put(line)
    return 0 if report.ok else FAILED
