"""`vtop sim --scenario`: the variants of a scenario side by side, and its checks."""

from __future__ import annotations

import json
import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vtop.app.safe_text import clean
from vtop.app.sim_arguments import SimArguments
from vtop.app.sim_tables import print_tables
from vtop.engine.cards import find_card
from vtop.engine.compare import Row
from vtop.engine.measures import measures
from vtop.engine.scenario import Scenario, find_scenario
from vtop.engine.scenario_check import Verdict
from vtop.engine.scenario_run import ScenarioRun, run_scenario

FAILED = 1


def run_scenario_file(arguments: SimArguments) -> int:
    """Run every variant; with --check, 1 when a check fails."""
    assert arguments.scenario is not None
    scenario = find_scenario(arguments.scenario)
    card = find_card(scenario.card)
    with Console(stderr=True).status("simulating") as status:
        runs, verdicts = run_scenario(
            scenario, card, on_variant=lambda name: status.update(f"simulating {scenario.name}, {name}")
        )
    if arguments.json:
        print(_json(scenario, runs, verdicts), flush=True)
    else:
        _print(Console(), scenario, runs, verdicts)
    return FAILED if arguments.check and not all(v.holds for v in verdicts) else 0


def _print(console: Console, scenario: Scenario, runs: dict[str, ScenarioRun], verdicts: list[Verdict]) -> None:
    console.print(Text(clean(scenario.title), style="bold"))
    console.print(Text(clean(scenario.look)))
    shown = []
    for name, run in runs.items():
        values = measures(run.ledger)
        shown.append(Row(name, None, 1, values, dict.fromkeys(values, math.nan)))
    print_tables(console, shown)
    checks = Table(
        title="checks", title_justify="left", title_style="bold", pad_edge=False, show_header=False, box=None
    )
    for verdict in verdicts:
        mark = Text("holds", style="green") if verdict.holds else Text("FAILS", style="bold red")
        checks.add_row(mark, Text(clean(verdict.text)), Text(clean(verdict.sides), style="dim"))
    console.print(checks)
    holding = sum(v.holds for v in verdicts)
    console.print(Text(f"{holding} of {len(verdicts)} checks hold on {scenario.card}"))


def _json(scenario: Scenario, runs: dict[str, ScenarioRun], verdicts: list[Verdict]) -> str:
    def numbers(values: dict[str, float]) -> dict[str, float | None]:
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    return json.dumps(
        {
            "scenario": scenario.name,
            "title": scenario.title,
            "card": scenario.card,
            "variants": {name: numbers(measures(run.ledger)) for name, run in runs.items()},
            "checks": [{"text": v.text, "check": v.expression, "holds": v.holds, "sides": v.sides} for v in verdicts],
        }
    )
