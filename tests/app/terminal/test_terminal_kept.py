"""The terminal that stdout is gets the picture, wherever stderr leads, and is as it was after every deadly signal.

In a pseudo-terminal, as a terminal window would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vtop_support.pty_program import PtyProgram, stub

RUNNING = "▶ RUNNING".encode()
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}


def shell(redirection: str, *options: str) -> list[str]:
    return ["bash", "-c", f"exec {shlex.join(stub(*options))} {redirection}"]


@pytest.mark.parametrize("where", ["FILE", pytest.param("/dev/null", marks=pytest.mark.slow), "&-"])
def test_the_screen_is_where_stdout_is(where: str, home: dict[str, str], tmp_path: Path) -> None:
    errors = tmp_path / "err.log"
    redirection = f"2>{shlex.quote(str(errors)) if where == 'FILE' else where}"
    with PtyProgram(shell(redirection), environment=home) as program:
        program.expect(RUNNING)
        program.press("qq")
        assert program.wait() == 0
        assert program.unrestored() == []
    if where == "FILE":
        assert errors.read_bytes() == b""


def test_last_words_go_where_stderr_leads(home: dict[str, str], tmp_path: Path) -> None:
    errors = tmp_path / "err.log"
    with PtyProgram(shell(f"2>{shlex.quote(str(errors))}", "--crash-app"), environment=home) as program:
        assert program.wait() == 1
        assert program.unrestored() == []
    assert errors.read_text().startswith("vtop: the screen crashed: ZeroDivisionError")


@pytest.mark.parametrize(
    "number",
    [signal.SIGQUIT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGUSR1, signal.SIGALRM))],
    ids=lambda number: number.name,
)
def test_a_deadly_signal_ends_it_with_the_terminal_as_it_was(number: signal.Signals, home: dict[str, str]) -> None:
    with PtyProgram(["bash", "-c", f"ulimit -c 0; exec {shlex.join(stub())}"], environment=home) as program:
        program.expect(RUNNING)
        program.signal(number)
        assert program.wait() == -number
        assert program.unrestored() == []


# setpriv leaves what root may read readable, such as an interpreter in root's home
NOBODY = ["env", "-u", "HOME", *(f"--unset=XDG_{kind}_HOME" for kind in ("CONFIG", "STATE", "CACHE")),
          "setpriv", "--reuid=12345", "--clear-groups"]  # fmt: skip
without_home = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)


@without_home
def test_a_user_without_name_and_home_has_a_screen() -> None:
    with PtyProgram([*NOBODY, *stub()]) as program:
        program.expect(RUNNING)
        program.press("qq")
        assert program.wait() == 0
        assert program.unrestored() == []


@without_home
@pytest.mark.parametrize("arguments", [["config"], ["models", "list"], ["sim", "--requests", "2"]], ids=lambda a: a[0])
def test_a_user_without_name_and_home_has_defaults(arguments: list[str]) -> None:
    command = [*NOBODY, sys.executable, "-m", "vtop.app", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    if arguments == ["config"]:
        assert "file: none, for a user without a home" in done.stdout


def test_a_log_folder_that_cannot_be_written_to_costs_no_screen(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file where the folder would be")
    with PtyProgram(stub(), environment=home) as program:
        program.expect(RUNNING)
        program.press("qq")
        assert program.wait() == 0
