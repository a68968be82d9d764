"""What `vtop sim` found: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vtop.app.files import write_file
from vtop.app.terminal.printing import CleanConsole, tell
from vtop.app.terminal.safe_text import cells, clean
from vtop.engine.config import EngineConfig
from vtop.engine.sim.compare import Case, Outcome, Row, rows
from vtop.engine.version import VERSION

Format = Callable[[float], str]
Column = tuple[str, str, Format]
UNBOUNDED = 1000  # cells: wider than any table


def _seconds(value: float) -> str:
    if value < 0.0995:
        return f"{value * 1000:.1f}ms"
    return f"{value:.2f}s" if value < 99.5 else f"{value:.0f}s"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 or value == int(value) else f"{value:.1f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


LATENCY: tuple[Column, ...] = (
    *(
        (f"{title} {part}" if part != "mean" else title, f"{stem}_{part}", _seconds)
        for title, stem in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("e2e", "e2e"))
        for part in ("mean", "p50", "p90", "p99")
    ),
    ("TTFT urgent", "ttft_urgent_mean", _seconds),
    ("TTFT worst group", "ttft_worst_group_mean", _seconds),
    ("TTFT smallest group", "ttft_smallest_group_mean", _seconds),
)
SERVICE: tuple[Column, ...] = (
    ("tok/s", "tokens_per_second", _count),
    ("req/s", "requests_per_second", _number),
    ("goodput", "goodput", _number),
    ("SLO", "slo_met", _share),
    ("preempt", "preemptions", _count),
    ("swaps", "swaps", _count),
    ("tax", "recompute_tax", _share),
    ("KV use", "kv_use", _share),
    ("hit rate", "hit_rate", _share),
    ("e2e cv", "e2e_cv", _number),
    ("Jain", "jain", _number),
    ("time-outs", "timeouts", _count),
    ("refused", "refused", _count),
    ("missed", "deadline_misses", _count),
    ("overtaken", "overtaken", _count),
)
OPTIONAL = frozenset(
    {"swaps", "hit_rate", "jain", "timeouts", "refused", "deadline_misses", "overtaken"}
    | {"ttft_urgent_mean", "ttft_worst_group_mean", "ttft_smallest_group_mean"}
)
"""Columns that are left out when they say nothing."""


def request_counts(cases: Sequence[Case]) -> str:
    """How many requests a run has: "300", or "271 to 322" where rates or seeds give other numbers."""
    counts = [len(case.simulation.workload.jobs) for case in cases]
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def tell_troubles(outcomes: Sequence[Outcome], what: str = "policy") -> int:
    """Print on stderr what the engine told and what was refused, with its case; the exit code: 1 for a failed case.

    `what` is what cases go by: each outcome's `policy` is the name of one.
    """
    for outcome in outcomes:
        rate = "" if outcome.rate is None else f", rate {outcome.rate:g}"
        where = f"{what} {outcome.policy}{rate}, seed {outcome.seed}"
        texts = [note.text for note in outcome.notes]
        texts += [f"{r.count:,} refused ({code}), as in: {r.example}" for code, r in outcome.refusals.items()]
        for text in texts:
            tell(f"vtop: {where}: {text}")
    return int(any(outcome.failed for outcome in outcomes))


def print_tables(console: Console, rows: Sequence[Row]) -> None:
    """Latencies, then throughput and what it cost. Several seeds: mean ± half of the 95 % interval.

    A table that is wider than the terminal goes on below with its further columns; nothing is cut.
    """
    width = console.width
    if not console.is_terminal:  # a file or a pipe has no width
        width, console = UNBOUNDED, CleanConsole(width=UNBOUNDED, file=console.file)
    for title, columns in (("latency", LATENCY), ("throughput, memory, fairness", SERVICE)):
        shown = [column for column in columns if column[1] not in OPTIONAL or _tells(column[1], rows)]
        while shown:
            count = _fitting(rows, shown, width)
            table = _table(title, rows, shown[:count])
            console.print(table, crop=False, no_wrap=True)
            shown, title = shown[count:], ""


def _fitting(rows: Sequence[Row], columns: Sequence[Column], width: int) -> int:
    """How many of the columns fit beside policy and rate, at least one."""
    left = width - 2 - max(6, *(cells(row.policy) for row in rows)) - 10
    for count, (name, key, form) in enumerate(columns):
        left -= 3 + max(len(name), *(len(_cell(row, key, form)) for row in rows))
        if left < 0:
            return max(1, count)
    return len(columns)


def _table(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    with_rates = any(row.rate is not None for row in rows)
    table.add_column("policy", no_wrap=True)
    if with_rates:
        table.add_column("rate", justify="right")
    for name, _, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        first = [Text(clean(row.policy))] + ([Text("" if row.rate is None else f"{row.rate:g}")] if with_rates else [])
        table.add_row(*first, *(Text(_cell(row, key, form)) for _, key, form in columns))
    return table


def _tells(key: str, rows: Sequence[Row]) -> bool:
    plain = 1.0 if key == "jain" else 0.0
    return any(not math.isnan(value := row.mean[key]) and abs(value - plain) > 1e-9 for row in rows)


def _cell(row: Row, key: str, form: Format) -> str:
    value, half = row.mean[key], row.half_width[key]
    if math.isnan(value):
        return "-"
    return form(value) if math.isnan(half) else f"{form(value)} ±{form(half)}"


def as_json(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> str:
    """One object: what ran, every run, and the means over seeds. A number that is not there is null.

    `config` of a run holds every option of the engine as that run had it; the one at the top those that all runs share.
    """
    card = cases[0].simulation.card
    configs = [case.simulation.config for case in cases]
    data: dict[str, Any] = {
        "version": VERSION,
        "card": card.name,
        "model": card.shape.name,
        "config": shared_options(configs),
        "runs": [
            {"policy": o.policy, "rate": o.rate, "seed": o.seed, "wall_seconds": o.wall, **run_json(o, config)}
            for o, config in zip(outcomes, configs, strict=True)
        ],
        "rows": [
            {
                "policy": row.policy,
                "rate": row.rate,
                "seeds": row.seeds,
                "mean": _clean(row.mean),
                "half_width": _clean(row.half_width),
            }
            for row in rows(outcomes)
        ],
    }
    return json.dumps(data, default=str, allow_nan=False)


def write_csv(path: Path, outcomes: Sequence[Outcome]) -> None:
    """One line per run. Raises BadValue."""
    names = list(outcomes[0].measures)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["policy", "rate", "seed", *names])
    for o in outcomes:
        values = ["" if math.isnan(v) else f"{v:.9g}" for v in o.measures.values()]
        writer.writerow([o.policy, "" if o.rate is None else f"{o.rate:g}", o.seed, *values])
    write_file("--csv", path, text.getvalue().encode("utf-8", "backslashreplace"))


def shared_options(configs: Sequence[EngineConfig]) -> dict[str, Any]:
    """The options of the engine that have one value in all of `configs`, which are not empty."""
    first, *others = map(asdict, configs)
    return {name: value for name, value in first.items() if all(other[name] == value for other in others)}


def run_json(outcome: Outcome, config: EngineConfig) -> dict[str, Any]:
    """The options of a run, what was told of it, and its measures."""
    return {
        "config": asdict(config),
        "notes": [{"level": note.level, "text": note.text} for note in outcome.notes],
        "refusals": {code: asdict(refusals) for code, refusals in outcome.refusals.items()},
        **_clean(outcome.measures),
    }


def _clean(measures: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in measures.items()}
