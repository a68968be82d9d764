"""Ctrl+Z, and `fg` later than any time-out: nothing ends, and no latency counts the time away."""

from __future__ import annotations

import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from vtop.engine import events as ev
from vtop.engine.events.journal import Recording
from vtop_support.pty_program import HANG, PtyProgram, stub

TIMEOUT, AWAY = 4.0, 5.0  # seconds
RUNNING = "▶ RUNNING".encode()
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def _stopped(program: PtyProgram) -> None:
    until = time.monotonic() + HANG
    stat = Path(f"/proc/{program.process.pid}/stat")
    while stat.read_text().rsplit(")", 1)[1].split()[0] not in "Tt":
        assert time.monotonic() < until, "it was not stopped"
        program.read(0.05)


def _check(recording: Path) -> None:
    frames = list(Recording(recording).frames())
    ended = [e for f in frames for e in f.events if isinstance(e, ev.Finished)]
    assert [e.reason for e in ended if e.reason == "timeout"] == []
    away, engine = max(
        (b.unix_time - a.unix_time, b.time - a.time)
        for a, b in pairwise(frames)
        if a.unix_time is not None and b.unix_time is not None
    )
    assert away >= AWAY - 0.5, "the recording spans the time away"
    assert engine < AWAY - 0.5, "which engine time does not"


@pytest.mark.slow
def test_ctrl_z_longer_than_the_time_out_ends_nothing(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}
    recording = tmp_path / "run.gz"
    options = ("--requests", "2", "--step-seconds", "0.02", "--request-timeout", str(TIMEOUT))
    with PtyProgram(stub(*options, "--record", str(recording)), environment=home) as program:
        program.expect(RUNNING)
        program.press("\x1a")
        _stopped(program)
        time.sleep(AWAY)
        program.output = b""
        program.signal(signal.SIGCONT)
        program.expect(b"KV BLOCKS")
        program.read(0.5)
        program.press("qq")
        assert program.wait() == 0
    _check(recording)


@pytest.mark.slow
def test_a_stopped_headless_run_goes_on(tmp_path: Path) -> None:
    recording = tmp_path / "run.gz"
    options = ("--headless", "--step-seconds", "0.02", "--request-timeout", str(TIMEOUT), "--max-tokens", "70")
    with PtyProgram(stub(*options, "--record", str(recording))) as program:
        until = time.monotonic() + HANG
        while not recording.exists():
            assert time.monotonic() < until, program.output
            program.read(0.02)
        program.read(0.3)
        program.signal(signal.SIGSTOP)
        _stopped(program)
        time.sleep(AWAY)
        program.signal(signal.SIGCONT)
        assert program.wait() == 0
    _check(recording)
    assert b'"length": 1' in program.output
