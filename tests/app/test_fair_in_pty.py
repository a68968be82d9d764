"""The real program in a terminal: a policy switched while it runs, and what the bars of groups say of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from vtop_support.pty_program import PtyProgram
from vtop_support.pty_screen import PtyScreen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

COLUMNS, ROWS = 160, 48
GROUPS = ("default", "beta")
REQUESTS = 800  # of each group: more than the test lasts
SEATS = 4
OUTPUT = 8  # tokens of a request: a seat comes free soon
GROWTH = 400  # tokens of both groups together that are looked at
COMMAND = [
    *(sys.executable, "-m", "vtop.app", "--num-gpu-blocks-override", "64", "--scheduling-policy", "fcfs"),
    *("--max-num-seqs", str(SEATS), "--max-tokens", str(OUTPUT), "--speed", "32", "--fps", "8"),
    *("--burst", str(REQUESTS), "--burst-lengths", "short"),
]
FORM = (
    ("Prompt", "Once upon a time there was a"),
    ("Max tokens", str(OUTPUT)),
    ("Temperature", "1"),
    ("Priority", "0"),
    ("Group", GROUPS[1]),
    ("How many", str(REQUESTS)),
)
DOWN = "\x1b[B"
SERVICE = re.compile(r"^ group +(\S+) .*?(\d+)% +(\d[\d ]*) tok", re.MULTILINE)
WHY = re.compile(r"waiting +behind \S+: (all \d+ seats taken|needs \d+ blocks)")


def tokens(text: str) -> dict[str, int]:
    """Tokens by group, as the bars say."""
    return {name: int(number.replace(" ", "")) for name, _, number in SERVICE.findall(text)}


def growth(screen: PtyScreen, start: dict[str, int]) -> list[int]:
    """What each group was given since `start`, once that is GROWTH together."""
    text = screen.until(lambda text: sum(tokens(text).values()) - sum(start.values()) >= GROWTH)
    now = tokens(text)
    return [now[group] - start[group] for group in GROUPS]


@pytest.mark.slow
def test_fair_evens_out_two_groups(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}
    program = PtyProgram(COMMAND, columns=COLUMNS, rows=ROWS, environment={**home, "OMP_NUM_THREADS": "1"})
    with program:
        screen = PtyScreen(program, COLUMNS, ROWS)
        screen.until(lambda text: "▶ RUNNING" in text)

        program.press("i")
        screen.until(lambda text: "Inject requests" in text)
        program.press(DOWN.join(value for _, value in FORM))
        screen.until(lambda text: all(re.search(f"{label} +{value} ", text) for label, value in FORM))
        program.press("\r")
        start = tokens(screen.until(lambda text: set(GROUPS) == set(tokens(text)) and "Inject requests" not in text))
        before = growth(screen, start)
        assert before[1] == 0, "first come, first served: those who came later wait"

        program.press("o")
        screen.until(lambda text: "who goes first" in text)
        program.press("fair\r")
        start = tokens(screen.until(lambda text: "policy fair" in text and "who goes first" not in text))
        after = growth(screen, start)
        # Not 0: what ran when the policy changed goes on, and a prompt is charged at once.
        assert 3 * abs(after[0] - after[1]) < before[0] - before[1]
        assert min(after) > sum(after) / 4

        program.press("\t")  # from the running to the waiting ones
        screen.until(lambda text: "▌ WAITING" in text)
        program.press("\x1b[F")  # to the last
        screen.until(lambda text: re.search(r"▌.* behind \S+", text))
        program.press("w")
        why = WHY.search(screen.until(lambda text: WHY.search(text) is not None))
        assert why is not None and why[1] == f"all {SEATS} seats taken"
        program.press("w")
        screen.until(lambda text: "▌ WAITING" in text)
        program.press("qq")
        assert program.wait() == 0
        assert program.unrestored() == []
