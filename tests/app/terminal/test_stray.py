"""Output of libraries goes to the log, and the streams come back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vtop.app.terminal.stray import StrayOutput


def test_stray_output_goes_to_the_log_and_streams_come_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """T012: prints, warnings, handlers made before, and raw writes."""
    path = tmp_path / "log"
    before = (sys.stdout, sys.stderr)
    with StrayOutput(path) as stray:
        assert stray.news() == ""
        print("one [/] line")
        os.write(2, b"two\nthree\n")
        news = stray.news()
        assert news.startswith("3 lines of output caught") and news.endswith(": three")
        assert stray.news() == ""
        stray.write("our own")
        assert stray.news() == ""
    assert (sys.stdout, sys.stderr) == before
    assert path.read_text() == "one [/] line\ntwo\nthree\nour own\n"
    print("back")
    os.write(2, b"back too\n")
    assert capfd.readouterr() == ("back\n", "back too\n")


def test_an_empty_log_is_removed(tmp_path: Path) -> None:
    with StrayOutput(tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()
