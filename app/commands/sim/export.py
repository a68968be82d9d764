"""Results of `vtop sim` for programs: JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vtop.app.files import write_file
from vtop.engine.config import EngineConfig
from vtop.engine.sim.compare import Case, Outcome, rows
from vtop.engine.version import VERSION


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
