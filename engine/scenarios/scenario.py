"""Scenarios: a workload that shows one thing, with variants to compare and checks of what must be seen.

A file is TOML:

    title = "…"            look = "what to look at"        card = "rtx4090"
    until = 20.0           optional, in seconds: a run ends then, whatever is left; in the app it pauses
    [engine]               options as on the command line, with underscores
    [cost]                 times of the card that differ, such as swap_s_per_block
    [[jobs]]               a series: id, count, at, every, prompt, output, and what is in SERIES
    [variants.NAME]        engine = {…}, cost = {…}, jobs.ID = {…}: what differs
    [checks]               "what it says" = "left.ttft_mean >= 50 * right.ttft_mean" (check.py)

Errors are one line that names file, key and the nearest valid key.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from vtop.engine.config import EngineConfig, check_option
from vtop.engine.errors import BadValue
from vtop.engine.events import Frame
from vtop.engine.policy_spec import FILE_MARK, NOT_FROM_DATA, OPTION
from vtop.engine.scenarios.check import Verdict, check_names, evaluate, times_asked
from vtop.engine.scenarios.run import ScenarioRun
from vtop.engine.sim.cards import Card, find_card
from vtop.engine.sim.cost_model import HingeCost
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.state.ledger import Ledger
from vtop.engine.user_files import read_toml
from vtop.engine.workload.jobs import Job, Workload

_TOP = {"title": str, "look": str, "card": str, "until": float, "engine": dict, "cost": dict, "jobs": list,
        "variants": dict, "checks": dict}  # fmt: skip
_VARIANT = {"engine": dict, "cost": dict, "jobs": dict}
MOST_JOBS = 100_000
MOST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Series:
    """`count` jobs from `at` on, one `every` so many seconds (or at `rate` per second); see Job for the rest.

    With `prefixes` k, job i begins with shared prefix i mod k of `shared` tokens, called `prefix`.
    """

    id: str
    prompt: int
    output: int
    count: int = 1
    at: float = 0.0
    every: float = 0.0
    rate: float | None = None
    priority: float = 0
    group: str = "default"
    timeout: float | None = None
    deadline: float | None = None
    n: int = 1
    beam_width: int | None = None
    expected: int | None = None
    prefix: str = ""
    prefixes: int = 1
    shared: int = 0

    def jobs(self) -> list[Job]:
        every = self.every if self.rate is None else 1.0 / self.rate
        single = self.count == 1
        return [
            self._job(i, round(self.at + i * every, 6), self.id if single else f"{self.id}{i}")
            for i in range(self.count)
        ]

    def _job(self, index: int, at: float, name: str) -> Job:
        chain = ((f"{self.prefix or self.id}{index % self.prefixes}", self.shared),) if self.shared else ()
        return Job(
            name,
            at,
            self.prompt,
            self.output,
            priority=self.priority,
            group=self.group,
            timeout=self.timeout,
            deadline=self.deadline,
            prefix=chain,
            n=self.n,
            beam_width=self.beam_width,
            expected_tokens=self.expected,
        )


SERIES = tuple(f.name for f in fields(Series))


@dataclass(frozen=True, slots=True)
class Variant:
    """What one run of a scenario changes."""

    name: str
    engine: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A file that was read and checked. `checks` are (what it says, expression)."""

    name: str
    source: str
    title: str
    look: str
    card: str
    engine: dict[str, Any]
    cost: dict[str, float]
    series: tuple[Series, ...]
    variants: tuple[Variant, ...]
    checks: tuple[tuple[str, str], ...]
    until: float | None = None

    def variant(self, name: str) -> Variant:
        """By name. Raises BadValue."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise BadValue("variant", name, f"{self.source} has {', '.join(v.name for v in self.variants)}")

    def workload(self, variant: Variant) -> Workload:
        made = [replace(series, **variant.jobs.get(series.id, {})) for series in self.series]
        jobs = sorted((job for series in made for job in series.jobs()), key=lambda job: job.at)
        return Workload(f"{self.name}/{variant.name}", tuple(jobs))

    def config(self, variant: Variant, base: dict[str, Any] | None = None) -> EngineConfig:
        """The engine's options: those of the scenario and the variant over `base`."""
        return EngineConfig(**{**(base or {}), **self.engine, **variant.engine})

    def simulation(self, variant: Variant, card: Card | None = None) -> Simulation:
        """A run of a variant, on the scenario's card or another one."""
        card = card or find_card(self.card)
        changes = {**self.cost, **variant.cost}
        if changes:
            if not isinstance(card.cost, HingeCost):
                raise BadValue("card", card.name, f"{self.source} changes times of a fitted card; choose such a one")
            card = replace(card, cost=replace(card.cost, **changes))
        config = self.config(variant)
        return Simulation(self.workload(variant), config, card, self.until, keep_gaps=True, keep_spans=True)


