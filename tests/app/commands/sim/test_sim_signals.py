"""`vtop sim` on several processes: a signal ends all of them at once, without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vtop_support.pty_program import ignore_nothing

COMMAND = [
    sys.executable, "-m", "vtop.app", "sim", "--policies", "fcfs,sjf,fair", "--rate", "50", "--requests", "20000",
    "--workers", "2",
]  # fmt: skip
HANG = 60.0  # seconds until a test gives up
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


def children(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu(pid: int) -> int:
    """Clock ticks used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def until(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + HANG
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("number", "code", "to_group", "booting"),
    [
        (signal.SIGINT, 130, True, False),
        (signal.SIGTERM, 143, False, True),
        (signal.SIGKILL, -9, False, False),
        pytest.param(signal.SIGINT, 130, False, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, True, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, False, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, True, False, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_everything(
    number: signal.Signals, code: int, to_group: bool, booting: bool, tmp_path: Path
) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    program = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
        preexec_fn=ignore_nothing,
    )
    team: set[int] = set()
    try:
        assert until(lambda: len(children(program.pid)) >= 3)  # with the one that tracks resources
        team = children(program.pid)
        if not booting:
            assert until(lambda: sum(cpu(pid) for pid in team) > 50)
        (os.killpg if to_group else os.kill)(program.pid, number)
        out, error = program.communicate(timeout=HANG)
        assert (program.returncode, out) == (code, "")
        if number is not signal.SIGKILL:  # after which a worker may still say that its pipe broke
            assert error == ""
        assert until(lambda: not any(alive(pid) for pid in team))
    finally:
        for pid in (program.pid, *team):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        program.wait()


def test_a_worker_that_dies_is_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    program = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert until(lambda: len(children(program.pid)) >= 3)
        assert until(lambda: sum(cpu(pid) for pid in children(program.pid)) > 50)
        os.kill(max(children(program.pid), key=cpu), signal.SIGKILL)
        _, error = program.communicate(timeout=HANG)
        assert program.returncode == 2
        assert error == (
            "vtop: a worker process ended (exit code -9), perhaps for lack of memory: use fewer --workers\n"
        )
    finally:
        program.kill()
        program.wait()
