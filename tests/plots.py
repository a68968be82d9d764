"""Draws the README's picture of policies and prints its table: `python tests/plots.py [folder]`, some minutes.

It runs the very command line that the README gives, so that what stands there can be had by anybody. With a folder, all
figures stay there, as does the JSON.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

PICTURE = Path(__file__).parent / "data" / "screenshots" / "policies.png"
COMMAND = (
    "vtop sim --policies fcfs,priority,priority:aging_rate=1,fair,priority+fair,sjf,deadline "
    "--rates 2,3,4,5,6,7,8 --seconds 60 --seeds 3 --num-gpu-blocks-override 256 "
    "--groups A=0.8,B=0.2 --priorities 0=0.8,10=0.2 --length-error 0.5 --deadlines 10=0.5,30=0.5 --plot plots"
)
SHOWN = (4.0, 6.0)
COLOURS = 64  # of the picture; a third of the bytes, and nobody sees it

COLUMNS = (
    ("e2e mean", "e2e_mean", "{:.2f} s"),
    ("e2e cv", "e2e_cv", "{:.2f}"),
    ("TTFT mean", "ttft_mean", "{:.2f} s"),
    ("TTFT p99", "ttft_p99", "{:.1f} s"),
    ("TTFT urgent", "ttft_urgent_mean", "{:.2f} s"),
    ("TTFT tenant B", "ttft_smallest_group_mean", "{:.2f} s"),
    ("tok/s", "tokens_per_second", "{:.0f}"),
    ("preemptions", "preemptions", "{:.0f}"),
    ("SLO met", "slo_met", "{:.0%}"),
    ("missed", "deadline_misses", "{:.0f}"),
)


def run(folder: Path) -> list[dict[str, Any]]:
    """The rows of the comparison, whose figures are in `folder` then."""
    _, *arguments = shlex.split(COMMAND)
    arguments[-1] = str(folder)
    command = [sys.executable, "-m", "vtop.app", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    (folder / "result.json").write_text(done.stdout, encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds, as Markdown."""
    lines = ["| rate | policy | " + " | ".join(name for name, _, _ in COLUMNS) + " |"]
    lines.append("|---|---|" + "---|" * len(COLUMNS))
    for row in sorted((row for row in rows if row["rate"] in SHOWN), key=lambda row: row["rate"]):
        cells = [form.format(row["mean"][key]) for _, key, form in COLUMNS]
        lines.append(f"| {row['rate']:g} | {row['policy']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run, draw, print."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = run(folder)
        with Image.open(folder / "latency.png") as picture:
            picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB\n\n{COMMAND}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
