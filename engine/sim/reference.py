"""A simulation against the run that it copies: errors as they are, and after one scale was fitted.

Both sides are averaged over the same requests: those that were measured and that came to their end in the simulation.

The scale multiplies every forward pass. It is fitted on every other request by mean TPOT, which is nearly proportional
to it (TTFT near saturation multiplies an error of the steps three to six times), and judged on the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.events.journal import Recording
from vtop.engine.policy_spec import FILE_MARK, NOT_FROM_DATA, OPTION
from vtop.engine.request import FinishReason
from vtop.engine.sim.cards import Card, find_card, scaled
from vtop.engine.sim.simulator import SimResult, Simulation, simulate
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import SHARES, completed, mean, percentile, recompute_tax
from vtop.engine.state.records import RequestRecord
from vtop.engine.traces.read import MeasuredRequest, read_measured, shipped_settings, shipped_trace, trace_format
from vtop.engine.user_files import read_toml
from vtop.engine.workload.jobs import Job, Workload

METRICS = ("ttft", "tpot", "e2e")
CALIBRATED_BOUND = 0.05
UNCALIBRATED_BOUND = 0.10
NULL_BLOCK = 1  # vLLM V1 counts it among its blocks, and no request gets it
ROUNDS = 5  # simulations at most to find the scale
CLOSE = 0.003  # relative error of the fitted mean that is good enough
MOST_LEFT_OUT = 0.01  # of the measured requests; a simulation that does not finish more of them is none of the run

# Uncalibrated bounds; None where the card alone is known not to come near: its launch overhead is not in the profile.
REFERENCES: dict[str, float | None] = {"rtx4090": 0.08, "rtxpro6000": None}


@dataclass(frozen=True, slots=True)
class Pair:
    """What to simulate, and what was measured, by id. `since` says from when the measured times count."""

    name: str
    simulation: Simulation
    measured: Mapping[str, RequestRecord]
    since: str
    notes: tuple[str, ...] = ()
    bound: float | None = UNCALIBRATED_BOUND
    calibrated_bound: float | None = CALIBRATED_BOUND


@dataclass(frozen=True, slots=True)
class Line:
    """One number: `metric` (ttft, tpot, e2e), `part` (mean, p50 …), seconds; no bound: for information."""

    metric: str
    part: str
    measured: float
    simulated: float
    bound: float | None = None

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1.0 if self.measured else math.nan

    @property
    def ok(self) -> bool:
        """False for NaN as well."""
        return self.bound is None or abs(self.error) <= self.bound


@dataclass(frozen=True, slots=True)
class Replay:
    """A simulated run. `requests` were compared; `left_out` were measured and have no end here, by what became of them.
    `recompute_tax`: tokens computed more than once, of all computed. `troubles`: what the engine told as errors."""

    lines: tuple[Line, ...]
    requests: int
    steps: int
    preemptions: int
    recompute_tax: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        left = sum(self.left_out.values())
        few = left <= MOST_LEFT_OUT * (left + self.requests)
        return few and not self.troubles and all(line.ok for line in self.lines)


@dataclass(frozen=True, slots=True)
class Report:
    """`plain` is of all requests; `fitted` of those that the scale was not fitted on, None with fewer than two."""

    pair: Pair
    plain: Replay
    scale: float
    fitted: Replay | None

    @property
    def ok(self) -> bool:
        return self.plain.ok and (self.fitted is None or self.fitted.ok)


# --- pairs ---------------------------------------------------------------------------------------------------------


def reference_pair(name: str) -> Pair:
    """A recorded vLLM run that comes with vtop, on the card of that name. Raises BadValue that lists the names."""
    if name not in REFERENCES:
        raise BadValue("--reference", name, f"choose one of {', '.join(REFERENCES)}")
    measured = sorted(read_measured(shipped_trace(name)), key=lambda r: r.queued)
    path = shipped_settings(name)
    settings = read_toml("reference", path) if path is not None else {}
    settings.pop("model", None)  # the card's
    blocks = settings.pop("num_gpu_blocks", None)
    size = int(settings.get("block_size", 16))
    if blocks is None:
        total = sum(-(-(r.prompt_tokens + r.output_tokens) // size) for r in measured)
        note = f"{total:,} blocks, which hold the whole run: the size of the pool is not known, and it was never full"
    else:
        total = blocks - NULL_BLOCK
        note = f"{total:,} blocks of {size} tokens: {blocks:,}, one of which vLLM keeps as its null block"
    start = measured[0].queued
    jobs = tuple(Job(r.id, r.queued - start, r.prompt_tokens, r.output_tokens) for r in measured)
    config = EngineConfig(num_gpu_blocks_override=total, **settings)
    return Pair(
        name,
        Simulation(Workload(name, jobs), config, find_card(name)),
        {r.id: _record(r, r.queued) for r in measured},
        "requests arrive when vLLM's engine queued them (queued_ts), and TTFT and e2e count from there",
        (note,),
        REFERENCES[name],
    )


def against_pair(
    workload: Workload,
    against: Path,
    card: Card,
    config: EngineConfig,
    bound: float | None = UNCALIBRATED_BOUND,
    calibrated_bound: float | None = CALIBRATED_BOUND,
) -> Pair:
    """A workload, and what a real engine did with it: a request log of vLLM, or a recording of vtop. Raises BadValue.

    Options that `config` leaves at their defaults are those of the recording.
    """
    notes: tuple[str, ...] = ()
    if trace_format(against).name == "vtop-recording":
        recording = Recording(against)
        ledger = Ledger(recording.meta)
        for frame in recording.frames():
            ledger.apply(frame)
        measured = _ended(ledger.records)
        config = recorded_config(recording, config)
        since = "arrivals are the trace's; measured times count from the arrival at the engine"
        notes += _hit_notes(ledger, workload)
    else:
        measured = {r.id: _record(r, r.arrival) for r in read_measured(against)}
        since = "arrivals are the trace's; measured TTFT and e2e count from arrival_time, brought to queued_ts's clock"
    times, more = _matched(workload, measured, against)
    pair = Pair(workload.name, Simulation(workload, config, card), times, since, notes + more, bound, calibrated_bound)
    for job in workload.jobs:
        if job.beam_width is not None or job.n > 1:
            raise BadValue("--trace", workload.name, f"{job.id!r} has several samples; compare requests of one")
    return pair


def _hit_notes(ledger: Ledger, workload: Workload) -> tuple[str, ...]:
    """What a recording computed less, because prompts shared beginnings that its trace does not tell."""
    hit, of = ledger.totals.hit_tokens, ledger.totals.looked_up_tokens
    if not hit or any(job.prefix for job in workload.jobs):
        return ()
    return (
        f"{hit:,} of {of:,} prompt tokens were prefix hits, which the simulation computes: it knows no shared text",
    )


def recorded_config(recording: Recording, config: EngineConfig) -> EngineConfig:
    """The options of a recording, but those of `config` that are not at their defaults. Raises BadValue."""
    known = {f.name for f in fields(EngineConfig)}
    meta = recording.meta
    values: dict[str, Any] = {name: value for name, value in meta.config.items() if name in known}
    values["num_gpu_blocks_override"] = meta.num_blocks
    values["num_host_blocks_override"] = meta.num_host_blocks
    values["max_model_len"] = meta.max_model_len
    values["max_num_batched_tokens"] = meta.token_budget
    default = EngineConfig(preset=config.preset)
    if config.preset != EngineConfig().preset:
        values = {n: v for n, v in values.items() if n in _SIZES}
        values["preset"] = config.preset
    for name in known - {"preset"}:
        if getattr(config, name) != getattr(default, name):
            values[name] = getattr(config, name)
        elif name == OPTION and FILE_MARK in str(values.get(name)):
            raise BadValue(name, values[name], f"{recording.path.name}: {NOT_FROM_DATA}")
    return EngineConfig(**values)


# what stays the recording's when another preset is asked for: machine and limits, not rules
_SIZES = frozenset(
    {
        "block_size", "num_gpu_blocks_override", "num_host_blocks_override", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "enable_prefix_caching", "request_timeout", "seed",
    }
)  # fmt: skip


def _matched(
    workload: Workload, measured: Mapping[str, RequestRecord], path: Path
) -> tuple[dict[str, RequestRecord], tuple[str, ...]]:
    """Measured requests by the ids of the workload: by equal ids, else by order when there are as many."""
    jobs = workload.jobs
    common = [job for job in jobs if job.id in measured]
    notes = []
    pairs = [(job, measured[job.id]) for job in common]
    if not common and len(jobs) == len(measured):
        pairs = list(zip(jobs, measured.values(), strict=True))
        notes.append("no ids are shared; requests were matched in order of arrival")
    if not pairs:
        remedy = f"has no request of trace {workload.name}; give the run that the trace is of"
        raise BadValue("--against", str(path), remedy)
    if len(pairs) < len(jobs):
        notes.append(f"{len(jobs) - len(pairs):,} of {len(jobs):,} requests were not measured to their end: left out")
    other = sum(1 for j, r in pairs if (j.prompt_tokens, j.output_tokens) != (r.prompt_tokens, r.output_tokens))
    if other:
        notes.append(f"{other:,} of {len(pairs):,} requests have other lengths in the trace than in the measured run")
    return {job.id: record for job, record in pairs}, tuple(notes)


def _record(r: MeasuredRequest, arrival: float) -> RequestRecord:
    """What was measured, with times that count from `arrival`."""
    record = RequestRecord(r.id, 0, arrival, r.prompt_tokens, "default", 0, 1)
    record.first_token, record.last_token, record.ended = r.first_token, r.last_token, r.last_token
    record.output_tokens, record.finish_reason = r.output_tokens, FinishReason.LENGTH.value
    return record


def _ended(records: Iterable[RequestRecord]) -> dict[str, RequestRecord]:
    """Those that came to their end with output, by id."""
    return {r.id: r for r in completed(records) if r.first_token is not None}


# --- comparing -----------------------------------------------------------------------------------------------------


def check(pair: Pair, progress: Callable[[str], None] | None = None) -> Report:
    """Simulate as it is, then with the fitted scale. `progress` is told what runs."""
    tell = progress or (lambda text: None)
    tell("uncalibrated")
    result = simulate(pair.simulation)
    ids = [job.id for job in pair.simulation.workload.jobs if job.id in pair.measured]
    plain = _replay(pair, result, ids, pair.bound, SHARES)
    even, odd = ids[::2], ids[1::2]
    if not odd:
        return Report(pair, plain, 1.0, None)
    scale, result = _fitted(pair, result, even, tell)
    return Report(pair, plain, scale, _replay(pair, result, odd, pair.calibrated_bound, ()))


def _fitted(pair: Pair, result: SimResult, ids: Sequence[str], tell: Callable[[str], None]) -> tuple[float, SimResult]:
    """The scale at which the mean of these requests is as measured: secants of its logarithm, from 1."""
    metric = "tpot" if any(pair.measured[i].tpot is not None for i in ids) else "e2e"
    card = pair.simulation.card
    scale, slope = 1.0, 1.0
    gap = _gap(pair, result, ids, metric)
    best = abs(gap), scale, result
    for _ in range(ROUNDS):
        if abs(gap) < CLOSE:
            break
        change = max(-1.0, min(1.0, gap / slope))
        scale *= math.exp(change)
        tell(f"step times x {scale:.4f}")
        result = simulate(replace(pair.simulation, card=scaled(card, scale)))
        left = _gap(pair, result, ids, metric)
        slope = max(0.5, min(4.0, (gap - left) / change))  # a queue that grows makes it more than proportional
        gap = left
        if abs(gap) < best[0]:
            best = abs(gap), scale, result
    return best[1], best[2]


def _gap(pair: Pair, result: SimResult, ids: Sequence[str], metric: str) -> float:
    """The logarithm of measured / simulated. Raises BadValue when there is nothing to compare."""
    real, ours = _both(pair.measured, _ended(result.ledger.records), ids, metric)
    if not real:
        raise BadValue("--against", metric, "no compared request came to its end in the simulation; give more blocks")
    measured, simulated = mean(real), mean(ours)
    if not (measured > 0 and simulated > 0):
        remedy = f"took {measured:g} s measured and {simulated:g} s simulated; give a run whose tokens take time"
        raise BadValue("--against", metric, remedy)
    return math.log(measured / simulated)


def _replay(
    pair: Pair, result: SimResult, ids: Sequence[str], bound: float | None, shares: Sequence[tuple[str, float]]
) -> Replay:
    simulated = _ended(result.ledger.records)
    lines = []
    for metric in METRICS:
        real, ours = _both(pair.measured, simulated, ids, metric)
        if real:
            lines.append(Line(metric, "mean", mean(real), mean(ours), bound))
            lines += [Line(metric, part, percentile(real, share), percentile(ours, share)) for part, share in shares]
    totals = result.ledger.totals
    tax = recompute_tax(totals)
    ends = {r.id: r.finish_reason or "not finished" for r in result.ledger.records}
    left_out = Counter(ends.get(i, "refused") for i in ids if i not in simulated)
    troubles = tuple(note.text for note in result.notes if note.level == "error")
    compared = len(ids) - left_out.total()
    return Replay(tuple(lines), compared, totals.steps, totals.preemptions, tax, dict(left_out), troubles)


def _both(
    measured: Mapping[str, RequestRecord], simulated: Mapping[str, RequestRecord], ids: Sequence[str], metric: str
) -> tuple[list[float], list[float]]:
    """Measured and simulated values of the requests that have both."""
    real, ours = [], []
    for i in ids:
        if i in simulated:
            one, other = getattr(measured[i], metric), getattr(simulated[i], metric)
            if one is not None and other is not None:
                real.append(one)
                ours.append(other)
    return real, ours
