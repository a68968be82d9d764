"""Calibration: a HingeCost fitted to the measured steps of a recording, and how wrong it is on steps it never saw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from vtop.engine.errors import BadValue
from vtop.engine.sim.cost_model import HingeCost, StepLoad
from vtop.engine.sim.least_squares import Matrix, nonnegative
from vtop.engine.sim.samples import Kind, StepSample
from vtop.engine.state.measures import percentile

MIN_STEPS = 30
HELD_OUT_EVERY = 5  # every so many-th step is kept for judging
MIN_BATCHES = 3  # different numbers of decoding sequences
MIN_PREFILLS = 3  # different sizes of steps that compute prompts
MIN_SPREAD = 1.5  # largest / least, of contexts and of prefill sizes
ALIKE = math.log(1.04)  # loads closer than this share are repetitions of one
ROUNDS = 6
OUTLIER = 2.5  # standard deviations (by the median) from which on a step counts less and less
KNEES = (0.0, *(float(2**k) * f for k in range(3, 15) for f in (1.0, 1.5)))
_SCALE = 1.4826  # median absolute deviation -> standard deviation


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predicted step times: mean and 95th percentile of |error|, and the mean error (bias)."""

    steps: int
    mape: float
    p95: float
    bias: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted cost model with its errors on held-out steps: of all, and by kind of step."""

    cost: HingeCost
    fitted: int
    held_out: Errors
    by_kind: dict[Kind, Errors]


def calibrate(samples: Sequence[StepSample], source: str = "recording") -> Calibration:
    """Fit on four steps of five, of each kind, judge on the fifth. Raises BadValue that says what steps are missing."""
    _check(samples, source)
    seen: list[StepSample] = []
    judged: list[StepSample] = []
    counts: Counter[Kind] = Counter()
    for sample in samples:
        counts[sample.kind] += 1
        (judged if counts[sample.kind] % HELD_OUT_EVERY == 0 else seen).append(sample)
    cost = fit(seen)
    by_kind = {kind: errors(cost, found) for kind in Kind if (found := [s for s in judged if s.kind is kind])}
    return Calibration(cost, len(seen), errors(cost, judged), by_kind)


def errors(cost: HingeCost, samples: Iterable[StepSample]) -> Errors:
    """How wrong `cost` is about measured steps; NaN for none."""
    found = [cost.seconds(replace(s.load, swapped=0)) / s.seconds - 1.0 for s in samples]
    sizes = [abs(error) for error in found]
    count = len(found)
    if not count:
        return Errors(0, math.nan, math.nan, math.nan)
    return Errors(count, math.fsum(sizes) / count, percentile(sizes, 0.95), math.fsum(found) / count)


def _check(samples: Sequence[StepSample], source: str) -> None:
    missing = []
    if len(samples) < MIN_STEPS:
        missing.append(f"{MIN_STEPS} steps (it has {len(samples)})")
    decodes = [s.load for s in samples if s.kind is Kind.DECODE]
    if (found := len({load.decodes for load in decodes})) < MIN_BATCHES:
        missing.append(f"decode-only steps of {MIN_BATCHES} different batch sizes (it has {found})")
    if decodes and _spread([load.context for load in decodes]) < MIN_SPREAD:
        missing.append("decode-only steps with contexts of different lengths")
    prefills = [s.load.tokens - s.load.decodes for s in samples if s.kind is not Kind.DECODE]
    if (found := len(set(prefills))) < MIN_PREFILLS or _spread(prefills) < MIN_SPREAD:
        missing.append(f"steps that compute prompt chunks of {MIN_PREFILLS} clearly different sizes (it has {found})")
    if missing:
        remedy = (
            f"cannot be fitted without {'; '.join(missing)}. Record more, and more varied, work: "
            "vtop run --headless --burst 60 --burst-lengths mixed --max-num-seqs 8 --record FILE"
        )
        raise BadValue("calibrate", source, remedy)


def _spread(values: list[int]) -> float:
    return max(values) / max(1, min(values)) if values else 0.0


# --- the fit -------------------------------------------------------------------------------------------------------


def fit(samples: Sequence[StepSample]) -> HingeCost:
    """The HingeCost nearest to the samples in relative error; the knee is the best of a grid."""
    merged, weights = _merged(samples)
    seconds = np.array([s.seconds for s in merged])
    largest = max(s.load.tokens for s in merged)
    best: tuple[float, float, Matrix] | None = None
    for knee in KNEES:
        if knee >= largest:
            break
        columns = np.array([_columns(s.load, knee) for s in merged])
        found, error = _robust(columns, seconds, weights)
        if best is None or error < best[0] * 0.999:  # a later knee must earn its place
            best = error, knee, found
    assert best is not None
    _, knee, x = best
    if x[2] == 0:
        knee = 0.0
    c0, ct, ch, cd, ck, ca, cow = (float(value) for value in x)
    if c0 + ct <= 0:  # everything was explained by other terms: a step must take time all the same
        c0 = float(seconds.min()) * 1e-3
    return HingeCost(c0, ct, ch, knee, cd, ck, ca, _per_block(samples), cow)


def _columns(load: StepLoad, knee: float) -> list[float]:
    over = max(0.0, load.tokens - knee) if knee else 0.0
    return [1.0, load.tokens, over, load.decodes, load.context, load.area, load.copied]


def _merged(samples: Sequence[StepSample]) -> tuple[list[StepSample], Matrix]:
    """Steps of nearly equal load as one, with the median of their times; and how many each stands for (root of it)."""
    groups: dict[tuple[int, ...], list[StepSample]] = {}
    for sample in samples:
        load = sample.load
        key = (load.decodes, load.copied, *(_bucket(v) for v in (load.tokens, load.context, load.area)))
        groups.setdefault(key, []).append(sample)
    merged = []
    for group in groups.values():
        loads = [s.load for s in group]
        middle = sorted(loads, key=lambda load: load.context)[len(loads) // 2]
        merged.append(StepSample(middle, median(s.seconds for s in group), 0.0))
    return merged, np.sqrt([float(len(group)) for group in groups.values()])


def _bucket(value: float) -> int:
    return int(math.log(value) / ALIKE) if value > 0 else -1


def _robust(columns: Matrix, seconds: Matrix, weights: Matrix) -> tuple[Matrix, float]:
    """Coefficients, and their weighted mean |relative error|.

    Rows are divided by the predicted time, not the measured one: that would favour whatever happened to be quick. Steps
    far from the fit (something else had the machine) count less: Huber's weights.
    """
    scale, trust = seconds, np.ones_like(seconds)
    x = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        factor = weights * np.sqrt(trust) / scale
        x = nonnegative(columns * factor[:, None], seconds * factor)
        predicted = columns @ x
        scale = np.maximum(predicted, 0.2 * seconds)
        residual = np.abs(seconds - predicted) / scale
        limit = OUTLIER * max(_SCALE * float(np.median(residual)), 1e-6)
        trust = np.minimum(1.0, limit / np.maximum(residual, 1e-300))
    share = np.abs(columns @ x - seconds) / seconds
    return x, float((weights**2 * np.minimum(share, 1.0)).sum() / (weights**2).sum())


def _per_block(samples: Sequence[StepSample]) -> float:
    """Seconds per swapped block, over all of them; 0 when nothing was swapped."""
    blocks = sum(s.load.swapped for s in samples)
    return sum(s.swap_seconds for s in samples if s.load.swapped) / blocks if blocks else 0.0
