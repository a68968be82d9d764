"""Calibration: a HingeCost fitted to the measured steps of a recording, and how wrong it is on steps it never saw.

The steps of a recording are read as samples, the fit is judged on every fifth of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

import numpy as np
from numpy.typing import NDArray

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.events import FAULTS, MOST_SAMPLES, inconsistent
from vtop.engine.events.journal import Recording
from vtop.engine.sim.cost_model import HingeCost, StepLoad
from vtop.engine.state.measures import percentile

Matrix = NDArray[np.float64]

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
_SLACK = 1e-10  # of the largest gradient: what counts as no descent any more


# --- steps of a recording --------------------------------------------------------------------------------------


class Kind(StrEnum):
    """What a step computed."""

    DECODE = "decode only"
    PREFILL = "prefill only"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step; seconds of the whole of it without swaps, and of the swaps."""

    load: StepLoad
    seconds: float
    swap_seconds: float

    @property
    def kind(self) -> Kind:
        if self.load.decodes == self.load.tokens:
            return Kind.DECODE
        return Kind.MIXED if self.load.decodes else Kind.PREFILL


def step_samples(recording: Recording) -> list[StepSample]:
    """The steps that computed something, in order; failed ones are left out. Raises BadValue, InconsistentFrame."""
    tracker = _Tracker()
    return [sample for frame in recording.frames() if (sample := tracker.apply(frame)) is not None]


class _Tracker:
    """How much of every sequence is computed: less than EngineState knows, and enough for a StepLoad."""

    def __init__(self) -> None:
        self._prompts: dict[str, int] = {}
        self._computed: dict[tuple[str, int], int] = {}
        self._samples: dict[str, int] = {}

    def apply(self, frame: ev.Frame) -> StepSample | None:
        load, times, failed = StepLoad(), None, False
        for event in frame.events:
            try:
                match event:
                    case ev.Arrived():
                        if not 0 < event.samples <= MOST_SAMPLES:
                            raise ValueError(f"{event.samples} samples")
                        self._prompts[event.id] = event.prompt_tokens
                        self._samples[event.id] = event.samples
                    case ev.PrefixLookup():
                        self._computed[event.id, event.seq] = event.hit
                    case ev.BlocksFreed():
                        self._computed.pop((event.id, event.seq), None)
                    case ev.Forked():
                        parent = self._computed.get((event.id, event.parent), 0)
                        shared = parent if event.prompt_tokens is None else event.prompt_tokens
                        self._computed[event.id, event.child] = shared
                    case ev.SwappedOut() | ev.SwappedIn():
                        load.swapped += len(event.pairs)
                    case ev.SwapOutFailed():
                        for seq in range(self._samples.get(event.id, 1)):
                            self._computed.pop((event.id, seq), None)
                    case ev.CopiedOnWrite():
                        load.copied += 1
                    case ev.Scheduled():
                        self._schedule(event, load)
                    case ev.StepTimes():
                        times = event
                    case ev.StepFailed():
                        failed = True
                    case ev.Finished():
                        self._forget(event.id)
            except FAULTS as error:
                raise inconsistent(frame, event, error) from error
        if times is None or failed or not load.tokens:
            return None
        whole = times.schedule + times.prepare + times.model + times.sample + times.commit
        if frame.began is not None:
            whole = frame.time - frame.began - times.swap
        return StepSample(load, whole, times.swap) if whole > 0 else None

    def _schedule(self, event: ev.Scheduled, load: StepLoad) -> None:
        for request_id, seq, count in zip(event.ids, event.seqs or [0] * len(event.ids), event.tokens, strict=True):
            start = self._computed.get((request_id, seq), 0)
            self._computed[request_id, seq] = start + count
            load.tokens += count
            if count == 1 and start + 1 >= self._prompts.get(request_id, 0):  # what StepLoad.of calls a decode
                load.decodes += 1
                load.context += start + 1
            else:
                load.area += count * (start + count / 2)
                load.prefill_context += start + count

    def _forget(self, request_id: str) -> None:
        self._prompts.pop(request_id, None)
        for seq in range(self._samples.pop(request_id, 1)):
            self._computed.pop((request_id, seq), None)


# --- calibration -----------------------------------------------------------------------------------------------


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


# --- least squares ---------------------------------------------------------------------------------------------


def nonnegative(rows: Matrix, wanted: Matrix) -> Matrix:
    """The x of 0 or more for which |rows · x - wanted| is least (Lawson and Hanson's active-set method).

    Columns may differ in size by many orders of magnitude; they are brought to length 1 first.
    """
    lengths = np.linalg.norm(rows, axis=0)
    lengths[lengths == 0] = 1.0
    scaled = rows / lengths
    count = scaled.shape[1]
    x = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    gradient = scaled.T @ wanted
    enough = _SLACK * max(1.0, float(np.abs(gradient).max(initial=0.0)))
    for _ in range(3 * count):
        rising = np.where(free, -np.inf, gradient)
        if free.all() or rising.max() <= enough:
            break
        free[int(rising.argmax())] = True
        x = _settled(scaled, wanted, x, free)
        gradient = scaled.T @ (wanted - scaled @ x)
    found: Matrix = x / lengths
    return found


def _settled(rows: Matrix, wanted: Matrix, x: Matrix, free: NDArray[np.bool_]) -> Matrix:
    """Solve for the free ones; those that would fall below 0 are fixed there, one after the other."""
    while True:
        goal = np.zeros_like(x)
        goal[free] = np.linalg.lstsq(rows[:, free], wanted, rcond=None)[0]
        falling = free & (goal <= 0)
        if not falling.any():
            return goal
        shares = x[falling] / np.maximum(x[falling] - goal[falling], np.finfo(float).tiny)
        x = x + float(shares.min()) * (goal - x)
        free &= ~(falling & (x <= 1e-15))
        x[~free] = 0.0
        if not free.any():
            return x
