"""Many simulations: policies by rates by seeds, on as many processes as wanted, and their means with confidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from vtop.engine.errors import BadValue
from vtop.engine.events import Note
from vtop.engine.sim.processes import run_on_processes
from vtop.engine.sim.simulator import Simulation, simulate
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import Limits, Measures
from vtop.engine.state.records import Refusals, RequestRecord, Sample

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1; then for 120, and for ever more of them.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T95_120, _T95_MANY = 1.980, 1.960
SPANS_OF = 200  # requests at most of which a Gantt chart is kept


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation of a comparison. `low_first`: which priority is urgent in all of it; None: as this run has it."""

    policy: str
    rate: float | None
    seed: int
    simulation: Simulation
    low_first: bool | None = None


@dataclass(slots=True)
class Curves:
    """What plots need of a run; `spans` only of small ones."""

    records: list[RequestRecord]
    series: list[Sample]
    spans: dict[str, list[tuple[float, float, str]]]
    num_blocks: int


@dataclass(slots=True)
class Outcome:
    """A finished case. `wall` is real seconds; `notes` are warnings and errors, `refusals` go by their code."""

    policy: str
    rate: float | None
    seed: int
    measures: Measures
    wall: float
    steps: int
    curves: Curves | None = None
    notes: list[Note] = field(default_factory=list)
    refusals: dict[str, Refusals] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the numbers are not of what was asked for: an error was told, or every request was refused."""
        refused = sum(refusals.count for refusals in self.refusals.values())
        return any(note.level == "error" for note in self.notes) or 0 < refused == self.measures["requests"]


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
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Outcome]:
    """Run them all, in the order given. `progress(done, total)` counts requests of one case, cases of several.
    `around` is entered by the main thread of other processes while one runs a case; it must be picklable.

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

    def done(index: int, outcome: Outcome) -> None:
        outcomes[index] = outcome
        told(len(outcomes), len(cases))

    run_on_processes(partial(_run_around, around=around, limits=limits, curves=curves), cases, workers, done)
    return [outcomes[i] for i in range(len(cases))]


def _run_around(
    case: Case, around: Callable[[], AbstractContextManager[None]], limits: Limits | None, curves: bool
) -> Outcome:
    with around():
        return _run(case, limits, curves, None)


def _run(case: Case, limits: Limits | None, curves: bool, progress: Callable[[int, int], None] | None) -> Outcome:
    simulation = case.simulation
    if curves:
        simulation = replace(simulation, keep_spans=len(simulation.workload.jobs) <= SPANS_OF)
    result = simulate(simulation, progress)
    ledger = result.ledger
    kept = _curves(ledger) if curves else None
    return Outcome(
        case.policy,
        case.rate,
        case.seed,
        result.measures(limits, case.low_first),
        result.wall,
        ledger.totals.steps,
        kept,
        result.notes,
        ledger.refusals,
    )


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
    return mean, student_t(count - 1) * deviation / math.sqrt(count)


def student_t(freedom: int) -> float:
    """Student's t for a two-sided 95 % interval. It is nearly straight over 1 / degrees of freedom."""
    last = len(_T95)
    if freedom <= last:
        return _T95[freedom - 1]
    if freedom < 120:
        return _T95_120 + (_T95[-1] - _T95_120) * (1 / freedom - 1 / 120) / (1 / last - 1 / 120)
    return _T95_MANY + (_T95_120 - _T95_MANY) * 120 / freedom
