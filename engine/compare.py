"""Many simulations: policies by rates by seeds, on as many processes as wanted, and their means with confidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from multiprocessing import get_context
from typing import Any

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.ledger import Ledger, RequestRecord, Sample
from vtop.engine.live_options import from_text
from vtop.engine.measures import Limits, Measures
from vtop.engine.simulator import Simulation, simulate

# Student's t for a two-sided 95 % interval, by degrees of freedom; beyond the last it is close to the normal one.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_T95_MANY = 1.96
SPANS_OF = 200  # requests at most of which a Gantt chart is kept


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with options of its own, as in priority:aging_rate=1."""

    label: str
    options: dict[str, Any]

    def apply(self, config: EngineConfig) -> EngineConfig:
        """The configuration with this policy. Raises BadValue."""
        return replace(config, **self.options)


def parse_policies(text: str) -> list[PolicyChoice]:
    """`a,b+c,a:option=value:option=value`. Raises BadValue."""
    choices = []
    known = [f.name for f in fields(EngineConfig)]
    for label in filter(None, (part.strip() for part in text.split(","))):
        name, *settings = label.split(":") if ".py:" not in label else [label]
        options: dict[str, Any] = {"scheduling_policy": name}
        for setting in settings:
            key, sign, value = setting.partition("=")
            key = key.strip().replace("-", "_")
            if not sign:
                raise BadValue("--policies", setting, "give NAME:option=value, as in priority:aging_rate=1")
            if key not in known:
                close = get_close_matches(key, known, n=1)
                nearest = f"; did you mean {close[0]}?" if close else ""
                raise BadValue("--policies", setting, f"there is no option {key}{nearest}")
            options[key] = from_text(key, value.strip())
        choices.append(PolicyChoice(label, options))
    if not choices:
        raise BadValue("--policies", text, "give names of policies, as in fcfs,priority,fair")
    return choices


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation of a comparison."""

    policy: str
    rate: float | None
    seed: int
    simulation: Simulation


@dataclass(slots=True)
class Curves:
    """What plots need of a run; `spans` only of small ones."""

    records: list[RequestRecord]
    series: list[Sample]
    spans: dict[str, list[tuple[float, float, str]]]
    num_blocks: int


@dataclass(slots=True)
class Outcome:
    """A finished case. `wall` is real seconds."""

    policy: str
    rate: float | None
    seed: int
    measures: Measures
    wall: float
    steps: int
    curves: Curves | None = None


@dataclass(slots=True)
class Row:
    """Means over seeds of one policy at one rate, with the half width of their 95 % interval (NaN for one seed)."""

    policy: str
    rate: float | None
    seeds: int
    mean: Measures = field(default_factory=dict)
    half_width: Measures = field(default_factory=dict)


def run_cases(
    cases: Sequence[Case],
    *,
    workers: int = 1,
    limits: Limits | None = None,
    curves: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run them all, in the order given. `progress(done, total)` counts requests of one case, cases of several.

    An error of one case (BadValue) is raised. Raises BadValue for no workers.
    """
    if workers < 1:
        raise BadValue("--workers", workers, "give at least 1")
    if len(cases) == 1:
        return [_run(cases[0], limits, curves, progress)]
    told = progress or (lambda done, total: None)
    told(0, len(cases))
    if workers == 1:
        found = []
        for number, case in enumerate(cases, 1):
            found.append(_run(case, limits, curves, None))
            told(number, len(cases))
        return found
    outcomes: dict[int, Outcome] = {}
    with ProcessPoolExecutor(min(workers, len(cases)), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_run, case, limits, curves, None): i for i, case in enumerate(cases)}
        try:
            for future in as_completed(running):
                outcomes[running[future]] = future.result()
                told(len(outcomes), len(cases))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [outcomes[i] for i in range(len(cases))]


def _run(case: Case, limits: Limits | None, curves: bool, progress: Callable[[int, int], None] | None) -> Outcome:
    simulation = case.simulation
    if curves:
        simulation = replace(simulation, keep_spans=len(simulation.workload.jobs) <= SPANS_OF)
    result = simulate(simulation, progress)
    ledger = result.ledger
    kept = _curves(ledger) if curves else None
    return Outcome(case.policy, case.rate, case.seed, result.measures(limits), result.wall, ledger.counts.steps, kept)


def _curves(ledger: Ledger) -> Curves:
    return Curves(ledger.records, ledger.series, ledger.spans or {}, ledger.num_blocks)


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """One row per policy and rate, in the order in which they first come."""
    groups: dict[tuple[str, float | None], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.policy, outcome.rate), []).append(outcome)
    made = []
    for (policy, rate), members in groups.items():
        row = Row(policy, rate, len(members))
        for name in members[0].measures:
            values = [value for m in members if not math.isnan(value := m.measures[name])]
            row.mean[name], row.half_width[name] = mean_and_half_width(values)
        made.append(row)
    return made


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the half width of its 95 % confidence interval; NaN where there are too few values."""
    count = len(values)
    if not count:
        return math.nan, math.nan
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.nan
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    t = _T95[count - 2] if count - 2 < len(_T95) else _T95_MANY
    return mean, t * deviation / math.sqrt(count)
