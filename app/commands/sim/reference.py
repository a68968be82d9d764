"""`vtop sim --reference` and `--against`: how near a simulation comes to the real run that it copies."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vtop.app.terminal.printing import CleanConsole, progress_console, put
from vtop.app.terminal.safe_text import clean
from vtop.engine.errors import BadValue
from vtop.engine.sim.reference import (
    METRICS,
    MOST_LEFT_OUT,
    Line,
    Pair,
    Replay,
    Report,
    against_pair,
    check,
    reference_pair,
)

if TYPE_CHECKING:
    from vtop.app.commands.sim.arguments import SimArguments
    from vtop.engine.config import EngineConfig

FAILED = 1
_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}


def run_reference(name: str, console: Console | None = None, *, as_json: bool = False) -> int:
    """Replay a recorded vLLM run that comes with vtop; 1 when an error is out of its bound. Raises BadValue."""
    return run_pair(reference_pair(name), console, as_json=as_json)


def run_against(arguments: SimArguments, config: EngineConfig, console: Console | None = None) -> int:
    """The same for a trace and a measured run of the user's own; 1 when an error is out of its bound."""
    from vtop.app.commands.sim.work import card_of, trace_workload

    if arguments.against is None:
        raise BadValue("--against", None, "give a measured run")
    if arguments.scale_time != 1.0 or arguments.scale_length != "1":
        raise BadValue("--against", str(arguments.against), "leave --scale-time and --scale-length out with it")
    workload = trace_workload(arguments)
    if workload is None:
        raise BadValue("--against", str(arguments.against), "give the arrivals with --trace as well")
    pair = against_pair(workload, arguments.against, card_of(arguments, config), config)
    return run_pair(pair, console, as_json=arguments.json)


def run_pair(pair: Pair, console: Console | None = None, *, as_json: bool = False) -> int:
    """Simulate, print the table or one JSON object; 1 when an error is out of its bound."""
    console = console or CleanConsole()
    with progress_console().status("simulating") as status:
        report = check(pair, lambda text: status.update(f"simulating: {text}"))
    if as_json:
        put(report_json(report))
    else:
        print_report(report, console)
    return 0 if report.ok else FAILED


def report_json(report: Report) -> str:
    """One object with every error; a number that is not there is null."""
    pair = report.pair
    return json.dumps(
        {
            "name": pair.name,
            "card": pair.simulation.card.name,
            "config": asdict(pair.simulation.config),
            "measured_requests": len(pair.measured),
            "notes": [pair.since, *pair.notes],
            "plain": _replay_json(report.plain),
            "scale": report.scale,
            "fitted": None if report.fitted is None else _replay_json(report.fitted),
            "ok": report.ok,
        },
        default=str,
        allow_nan=False,
    )


def _replay_json(replay: Replay) -> dict[str, Any]:
    found = asdict(replay)
    found["lines"] = [{**asdict(line), "error": line.error, "ok": line.ok} for line in replay.lines]
    for line in found["lines"]:
        line.update({key: None for key, value in line.items() if isinstance(value, float) and not math.isfinite(value)})
    return found


def print_report(report: Report, console: Console) -> None:
    """What was compared, the errors with their bounds, and cross-checks."""
    pair = report.pair
    config, card = pair.simulation.config, pair.simulation.card
    console.print(
        Text(
            clean(
                f"{pair.name}: {len(pair.measured):,} measured requests; preset {config.preset} on card {card.name} "
                f"({card.device}), {config.max_num_seqs} seats, budget "
                f"{config.token_budget(config.max_model_len or card.shape.max_model_len):,} tokens a step"
            )
        ),
        soft_wrap=not console.is_terminal,
    )
    for note in (pair.since, *pair.notes):
        console.print(Text(clean(note), style="dim"), soft_wrap=not console.is_terminal)
    _print_replay(console, "uncalibrated, all requests", report.plain)
    if report.fitted is not None:
        title = f"step times x {report.scale:.3f}, fitted on the even requests and judged on the odd ones"
        _print_replay(console, title, report.fitted)
    console.print()
    console.print(
        Text("within bounds" if report.ok else "out of bounds", style="bold green" if report.ok else "bold red")
    )


def _print_replay(console: Console, title: str, replay: Replay) -> None:
    console.print()
    console.print(Text(f"{title} ({replay.requests:,})", style="bold"))
    console.print(_table(replay))
    console.print(_facts(replay))
    if replay.left_out:
        why = ", ".join(f"{count:,} {reason}" for reason, count in replay.left_out.items())
        left = sum(replay.left_out.values())
        of = f"{left:,} of {left + replay.requests:,} measured requests have no end in the simulation"
        console.print(Text(clean(f"left out: {of} ({why}); at most {MOST_LEFT_OUT:.0%} may be"), style="yellow"))
    for text in replay.troubles:
        console.print(Text(clean(f"error in the simulation: {text}"), style="red"))


def _table(replay: Replay) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("measured", "simulated", "error", "bound", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    order = {metric: place for place, metric in enumerate(METRICS)}
    for line in sorted(replay.lines, key=lambda line: (line.part != "mean", order[line.metric])):
        table.add_row(*_cells(line), style=None if line.part == "mean" else "dim")
    return table


def _cells(line: Line) -> tuple[str | Text, ...]:
    verdict = Text("-", style="dim")
    if line.bound is not None:
        verdict = Text("ok", style="green") if line.ok else Text("out", style="red")
    bound = "-" if line.bound is None else f"{line.bound:.0%}"
    name = f"{line.part} {_TITLES[line.metric]}"
    return (name, _seconds(line.measured), _seconds(line.simulated), f"{line.error:+.1%}", bound, verdict)


def _seconds(value: float) -> str:
    return f"{value * 1000:.2f} ms" if value < 1 else f"{value:.3f} s"


def _facts(replay: Replay) -> Text:
    tax = f"{replay.recompute_tax:.1%} of computed tokens were computed before"
    return Text(f"simulated: {replay.steps:,} steps, {replay.preemptions:,} preemptions, {tax}", style="dim")
