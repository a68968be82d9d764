"""`vtop sim`: the scheduler in virtual time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vtop.app import sim_texts, sim_work
from vtop.app.settings import Settings
from vtop.app.sim_arguments import SimArguments
from vtop.app.sim_tables import print_tables
from vtop.engine.cards import Card
from vtop.engine.compare import Case, Outcome, rows, run_cases
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.simulator import device_blocks


def sim(settings: Settings, arguments: SimArguments) -> int:
    """Run what the arguments ask for; returns the exit code."""
    _check_together(arguments)
    if arguments.reference is not None:
        from vtop.app.reference_command import run_reference

        return run_reference(arguments.reference)
    config = settings.engine_config()
    if arguments.against is not None:
        from vtop.app.reference_command import run_against

        assert arguments.trace is not None
        return run_against(arguments, config)
    if arguments.tui:
        from vtop.app.sim_tui import watch

        return watch(settings, arguments)
    if arguments.scenario is not None:
        from vtop.app.scenario_command import run_scenario_file

        return run_scenario_file(arguments)
    return _compare(config, arguments)


def _check_together(a: SimArguments) -> None:
    sources = [n for n, v in (("--scenario", a.scenario), ("--trace", a.trace), ("--reference", a.reference)) if v]
    if len(sources) > 1:
        raise BadValue(sources[1], "given", f"leave out {sources[0]}: one workload at a time")
    if a.against is not None and a.trace is None:
        raise BadValue("--against", str(a.against), "give the arrivals with --trace as well")
    if a.check and a.scenario is None:
        raise BadValue("--check", True, "it goes with --scenario")
    if a.csv is not None:
        sim_texts.writable("--csv", a.csv)
    if a.workers is not None and a.workers < 1:
        raise BadValue("--workers", a.workers, "give at least 1")
    if a.time_scale is not None and (not a.tui or a.time_scale < 0):
        raise BadValue("--time-scale", a.time_scale, "it goes with --tui; give virtual seconds per second, 0 or more")


def _compare(config: EngineConfig, arguments: SimArguments) -> int:
    if arguments.plot is not None:
        from vtop.app.plots import check_plots

        check_plots(arguments.plot)
    cases = sim_work.cases(arguments, config)
    outcomes = run_with_progress(cases, arguments)
    card = cases[0].simulation.card
    if arguments.csv is not None:
        from vtop.app.sim_export import write_csv

        write_csv(arguments.csv, outcomes)
    if arguments.json:
        from vtop.app.sim_export import as_json

        print(as_json(outcomes, config, card), flush=True)
    else:
        _print(Console(), cases, outcomes, config, card)
    if arguments.plot is not None:
        from vtop.app.plots import draw_all

        for path in draw_all(arguments.plot, outcomes):
            print(f"drawn: {path}", file=sys.stderr)
    return 0


def run_with_progress(cases: Sequence[Case], arguments: SimArguments) -> list[Outcome]:
    """Run the cases with a bar on stderr."""
    limits = sim_work.limits(arguments)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    unit = "requests" if len(cases) == 1 else "runs"
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"simulating, {unit}", total=None)
        return run_cases(
            cases,
            workers=arguments.workers or os.cpu_count() or 1,
            limits=limits,
            curves=arguments.plot is not None,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _print(
    console: Console, cases: Sequence[Case], outcomes: Sequence[Outcome], config: EngineConfig, card: Card
) -> None:
    first = cases[0].simulation
    facts = [
        f"{card.device}, {card.shape.name}, {device_blocks(config, card):,} blocks of {config.block_size}",
        f"preset {config.preset}, budget {config.token_budget(config.max_model_len or card.shape.max_model_len):,}",
        f"at most {config.max_num_seqs} sequences, {config.preemption_mode}",
        f"{len(first.workload.jobs):,} requests of {first.workload.name}",
    ]
    console.print(Text("; ".join(facts)), style="dim")
    print_tables(console, rows(outcomes))
    wall, steps = sum(o.wall for o in outcomes), sum(o.steps for o in outcomes)
    speed = steps / max(wall, 1e-9)
    told = f"{len(outcomes)} runs, {steps:,} steps simulated in {wall:.1f} s of a core, {speed:,.0f} steps/s"
    console.print(Text(told), style="dim")
