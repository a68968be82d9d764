"""`vtop calibrate`: from a recording to a card that the simulator reads."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vtop.app.files import check_target, write_file
from vtop.app.terminal.printing import CleanConsole
from vtop.app.terminal.safe_text import clean
from vtop.engine.events.journal import Recording
from vtop.engine.sim.calibrate import HELD_OUT_EVERY, Calibration, Errors, step_samples
from vtop.engine.sim.calibrate import calibrate as fit
from vtop.engine.sim.cards import Card, card_text
from vtop.engine.sim.cost_model import HingeCost
from vtop.engine.sim.shapes import recorded_shape

_SUFFIXES = (".gz", ".jsonl", ".vtop")


def calibrate(
    file: Path, output: Path | None = None, console: Console | None = None, *, overwrite: bool = False
) -> int:
    """Fit a card to a recording, print how good it is, and write it (default: beside the recording). Raises BadValue.

    The card is written whatever its error is: the error is in the file as well.
    """
    stem = _stem(file)
    target = file.with_name(f"{stem}.toml") if output is None else output
    check_target("--output", target, overwrite)
    recording = Recording(file)
    found = fit(step_samples(recording), str(file))
    card = Card(stem, recording.meta.device, recorded_shape(recording.meta), found.cost)
    held = found.held_out
    # a line end in a name would end the comment
    notes = [
        f"vtop calibrate {file.name}: {recording.meta.model} on {recording.meta.device}, {recording.meta.dtype}",
        f"fitted to {found.fitted} steps; on {held.steps} others: MAPE {held.mape:.1%}, p95 {held.p95:.1%}",
    ]
    write_file("--output", target, card_text(card, [clean(note) for note in notes]).encode("utf-8", "backslashreplace"))
    _print(console or CleanConsole(), found, target)
    return 0


def _stem(file: Path) -> str:
    name = file.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name or "card"


def _print(console: Console, found: Calibration, target: Path) -> None:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    table.add_column("held-out steps", no_wrap=True)
    for name in ("steps", "MAPE", "p95", "bias"):
        table.add_column(name, justify="right")
    table.add_row("all", *_cells(found.held_out))
    for kind, errors in found.by_kind.items():
        table.add_row(kind.value, *_cells(errors), style="dim")
    console.print(table)
    console.print()
    console.print(Text(_formula(found.cost)), soft_wrap=not console.is_terminal)
    steps = f"fitted to {found.fitted} steps; of each kind every {HELD_OUT_EVERY}th was held out"
    console.print(Text(clean(f"{steps}; card written to {target} (vtop sim --card {target})")), soft_wrap=True)


def _cells(errors: Errors) -> tuple[str, ...]:
    return (f"{errors.steps:,}", f"{errors.mape:.1%}", f"{errors.p95:.1%}", f"{errors.bias:+.1%}")


def _formula(cost: HingeCost) -> str:
    parts = [
        (cost.c0, 1e3, "ms"),
        (cost.ct, 1e6, "us/token"),
        (cost.ch, 1e6, f"us/token above {cost.knee:g}"),
        (cost.cd, 1e6, "us/decode"),
        (cost.ck, 1e9, "ns/context token"),
        (cost.ca, 1e9, "ns/token of prefill attention"),
        (cost.swap_s_per_block, 1e6, "us/swapped block"),
        (cost.cow_s_per_block, 1e6, "us/copied block"),
    ]
    return "step = " + " + ".join(f"{value * unit:.4g} {name}" for value, unit, name in parts if value > 0)
