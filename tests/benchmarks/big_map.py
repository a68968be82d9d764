"""How the app keeps up with a big simulation: 50,000 blocks and 1,000 running requests.

    python tests/benchmarks/big_map.py [--size 200x60] [--seconds 10] [--time-scale 0] [-- OPTIONS OF vtop sim]

Runs `vtop sim --tui` in a real pty. Printed: pictures per second and what one costs, what folding costs, simulated
steps per second, and how long it takes from a key (`p`, to the prompt bar) to what it changes in the terminal.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

LOAD = (
    "--card h100 --gpus 8 --model-shape llama-70b --num-gpu-blocks-override 50000 --max-num-seqs 1000 "
    "--max-num-batched-tokens 4096 --rate 200 --requests 20000 --prompt-tokens 100-300 --output-tokens 500-1500"
)
NEEDED = 1000  # running requests before anything is measured
KEYS = 8
WARM_UP = 120.0  # seconds at most until so many run


class Inside:
    """In the program: counts pictures, folds and steps, and writes the sums to a file twice a second."""

    def __init__(self, path: Path) -> None:
        from vtop.app.live.pump import Pump
        from vtop.app.main import VtopApp

        self.path = path
        self.draws: list[float] = []
        self.frames = 0
        self.folding = 0.0
        self._app: Any = None
        self._due = 0.0
        draw, pull, take, tick = VtopApp._draw, Pump.pull, Pump._take, VtopApp._tick

        def timed_draw(app: VtopApp) -> None:
            before, began = app._drawn, time.thread_time()
            draw(app)
            if app._drawn != before:
                self.draws.append(time.thread_time() - began)

        def timed_pull(pump: Pump) -> bool:
            began = time.thread_time()
            told = pull(pump)
            self.folding += time.thread_time() - began
            return told

        def counted(pump: Pump, frame: Any) -> None:
            self.frames += 1
            take(pump, frame)

        def ticked(app: VtopApp) -> None:
            tick(app)
            self.write(app)

        for kind, name, method in (
            (VtopApp, "_draw", timed_draw),
            (Pump, "pull", timed_pull),
            (Pump, "_take", counted),
            (VtopApp, "_tick", ticked),
        ):
            setattr(kind, name, method)

    def write(self, app: Any) -> None:
        now = time.monotonic()
        if now < self._due or app.pump.live is None:
            return
        self._due = now + 0.5
        state = app.pump.live
        draws, self.draws = self.draws, []
        facts = {
            "now": now, "draws": draws, "frames": self.frames, "folding": self.folding, "step": state.step,
            "running": len(state.running), "pending": app.feed.pending, "used": state.used, "time": state.time,
        }  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps(facts) + "\n")


class Terminal:
    """The program in a pty."""

    def __init__(self, command: list[str], size: str) -> None:
        columns, rows = (int(n) for n in size.split("x"))
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(command[0], command)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.written = 0

    def read(self, seconds: float) -> bytes:
        """What comes within so many seconds."""
        end, data = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                data += os.read(self._fd, 65536)
        self.written += len(data)
        return data

    def latency(self, key: str, shows: bytes, seconds: float = 10.0) -> float:
        """Seconds from a key to what it shows."""
        began, data = time.monotonic(), b""
        os.write(self._fd, key.encode())
        while shows not in re.sub(rb"\x1b\[[0-9;]*m", b"", data):
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"{key!r} did not show {shows!r} in {seconds} s")
            if select.select([self._fd], [], [], 0.01)[0]:
                data += os.read(self._fd, 65536)
        self.written += len(data)
        return time.monotonic() - began

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def quit(self) -> None:
        os.write(self._fd, b"\x03")
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        os.waitpid(self.pid, 0)


def measured(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def measure(size: str, seconds: float, options: list[str], folder: Path) -> None:
    path = folder / f"facts-{size}.jsonl"
    command = [sys.executable, __file__, "--inside", str(path), "--", *options]
    terminal = Terminal(command, size)
    end = time.monotonic() + WARM_UP
    while not (facts := measured(path)) or facts[-1]["running"] < NEEDED:
        terminal.read(0.5)
        if time.monotonic() > end:
            print(f"only {facts[-1]['running'] if facts else 0} requests run after {WARM_UP:.0f} s; measured anyway")
            break
    first, written = len(measured(path)), terminal.written
    used, began = terminal.cpu_seconds(), time.monotonic()
    terminal.read(seconds)
    rows = measured(path)[first - 1 :]
    used = (terminal.cpu_seconds() - used) / (time.monotonic() - began)
    sent = (terminal.written - written) / seconds
    delays = []
    for number in range(KEYS):
        delays.append(terminal.latency("p", b"type a prompt"))
        terminal.read(0.07 + 0.03 * number)  # not in step with the pictures
        terminal.latency("\x1b", b"press p")  # Esc itself waits for what may follow it
        terminal.read(0.37)
    terminal.quit()
    last, before = rows[-1], rows[0]
    span = last["now"] - before["now"]
    draws = [seconds for row in rows[1:] for seconds in row["draws"]]
    frames = last["frames"] - before["frames"]
    fold = 1e3 * (last["folding"] - before["folding"]) / max(1, frames)
    steps, virtual = last["step"] - before["step"], last["time"] - before["time"]
    print(
        f"{size}: {last['running']} running, {last['used']:,} blocks in use, {last['pending']} Frames not shown yet, "
        f"{used:.0%} of a core"
    )
    print(f"  pictures {len(draws) / span:5.1f} /s, {1e3 * statistics.mean(draws):.1f} ms each on average, "
          f"{1e3 * max(draws):.1f} at most; {sent / 1024:.0f} KiB/s to the terminal")  # fmt: skip
    print(f"  steps    {steps / span:5.0f} /s ({virtual / span:.2f} virtual seconds per second), {fold:.2f} ms to fold")
    print(f"  keys     {1e3 * statistics.median(delays):5.0f} ms until seen, {1e3 * max(delays):.0f} at most")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["120x40", "200x60"])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--time-scale", default="0")
    parser.add_argument("--inside", type=Path)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    if arguments.inside is not None:
        from vtop.app.cli import main as vtop

        Inside(arguments.inside)
        return vtop(["sim", "--tui", *arguments.options])
    options = arguments.options or LOAD.split()
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            measure(size, arguments.seconds, [*options, "--time-scale", arguments.time_scale], Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