def gallery() -> dict[str, Path]:
    """The bundled scenarios by name."""
    folder = Path(str(resources.files("vtop.engine") / "scenarios"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_scenario(name: str) -> Scenario:
    """Of the gallery by name, or from a file. Raises BadValue."""
    known = gallery()
    if name in known:
        return load_scenario(known[name])
    if name.endswith(".toml") or os.path.isfile(name):  # unlike Path's, false for a name that is too long
        return load_scenario(Path(name))
    close = difflib.get_close_matches(name, known, n=1)
    nearest = f"; did you mean {close[0]}?" if close else ""
    raise BadValue("scenario", name, f"give a TOML file or one of {', '.join(known)}{nearest}")


def load_scenario(path: Path) -> Scenario:
    """Read and check a file, to the last job and check of every variant. Raises BadValue."""
    data = read_toml("scenario", path, "a TOML file with tables as the README shows them")
    reader = _Reader(path.name)
    reader.keys("", data, _TOP)
    if "until" in data and not 0 < data["until"] <= MOST_SECONDS:
        raise BadValue("until", data["until"], f"{path.name}: give seconds above 0, or leave it out")
    if not data.get("jobs"):
        raise BadValue("jobs", None, f"{path.name} has no [[jobs]]; give at least one series")
    series = tuple(reader.series(f"jobs[{i}]", entry) for i, entry in enumerate(data["jobs"]))
    names = [s.id for s in series]
    if len(set(names)) < len(names):
        raise BadValue("jobs.id", names, f"{path.name}: two series have the same id")
    variants = tuple(reader.variant(name, entry, names) for name, entry in data.get("variants", {}).items())
    scenario = Scenario(
        name=path.stem,
        source=path.name,
        title=data.get("title", path.stem),
        look=data.get("look", ""),
        card=data.get("card", "rtx4090"),
        engine=reader.options("engine", data.get("engine", {})),
        cost=reader.costs("cost", data.get("cost", {})),
        series=series,
        variants=variants or (Variant("base"),),
        checks=tuple(data.get("checks", {}).items()),
        until=data.get("until"),
    )
    _try_all(scenario)
    return scenario


def _try_all(scenario: Scenario) -> None:
    for variant in scenario.variants:
        total = sum(variant.jobs.get(series.id, {}).get("count", series.count) for series in scenario.series)
        if total > MOST_JOBS:
            raise BadValue("jobs.count", total, f"{scenario.source}, variant {variant.name}: at most {MOST_JOBS} jobs")
        try:
            scenario.simulation(variant)
        except BadValue as error:
            remedy = f"{scenario.source}, variant {variant.name}: {error.remedy}"
            raise BadValue(error.field, error.value, remedy) from None
    for text, expression in scenario.checks:
        if not isinstance(expression, str):
            raise BadValue(f"checks.{text}", expression, f"{scenario.source}: give an expression as text")
        check_names(scenario.source, [v.name for v in scenario.variants], text, expression)


def run_variant(scenario: Scenario, variant: Variant, card: Card | None = None) -> ScenarioRun:
    """Simulate a variant to its end."""
    simulation = scenario.simulation(variant, card)
    engine = build(simulation)
    ledger = Ledger(engine.meta, keep_gaps=True, keep_spans=True)
    state = engine.watch()
    engine.on_frame(ledger.apply)
    run = ScenarioRun(variant.name, ledger, state)
    asked = times_asked(expression for _, expression in scenario.checks)

    def look(frame: Frame) -> None:
        while asked and frame.time >= asked[0]:
            run.moments[asked.pop(0)] = state.copy()

    engine.on_frame(look)
    until = simulation.until
    while engine.has_unfinished_requests() and (until is None or engine.elapsed < until):
        engine.step()
    engine.flush()
    return run


def run_scenario(
    scenario: Scenario, card: Card | None = None, on_variant: Callable[[str], None] | None = None
) -> tuple[dict[str, ScenarioRun], list[Verdict]]:
    """Run every variant and evaluate every check."""
    runs = {}
    for variant in scenario.variants:
        if on_variant is not None:
            on_variant(variant.name)
        runs[variant.name] = run_variant(scenario, variant, card)
    return runs, [evaluate(text, expression, runs) for text, expression in scenario.checks]


class _Reader:
    """Checks keys and types of one file."""

    def __init__(self, source: str) -> None:
        self.source = source

    def keys(self, where: str, entry: Any, known: Mapping[str, type]) -> None:
        if not isinstance(entry, dict):
            raise BadValue(where, entry, f"{self.source}: give a table")
        for key, value in entry.items():
            name = f"{where}.{key}" if where else key
            if key not in known:
                raise BadValue(name, value, f"{self.source}: no such key{_nearest(key, known)}")
            if not _is_a(value, known[key]):
                raise BadValue(name, value, f"{self.source}: give {_WORDS[known[key]]}")

    def series(self, where: str, entry: Any) -> Series:
        self.keys(where, entry, _SERIES_TYPES)
        for needed in ("id", "prompt", "output"):
            if needed not in entry:
                raise BadValue(f"{where}.{needed}", None, f"{self.source}: every series needs it")
        self._sizes(where, entry)
        return Series(**entry)

    def _sizes(self, where: str, entry: dict[str, Any]) -> None:
        for key in ("prompt", "output", "count", "n", "beam_width", "prefixes", "expected"):
            if key in entry and not 1 <= entry[key] <= 10**7:
                raise BadValue(f"{where}.{key}", entry[key], f"{self.source}: give 1 or more, at most 10,000,000")
        for key in ("at", "every"):
            if key in entry and not 0 <= entry[key] <= MOST_SECONDS:
                raise BadValue(f"{where}.{key}", entry[key], f"{self.source}: give seconds, 0 or more")
        for key in ("timeout", "deadline"):
            if key in entry and not 0 < entry[key] <= MOST_SECONDS:
                raise BadValue(f"{where}.{key}", entry[key], f"{self.source}: give seconds from arrival, above 0")
        if "rate" in entry and not 1 / MOST_SECONDS <= entry["rate"] <= 1e9:
            raise BadValue(f"{where}.rate", entry["rate"], f"{self.source}: give requests per second above 0")
        if "shared" in entry and not 0 <= entry["shared"] <= 10**7:
            raise BadValue(f"{where}.shared", entry["shared"], f"{self.source}: give tokens, 0 (nothing) or more")
        if "priority" in entry and abs(entry["priority"]) > 2**53:
            raise BadValue(f"{where}.priority", entry["priority"], f"{self.source}: give at most 53 bits")

    def variant(self, name: str, entry: Any, series: list[str]) -> Variant:
        where = f"variants.{name}"
        if not name.isidentifier():
            raise BadValue(where, name, f"{self.source}: checks name it, so give letters, digits and _ only")
        self.keys(where, entry, _VARIANT)
        jobs = entry.get("jobs", {})
        for key, changes in jobs.items():
            if key not in series:
                raise BadValue(f"{where}.jobs.{key}", changes, f"{self.source}: no such series{_nearest(key, series)}")
            self.keys(f"{where}.jobs.{key}", changes, _SERIES_TYPES)
            self._sizes(f"{where}.jobs.{key}", changes)
        engine = self.options(f"{where}.engine", entry.get("engine", {}))
        return Variant(name, engine, self.costs(f"{where}.cost", entry.get("cost", {})), jobs)

    def options(self, where: str, entry: Any) -> dict[str, Any]:
        known = [f.name for f in fields(EngineConfig)]
        for key, value in entry.items():
            if key not in known:
                raise BadValue(f"{where}.{key}", value, f"{self.source}: no such option{_nearest(key, known)}")
            if key == OPTION and isinstance(value, str) and FILE_MARK in value:
                raise BadValue(f"{where}.{key}", value, f"{self.source}: {NOT_FROM_DATA}")
            try:
                check_option(key, value)
            except BadValue as error:
                raise BadValue(f"{where}.{key}", value, f"{self.source}: {error.remedy}") from None
        return dict(entry)

    def costs(self, where: str, entry: Any) -> dict[str, float]:
        known = [f.name for f in fields(HingeCost)]
        for key, value in entry.items():
            if key not in known:
                raise BadValue(f"{where}.{key}", value, f"{self.source}: no such time{_nearest(key, known)}")
            if not _is_a(value, float):
                raise BadValue(f"{where}.{key}", value, f"{self.source}: give a number")
        return dict(entry)


_WORDS = {str: "a text", int: "a whole number", float: "a number", dict: "a table", list: "a list of tables"}
_SERIES_TYPES: dict[str, type] = {
    f.name: str if "str" in str(f.type) else float if "float" in str(f.type) else int for f in fields(Series)
}


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind in (int, float) and isinstance(value, (int, float)):  # TOML's are of any size
        return (kind is float or isinstance(value, int)) and abs(value) < 2**63  # false for NaN
    return isinstance(value, kind)


def _nearest(key: str, known: Any) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
