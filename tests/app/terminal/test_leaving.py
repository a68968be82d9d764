"""Every way out: the terminal is as it was, nothing hangs, the exit code says how it ended.

Field cases T001 (signals and crashes), T002 (the window is closed), T004 (a long step, loading), T010 (quick ends).
"""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest

from vtop_support.pty_program import HANG, PtyProgram, stub

RUNNING = "▶ RUNNING".encode()  # the state; the queue of that name is there before
VTOP = [sys.executable, "-m", "vtop.app"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An empty home, so that nobody's settings matter and logs land where the test can look."""
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}


def test_q_asks_while_requests_run_and_leaves(home: dict[str, str]) -> None:
    with PtyProgram(stub(), environment=home) as program:
        program.expect(RUNNING)
        program.press("q")
        program.expect(b"still alive")
        program.press("q")
        assert program.wait() == 0
        assert program.unrestored() == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
    ids=lambda v: str(v),
)
def test_a_signal_restores_the_terminal(number: signal.Signals, code: int, home: dict[str, str]) -> None:
    with PtyProgram(stub(), environment=home) as program:
        program.expect(RUNNING)
        program.signal(number)
        assert program.wait() == code
        assert program.unrestored() == []


def test_ctrl_c_leaves_at_once(home: dict[str, str]) -> None:
    with PtyProgram(stub(), environment=home) as program:
        program.expect(RUNNING)
        program.press("\x03")
        assert program.wait() == 130
        assert program.unrestored() == []


@pytest.mark.parametrize("how", [pytest.param("q", marks=pytest.mark.slow), "term"])
def test_a_step_that_does_not_end_holds_nobody_up(how: str, home: dict[str, str]) -> None:
    with PtyProgram(stub("--slow-at", "20"), environment=home) as program:
        program.expect(RUNNING)
        time.sleep(0.7)  # now it is inside the slow step
        program.press("qq") if how == "q" else program.signal(signal.SIGTERM)
        assert program.wait() == (0 if how == "q" else 143)
        assert program.unrestored() == []


def test_loading_holds_nobody_up(home: dict[str, str]) -> None:
    with PtyProgram(stub("--load-seconds", "1000000"), environment=home) as program:
        program.expect(b"weights")
        program.press("q")
        assert program.wait() == 0
        assert program.unrestored() == []


@pytest.mark.parametrize("requests", ["30", pytest.param("0", marks=pytest.mark.slow)], ids=["decoding", "idle"])
def test_closing_the_window_ends_the_program(requests: str, home: dict[str, str]) -> None:
    with PtyProgram(stub("--requests", requests), environment=home) as program:
        program.expect(RUNNING if requests != "0" else b"IDLE")
        program.read(0.5)
        program.hang_up()
        program.process.wait(HANG)
        assert program.process.returncode in (129, -signal.SIGHUP)


def test_an_engine_that_cannot_step_pauses_and_says_so(home: dict[str, str], tmp_path: Path) -> None:
    with PtyProgram(stub("--fail-at", "30"), environment=home, columns=160) as program:
        program.expect(b"the engine pauses")
        program.expect(b"PAUSED (failed)")
        program.press("qq")
        program.wait()
        assert program.unrestored() == []
        assert b"Traceback" not in program.output
    logs = list((tmp_path / "s").rglob("vtop-*.log"))
    assert len(logs) == 1 and "RuntimeError: the [stub] engine broke" in logs[0].read_text()


def test_a_model_that_cannot_be_loaded_is_one_line(home: dict[str, str]) -> None:
    with PtyProgram(stub("--fail-load"), environment=home, columns=160) as program:
        program.expect(b"cannot be loaded: OSError: no such weights")
        program.press("q")
        assert program.wait() == 1
        assert program.unrestored() == []


def test_a_crash_of_the_screen_restores_the_terminal(home: dict[str, str], tmp_path: Path) -> None:
    with PtyProgram(stub("--crash-app"), environment=home) as program:
        assert program.wait() == 1
        assert program.unrestored() == []
        assert b"the screen crashed: ZeroDivisionError: the screen broke" in program.output
        assert b"Traceback (most recent" not in program.output
    assert "ZeroDivisionError" in next((tmp_path / "s").rglob("vtop-*.log")).read_text()


def test_output_of_libraries_stays_off_the_screen(home: dict[str, str], tmp_path: Path) -> None:
    with PtyProgram(stub("--noise-at", "15", "--requests", "2"), environment=home, columns=160) as program:
        program.expect(b"lines of output caught")
        program.press("qq")
        assert program.wait() == 0
        shown = program.output.count(b"NOISE")
        assert shown <= program.output.count(b"of output caught"), "only the note may quote it"
    text = next((tmp_path / "s").rglob("vtop-*.log")).read_text()
    for what in ("print", "stderr", "fd 1", "fd 2", "warning", "logging", "tqdm"):
        assert f"NOISE {what}" in text


def test_suspend_and_back(home: dict[str, str]) -> None:
    with PtyProgram(stub(), environment=home) as program:
        program.expect(RUNNING)
        program.press("\x1a")
        until = time.monotonic() + HANG
        while "T" not in _state(program.process.pid):
            assert time.monotonic() < until, "it was not stopped"
            program.read(0.05)
        assert program.unrestored() == []
        program.output = b""
        program.signal(signal.SIGCONT)
        program.expect(b"KV BLOCKS")
        program.press("qq")
        assert program.wait() == 0
        assert program.unrestored() == []


def test_the_real_program_leaves_while_it_loads(home: dict[str, str]) -> None:
    with PtyProgram(VTOP, environment=home) as program:
        program.expect(b"loading model")
        program.read(1.0)  # somewhere in the import of torch
        program.press("q")
        assert program.wait() == 0
        assert program.unrestored() == []


def test_the_real_program_runs_a_prompt_and_ends_on_sigterm(home: dict[str, str]) -> None:
    command = [*VTOP, "--prompt", "Once upon a time", "--max-tokens", "2000", "--num-gpu-blocks-override", "200"]
    with PtyProgram(command, environment=home) as program:
        program.expect(RUNNING)
        program.read(1.0)
        program.signal(signal.SIGTERM)
        assert program.wait() == 143
        assert program.unrestored() == []


@pytest.mark.parametrize(
    "terminal",
    [
        pytest.param({"TERM": "linux", "COLORTERM": ""}, marks=pytest.mark.slow),
        {"TERM": "xterm-16color", "COLORTERM": ""},
        {"NO_COLOR": "1"},
    ],
    ids=["linux", "16 colours", "NO_COLOR"],
)
def test_poor_terminals(terminal: dict[str, str], home: dict[str, str]) -> None:
    with PtyProgram(stub(), environment={**home, **terminal}) as program:
        program.expect(RUNNING)
        program.read(0.5)
        if "NO_COLOR" in terminal:
            for colour in re.findall(rb"38;2;(\d+);(\d+);(\d+)", program.output):
                assert len(set(colour)) == 1, "only greys"
        else:
            assert b"38;2;" not in program.output
        program.press("qq")
        assert program.wait() == 0
        assert program.unrestored() == []


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.slow
def test_quick_ends(home: dict[str, str]) -> None:
    for number in range(4):
        with PtyProgram(stub("--requests", "3"), environment=home) as program:
            program.expect(b"\x1b[?1049h")
            program.read(0.03 * number)
            program.press("qq")
            assert program.wait() in (0, 1)
            assert program.unrestored() == []
