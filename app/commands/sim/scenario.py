"""`vtop sim --scenario`: the variants of a scenario side by side, and its checks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.commands.sim.results import print_tables, tell_troubles
from vtop.app.commands.sim.work import limits, own_card
from vtop.app.settings import Settings
from vtop.app.terminal.printing import CleanConsole, progress_console, put
from vtop.app.terminal.safe_text import clean
from vtop.engine.scenarios.check import Verdict
from vtop.engine.scenarios.run import ScenarioRun
from vtop.engine.scenarios.scenario import Scenario, find_scenario, run_scenario
from vtop.engine.sim.cards import Card, find_card
from vtop.engine.sim.compare import Outcome, rows
from vtop.engine.state.measures import Limits, measures

FAILED = 1


def run_scenario_file(settings: Settings, arguments: SimArguments) -> int:
    """Run every variant; 1 when one of them failed or, with --check, when a check does.

    A card and engine options of the command line win over those of the file.
    """
    assert arguments.scenario is not None
    scenario = _with(find_scenario(arguments.scenario), settings.named_engine_options())
    card = own_card(arguments) or find_card(scenario.card)
    bounds = limits(arguments)
    with progress_console().status("simulating") as status:
        runs, verdicts = run_scenario(
            scenario, card, on_variant=lambda name: status.update(Text(clean(f"simulating {scenario.name}, {name}")))
        )
    outcomes = [_outcome(scenario, run, bounds) for run in runs.values()]
    if arguments.json:
        put(_json(scenario, card, outcomes, verdicts))
    else:
        _print(CleanConsole(), scenario, card, outcomes, verdicts)
    code = tell_troubles(outcomes, "variant")
    if arguments.csv is not None:
        from vtop.app.commands.sim.results import write_csv

        write_csv(arguments.csv, outcomes)
    return FAILED if arguments.check and not all(v.holds for v in verdicts) else code


def _with(scenario: Scenario, given: dict[str, Any]) -> Scenario:
    changed = [replace(variant, engine={**variant.engine, **given}) for variant in scenario.variants]
    return replace(scenario, variants=tuple(changed))


def _outcome(scenario: Scenario, run: ScenarioRun, bounds: Limits) -> Outcome:
    ledger, seed = run.ledger, scenario.config(scenario.variant(run.variant)).seed
    found, steps = measures(ledger, bounds), ledger.totals.steps
    return Outcome(run.variant, None, seed, found, math.nan, steps, None, ledger.notes, ledger.refusals)


def _print(console: Console, scenario: Scenario, card: Card, outcomes: list[Outcome], verdicts: list[Verdict]) -> None:
    piped = not console.is_terminal
    console.print(Text(clean(scenario.title), style="bold"), soft_wrap=piped)
    console.print(Text(clean(scenario.look)), soft_wrap=piped)
    print_tables(console, rows(outcomes))
    checks = Table(
        title="checks", title_justify="left", title_style="bold", pad_edge=False, show_header=False, box=None
    )
    for verdict in verdicts:
        mark = Text("holds", style="green") if verdict.holds else Text("FAILS", style="bold red")
        checks.add_row(mark, Text(clean(verdict.text)), Text(clean(verdict.sides), style="dim"))
    console.print(checks)
    holding = sum(v.holds for v in verdicts)
    console.print(Text(clean(f"{holding} of {len(verdicts)} checks hold on {card.name}")), soft_wrap=piped)


def _json(scenario: Scenario, card: Card, outcomes: list[Outcome], verdicts: list[Verdict]) -> str:
    from vtop.app.commands.sim.results import run_json

    return json.dumps(
        {
            "scenario": scenario.name,
            "title": scenario.title,
            "card": card.name,
            "variants": {o.policy: run_json(o, scenario.config(scenario.variant(o.policy))) for o in outcomes},
            "checks": [{"text": v.text, "check": v.expression, "holds": v.holds, "sides": v.sides} for v in verdicts],
        },
        default=str,
        allow_nan=False,
    )
