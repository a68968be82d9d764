"""A user's policy that never returns: what hangs is said, the screen goes on, and everybody gets out."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from vtop.engine.thread import ThreadState, ThreadStatus
from vtop_support.app_driver import running_app, screen_text, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.pty_program import PtyProgram
from vtop_support.pty_screen import PtyScreen

VTOP = [sys.executable, "-m", "vtop.app"]
POLICY = """
class Late:
    def key(self, request):
        return 0.0

    def on_tokens(self, request, computed, outputs):
        while request.request_id != "probe":
            pass


class Key(Late):
    def key(self, request):
        while True:
            pass
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(POLICY, encoding="utf-8")
    return path


def test_while_requests_run_the_screen_goes_on_and_q_leaves(home: dict[str, str], policy: Path) -> None:
    command = [*VTOP, "--scenario", "hol", "--scheduling-policy", f"{policy}:Late", "--record", f"{policy}.jsonl.gz"]
    with PtyProgram(command, environment=home, columns=120, rows=30) as program:
        screen = PtyScreen(program, 120, 30)
        screen.until(lambda text: "on_tokens has not returned for" in " ".join(text.split()) and "STUCK" in text)
        program.press("?")
        screen.until(lambda text: "Pause or resume the engine" in text)
        program.press("\x1b")
        screen.until(lambda text: "Pause or resume the engine" not in text)
        program.press("q")  # no question: nobody could be saved by staying
        assert program.wait() == 1
        assert program.unrestored() == []
        assert f"vtop: policy {policy}:Late: on_tokens has not returned for".encode() in program.output[-400:]


@pytest.mark.slow
def test_while_it_loads(home: dict[str, str], policy: Path) -> None:
    command = [*VTOP, "--scheduling-policy", f"{policy}:Key", "--prompt", "a"]
    with PtyProgram(command, environment=home, columns=120, rows=30) as program:
        PtyScreen(program, 120, 30).until(lambda text: "key has not returned for" in " ".join(text.split()))
        program.press("q")
        assert program.wait() == 1
        assert program.unrestored() == []


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM], ids=["int", "term"]
)
def test_signals_end_it_too(number: signal.Signals, home: dict[str, str], policy: Path) -> None:
    with PtyProgram([*VTOP, "--scenario", "hol", "--scheduling-policy", f"{policy}:Late"], environment=home) as program:
        PtyScreen(program, 100, 30).until(lambda text: "STUCK" in text)
        program.signal(number)
        assert program.wait() == 128 + number
        assert program.unrestored() == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["sim", "--requests", "5", "--policies", "{}:Key"], "key"),
        pytest.param(
            ["run", "--headless", "--prompt", "a", "--scheduling-policy", "{}:Late"], "on_tokens",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["sim", "--requests", "5", "--policies", "fcfs,{}:Late", "--workers", "2"], "on_tokens",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["sim", "--scenario", "hol", "--scheduling-policy", "{}:Late"], "on_tokens", marks=pytest.mark.slow
        ),
        pytest.param(["sim", "--tui", "--scheduling-policy", "{}:Key"], "key", marks=pytest.mark.slow),
    ],
    ids=["sim", "headless", "processes", "scenario", "before the screen"],
)  # fmt: skip
def test_without_a_screen_it_is_a_line(options: list[str], what: str, home: dict[str, str], policy: Path) -> None:
    command = [*VTOP, *(option.format(policy) for option in options)]
    with PtyProgram(command, environment=home, columns=200) as program:
        program.expect(f"vtop: policy {policy}:".encode())
        program.expect(f"{what} has not returned for 2 s; Ctrl-C".encode())
        for _ in range(2 if "--headless" in options else 1):
            program.press("\x03")
            time.sleep(0.3)
        assert program.wait() == 130
        assert b"Traceback" not in program.output


async def test_one_that_comes_back_is_no_longer_told() -> None:
    feed = FakeFeed()
    async with running_app(feed) as (app, pilot, _):
        await until(pilot, lambda: app.pump.live is not None)
        before = feed.status
        feed.status = ThreadStatus(ThreadState.RUNNING, stuck="policy x.py:X: key has not returned for 3 s")
        await until(pilot, lambda: "key has not returned for 3 s | q quits" in screen_text(app))
        assert "STUCK" in screen_text(app) and app.troubles.last_words
        feed.status = before
        await until(pilot, lambda: "q quits" not in screen_text(app))
        assert "STUCK" not in screen_text(app) and not app.troubles.last_words
