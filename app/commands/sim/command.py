"""`vtop sim`: the scheduler in virtual time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vtop.app.commands.sim import work as sim_work
from vtop.app.commands.sim.arguments import SimArguments, check_together, named
from vtop.app.commands.sim.results import print_tables, request_counts, tell_troubles
from vtop.app.commands.unattended import ended_by_signals, report_stuck_calls
from vtop.app.files import check_target
from vtop.app.settings import Settings
from vtop.app.terminal.printing import CleanConsole, progress_console, put, tell
from vtop.app.terminal.safe_text import clean
from vtop.engine.errors import BadValue
from vtop.engine.sim.compare import Case, Outcome, rows, run_cases
from vtop.engine.sim.simulator import device_blocks

MOST_WORKERS = 1024


def sim(settings: Settings, arguments: SimArguments) -> int:
    """Run what the arguments ask for; returns the exit code."""
    try:
        check_together(arguments, settings.named())
        _check_values(arguments)
        if arguments.tui:
            from vtop.app.commands.sim.play import watch

            return watch(settings, arguments)
        with ended_by_signals(), report_stuck_calls():
            return _run(settings, arguments)
    except BadValue as error:
        raise named(error, arguments) from None


def _check_values(a: SimArguments) -> None:
    if a.csv is not None:
        check_target("--csv", a.csv, a.overwrite)
    if a.workers is not None and not 1 <= a.workers <= MOST_WORKERS:
        raise BadValue("--workers", a.workers, f"give at least 1, at most {MOST_WORKERS:,}")
    if a.time_scale is not None and a.time_scale < 0:
        raise BadValue("--time-scale", a.time_scale, "give virtual seconds per second, 0 or more")


def _run(settings: Settings, arguments: SimArguments) -> int:
    if arguments.reference is not None:
        from vtop.app.commands.sim.reference import run_reference

        return run_reference(arguments.reference, as_json=arguments.json)
    config = settings.engine_config()
    if arguments.against is not None:
        from vtop.app.commands.sim.reference import run_against

        return run_against(arguments, config)
    if arguments.scenario is not None:
        from vtop.app.commands.sim.scenario import run_scenario_file

        return run_scenario_file(settings, arguments)
    return _compare(settings, arguments)


def _compare(settings: Settings, arguments: SimArguments) -> int:
    if arguments.plot is not None:
        from vtop.app.plots import check_plots

        check_plots(arguments.plot, arguments.overwrite)
    cases = sim_work.cases(arguments, settings.engine_config(), settings.engine_options())
    outcomes = run_with_progress(cases, arguments)
    if arguments.json:
        from vtop.app.commands.sim.results import as_json

        put(as_json(cases, outcomes))
    else:
        _print(CleanConsole(), cases, outcomes)
    code = tell_troubles(outcomes)
    if arguments.csv is not None:
        from vtop.app.commands.sim.results import write_csv

        write_csv(arguments.csv, outcomes)
    if arguments.plot is not None:
        from vtop.app.plots import draw_all

        for path in draw_all(arguments.plot, outcomes):
            tell(f"drawn: {path}")
    return code


def run_with_progress(cases: Sequence[Case], arguments: SimArguments) -> list[Outcome]:
    """Run the cases with a bar on stderr."""
    limits = sim_work.limits(arguments)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    unit = "requests" if len(cases) == 1 else "runs"
    console = progress_console()
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        task = progress.add_task(f"simulating, {unit}", total=None)
        return run_cases(
            cases,
            workers=arguments.workers or os.cpu_count() or 1,
            limits=limits,
            curves=arguments.plot is not None,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
            around=report_stuck_calls,
        )


def _print(console: Console, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> None:
    first = cases[0].simulation
    card, workload = first.card, first.workload
    configs = {case.policy: case.simulation.config for case in cases}.values()
    length = "" if first.until is None else f"{first.until:g} s, at most "
    facts = [
        f"{card.device}, {card.shape.name}, {_each(f'{device_blocks(c, card):,}' for c in configs)} blocks of "
        f"{_each(str(c.block_size) for c in configs)}",
        f"preset {_each(c.preset for c in configs)}, budget "
        f"{_each(f'{c.token_budget(c.max_model_len or card.shape.max_model_len):,}' for c in configs)}",
        f"at most {_each(str(c.max_num_seqs) for c in configs)} sequences, {_each(c.preemption_mode for c in configs)}",
        f"{length}{request_counts(cases)} requests of {workload.name}",
    ]
    # a pipe has no width: one fact sheet is one line there
    console.print(Text(clean("; ".join(facts))), style="dim", soft_wrap=not console.is_terminal)
    print_tables(console, rows(outcomes))
    wall, steps = sum(o.wall for o in outcomes), sum(o.steps for o in outcomes)
    speed = steps / max(wall, 1e-9)
    summary = f"{len(outcomes)} runs, {steps:,} steps simulated in {wall:.1f} s of a core, {speed:,.0f} steps/s"
    console.print(Text(summary), style="dim", soft_wrap=not console.is_terminal)


def _each(values: Iterable[str]) -> str:
    """One value, or those of the policies in their order."""
    found = list(values)
    return found[0] if len(set(found)) == 1 else f"{'/'.join(found)} (by policy)"
