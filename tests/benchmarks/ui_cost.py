"""What the screen costs: tokens/s with the app over tokens/s headless, and the app's CPU while nothing happens.

    python tests/benchmarks/ui_cost.py [--models tiny smollm2] [--pairs 5] [--size 120x40] [--fps 12]

Each pair runs the same burst twice, once headless and once in the app in a real pty, in alternating order; both
record their Frames, and tokens/s is taken from the recordings (first decision to last token). Printed: the median of
the ratios of the pairs. Afterwards the app idles with its model loaded, and its CPU time is read from the system.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vtop.engine.errors import BadValue
from vtop.engine.events import Finished
from vtop.engine.events.journal import Recording
from vtop.engine.state.fold import EngineState

VTOP = str(Path(sys.executable).with_name("vtop"))
BURSTS = {"tiny": (32, 256), "smollm2": (16, 48)}  # requests, output tokens
IDLE_SECONDS = 10.0


def tokens_per_second(recording: Path) -> float:
    """Output tokens over the time from the first decision to the last token."""
    source = Recording(recording)
    state = EngineState(source.meta)
    began = None
    last = 0.0
    for frame in source.frames():
        before = state.totals.output_tokens
        state.apply(frame)
        if frame.ran and began is None:
            began = frame.began
        if state.totals.output_tokens > before:
            last = frame.time
    assert began is not None and not state.requests, "the burst did not end"
    return state.totals.output_tokens / (last - began)


def requests_of(model: str) -> int:
    return BURSTS.get(model, (16, 48))[0]


def arguments(model: str, record: Path) -> list[str]:
    requests, tokens = BURSTS.get(model, (16, 48))
    options = (
        f"--burst {requests} --burst-lengths fixed --max-tokens {tokens} --temperature 0 --max-num-seqs {requests}"
    )
    return ["--model", model, *options.split(), "--record", str(record)]


def headless(model: str, record: Path) -> float:
    subprocess.run([VTOP, "run", "--headless", "--json", *arguments(model, record)], check=True, capture_output=True)
    return tokens_per_second(record)


class App:
    """vtop in a pty, its output read and thrown away."""

    def __init__(self, command: list[str], size: str) -> None:
        columns, rows = (int(n) for n in size.split("x"))
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(command[0], command)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.written = 0

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                self.written += len(os.read(self._fd, 65536))

    def quit(self) -> None:
        os.write(self._fd, b"q")
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        os.waitpid(self.pid, 0)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_app(model: str, record: Path, size: str, fps: int) -> float:
    app = App([VTOP, "run", "--fps", str(fps), *arguments(model, record)], size)
    while not is_done(record, requests_of(model)):
        app.wait(1.0)
    app.quit()
    return tokens_per_second(record)


def is_done(record: Path, requests: int) -> bool:
    """Whether so many requests have ended, as the recording shows."""
    try:
        source = Recording(record)
    except BadValue:
        return False
    ended = sum(isinstance(event, Finished) for frame in source.frames() for event in frame.events)
    return ended >= requests


def idle_cpu(model: str, size: str) -> tuple[float, float]:
    """(share of a core, bytes per second to the terminal) of the app with a loaded model and nothing to do."""
    app = App([VTOP, "run", "--model", model], size)
    app.wait(25.0)
    before, written = app.cpu_seconds(), app.written
    app.wait(IDLE_SECONDS)
    used, sent = app.cpu_seconds() - before, app.written - written
    app.quit()
    return used / IDLE_SECONDS, sent / IDLE_SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--fps", type=int, default=12)
    options = parser.parse_args()
    table = Table("model", "headless tokens/s", "app tokens/s", "ratio (median of pairs)", "ratios")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            rows: list[tuple[float, float]] = []
            for pair in range(options.pairs):
                record = Path(folder) / f"{model}-{pair}.gz"
                if pair % 2:
                    with_app = in_app(model, record, options.size, options.fps)
                    rows.append((headless(model, record), with_app))
                else:
                    without = headless(model, record)
                    record.unlink()
                    rows.append((without, in_app(model, record, options.size, options.fps)))
                record.unlink()
            ratios = [app / alone for alone, app in rows]
            medians = [statistics.median(column) for column in zip(*rows, strict=True)]
            shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
            table.add_row(model, *(f"{m:.1f}" for m in medians), f"{statistics.median(ratios):.3f}", shown)
        cpu, sent = idle_cpu(options.models[0], options.size)
    console = Console(width=120)
    console.print(table)
    console.print(f"idle: {cpu:.1%} of a core, {sent:.0f} bytes/s to the terminal ({options.size})")


if __name__ == "__main__":
    main()
