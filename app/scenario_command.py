"""`vtop sim --scenario`: the variants of a scenario side by side, and its checks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vtop.app.safe_text import clean
from vtop.app.settings import Settings
from vtop.app.sim_arguments import SimArguments
from vtop.app.sim_tables import print_tables
from vtop.app.sim_work import limits, own_card
from vtop.app.terminal import progress_console
from vtop.engine.cards import Card, find_card
from vtop.engine.compare import Outcome, Row
from vtop.engine.measures import Measures, measures
from vtop.engine.scenario import Scenario, find_scenario
from vtop.engine.scenario_check import Verdict
from vtop.engine.scenario_run import ScenarioRun, run_scenario

FAILED = 1


def run_scenario_file(settings: Settings, arguments: SimArguments) -> int:
    """Run every variant; with --check, 1 when a check fails.

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
    found = {name: measures(run.ledger, bounds) for name, run in runs.items()}
    if arguments.json:
        print(_json(scenario, card, found, verdicts), flush=True)
    else:
        _print(Console(), scenario, card, found, verdicts)
    if arguments.csv is not None:
        from vtop.app.sim_export import write_csv

        write_csv(arguments.csv, [_outcome(name, found[name], run) for name, run in runs.items()])
    return FAILED if arguments.check and not all(v.holds for v in verdicts) else 0


def _with(scenario: Scenario, given: dict[str, Any]) -> Scenario:
    changed = [replace(variant, engine={**variant.engine, **given}) for variant in scenario.variants]
    return replace(scenario, variants=tuple(changed))


def _outcome(name: str, found: Measures, run: ScenarioRun) -> Outcome:
    return Outcome(name, None, 0, found, math.nan, run.ledger.counts.steps)


def _print(
    console: Console, scenario: Scenario, card: Card, found: dict[str, Measures], verdicts: list[Verdict]
) -> None:
    piped = not console.is_terminal
    console.print(Text(clean(scenario.title), style="bold"), soft_wrap=piped)
    console.print(Text(clean(scenario.look)), soft_wrap=piped)
    shown = [Row(name, None, 1, values, dict.fromkeys(values, math.nan)) for name, values in found.items()]
    print_tables(console, shown)
    checks = Table(
        title="checks", title_justify="left", title_style="bold", pad_edge=False, show_header=False, box=None
    )
    for verdict in verdicts:
        mark = Text("holds", style="green") if verdict.holds else Text("FAILS", style="bold red")
        checks.add_row(mark, Text(clean(verdict.text)), Text(clean(verdict.sides), style="dim"))
    console.print(checks)
    holding = sum(v.holds for v in verdicts)
    console.print(Text(clean(f"{holding} of {len(verdicts)} checks hold on {card.name}")), soft_wrap=piped)


def _json(scenario: Scenario, card: Card, found: dict[str, Measures], verdicts: list[Verdict]) -> str:
    def numbers(values: dict[str, float]) -> dict[str, float | None]:
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    return json.dumps(
        {
            "scenario": scenario.name,
            "title": scenario.title,
            "card": card.name,
            "variants": {name: numbers(values) for name, values in found.items()},
            "checks": [{"text": v.text, "check": v.expression, "holds": v.holds, "sides": v.sides} for v in verdicts],
        }
    )
