"""The real program in a small terminal while the engine works: all keys of a journey come in one write."""

from __future__ import annotations

import random
import string
import sys
import time
from pathlib import Path

import pytest

from vtop_support.pty_program import PtyProgram, stub
from vtop_support.pty_screen import PtyScreen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")

COLUMNS, ROWS = 80, 24
ESCAPE, DOWN, UP, PAGE_DOWN, PALETTE = "\x1b", "\x1b[B", "\x1b[A", "\x1b[6~", "\x10"
CLEAR = "\x15"  # what was typed so far
LETTERS = string.ascii_letters + string.digits + " .,:;>+-?/()"


class Typist:
    """Makes keys, and says which commands they must be."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.requests = 0
        self.bursts = 0
        self.policies = ["fcfs", "sjf", "priority", "fair", "mlfq"]

    def text(self) -> str:
        inside = "".join(self.rng.choice(LETTERS) for _ in range(self.rng.randint(1, 20)))
        return f"M{inside}q"

    def prompt(self) -> tuple[str, list[str]]:
        text = self.text()
        self.requests += 1
        return f"p{text}\r{ESCAPE}", [f"AddRequest(request_id='r{self.requests}', prompt={text!r}, "]

    def form(self) -> tuple[str, list[str]]:
        text, tokens, priority = self.text(), self.rng.randint(1, 9), self.rng.randint(1, 9)
        self.requests += 1
        keys = f"i{text}\t{tokens}{DOWN}{DOWN}{priority}\tspace M\r"
        ends = f"priority={priority}, group='space M'"
        return keys, [f"AddRequest(request_id='r{self.requests}', prompt={text!r}, *max_tokens={tokens}, *{ends}"]

    def options(self) -> tuple[str, list[str]]:
        # never the value of before, nor the one before that: the form shows what the engine has said so far
        self.policies.append(self.policies.pop(0))
        return f"o{self.policies[0]}\r", [f"SetOption(name='scheduling_policy', value='{self.policies[0]}'"]

    def burst(self) -> tuple[str, list[str]]:
        self.bursts += 1
        return "I\r2\r", [f"AddRequest(request_id='b{self.bursts}-{n}', " for n in (1, 2)]

    def looking(self) -> tuple[str, list[str]]:
        """Screens opened and left, and a command behind them."""
        ways = [
            f"?{PAGE_DOWN}{ESCAPE}",
            f"{PALETTE}{PAGE_DOWN}{PAGE_DOWN}{UP}{ESCAPE}",
            f"{PALETTE}pause{ESCAPE}",
            f"{DOWN}\rnn{ESCAPE}",
            f"{DOWN}w{DOWN}w",
            f"q{ESCAPE}",
            f"qn{DOWN}xn",
            f"r{ESCAPE}",
            f"i{self.text()}{ESCAPE}",
            f"p{self.text()}{CLEAR}{ESCAPE}i{ESCAPE}",
            "mMzMz",
        ]
        keys = "".join(self.rng.choice(ways) for _ in range(self.rng.randint(1, 3)))
        return f"{keys}{PALETTE}{ESCAPE}C", ["ResetPrefixCache("]

    def journey(self) -> tuple[str, list[str]]:
        parts = [getattr(self, self.rng.choice(["prompt", "form", "options", "burst", "looking"]))() for _ in range(4)]
        return "".join(keys for keys, _ in parts), [command for _, commands in parts for command in commands]


def as_expected(said: str, expected: str) -> bool:
    at = 0
    for part in expected.split("*"):
        at = said.find(part, at)
        if at < 0:
            return False
    return said.startswith(expected.split("*")[0])


@pytest.mark.parametrize("journeys", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_journeys_typed_at_once(journeys: int, tmp_path: Path) -> None:
    told = tmp_path / "commands"
    told.touch()
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}
    options = ("--requests", "40", "--max-tokens", "2000", "--step-seconds", "0.005", "--commands", str(told))
    with PtyProgram(stub(*options), columns=COLUMNS, rows=ROWS, environment=home) as program:
        screen = PtyScreen(program, COLUMNS, ROWS)
        screen.until(lambda text: "RUNNING" in text and "step " in text)
        start = program.output[:8192]  # what the terminal was asked for; a long output is slow to keep
        typist = Typist(journeys)
        seen = 0
        for number in range(journeys):
            keys, expected = typist.journey()
            program.output = start
            program.press(keys)
            end = time.monotonic() + 30
            while len(said := told.read_text().splitlines()[seen:]) < len(expected) and time.monotonic() < end:
                program.read(0.01)
                assert program.process.poll() is None, (number, keys, program.output[-3000:])
            wrong = [pair for pair in zip(said, expected, strict=False) if not as_expected(*pair)]
            assert not wrong and len(said) == len(expected), (number, keys, expected, said, program.output[-3000:])
            seen += len(said)
        program.press("qq")
        assert program.wait() == 0
        assert program.unrestored() == []
