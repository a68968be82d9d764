"""A person at a real terminal (tmux), the real engine on `tiny`: inject, preempt, pause, step, resume, abort, quit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

VTOP = Path(sys.executable).with_name("vtop")
pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    pytest.mark.skipif(not VTOP.exists(), reason="the command vtop is not installed"),
]


class Terminal:
    """A tmux session of its own server, running a shell."""

    def __init__(self, columns: int, rows: int, home: Path) -> None:
        self._server = f"vtop-{uuid.uuid4().hex[:8]}"
        size = ["-x", str(columns), "-y", str(rows)]
        shell = f"env HOME={home} XDG_CONFIG_HOME={home}/c PS1='ready> ' OMP_NUM_THREADS=1 bash --norc --noprofile"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-s", "t", *size, shell)
        self._tmux("set-option", "-s", "escape-time", "20")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._server, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", "-t", "t", key)
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "t", "-l", text)
        time.sleep(0.05)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "t")

    def flags(self) -> str:
        """Alternate screen on, cursor shown, mouse reported: as tmux knows them from what the program wrote."""
        return self._tmux(
            "display-message", "-p", "-t", "t", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}"
        ).strip()

    def until(self, condition: Callable[[str], object], seconds: float = 60.0) -> str:
        end = time.monotonic() + seconds
        while not condition(screen := self.screen()):
            assert time.monotonic() < end, f"not seen:\n{screen}"
            time.sleep(0.05)
        return screen

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._server, "kill-server"], capture_output=True, check=False)


@pytest.fixture(
    params=[pytest.param((120, 40), id="120x40"), pytest.param((80, 24), id="80x24", marks=pytest.mark.slow)]
)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    columns, rows = request.param
    terminal = Terminal(columns, rows, tmp_path)
    yield terminal
    terminal.close()


def step_of(screen: str) -> int:
    found = re.search(r"step (\d+)", screen)
    assert found is not None, screen
    return int(found.group(1))


def preemptions_of(screen: str) -> int:
    found = re.search(r"[▼!] ?(\d+) preempted", screen) or re.search(r"[▼!] ?(\d+)", screen)
    return int(found.group(1)) if found else 0


def test_a_person_watches_a_preemption(terminal: Terminal) -> None:
    before = terminal.flags()
    terminal.type(f"{VTOP} --num-gpu-blocks-override 24 --block-size 4 --max-tokens 60 --temperature 0 --speed 20")
    terminal.press("Enter")
    terminal.until(lambda s: "vtop" in s and "ready>" not in s)
    terminal.until(lambda s: "IDLE" in s)

    for prompt in ("To be, or not to be, that is the question", "KING HENRY: Once more unto", "In the beginning God"):
        terminal.press("p")
        terminal.type(prompt)
        terminal.press("Enter", "Escape")
    terminal.until(lambda s: "RUNNING" in s)
    terminal.until(lambda s: "PREEMPT" in s.upper() and preemptions_of(s) >= 1)

    terminal.press("Space")
    terminal.until(lambda s: "PAUSED" in s)
    paused = step_of(terminal.screen())
    terminal.press(".")
    terminal.until(lambda s: step_of(s) == paused + 1)
    time.sleep(0.3)
    assert step_of(terminal.screen()) == paused + 1, "paused means paused"
    terminal.press("Space")
    terminal.until(lambda s: step_of(s) > paused + 1)

    terminal.press("Space")
    terminal.until(lambda s: "PAUSED" in s)
    terminal.press("F", "x")
    terminal.until(lambda s: "Abort request r1" in s)
    terminal.press("y")
    terminal.until(lambda s: "Abort request r1" not in s and "abort" in s)
    terminal.press("Space")
    terminal.until(lambda s: "IDLE" in s)

    terminal.press("q")
    terminal.until(lambda s: s.rstrip().endswith("ready>"))
    assert terminal.flags() == before
    terminal.type("echo code $?")
    terminal.press("Enter")
    terminal.until(lambda s: "code 0" in s)
