"""`vtop run --headless`: the engine without a screen, and a summary of what happened."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vtop.app.commands.run import RunArguments, Work
from vtop.app.commands.unattended import report_stuck_calls
from vtop.app.options import AppConfig
from vtop.app.settings import Settings
from vtop.app.terminal.printing import CleanConsole, progress_console, put, tell
from vtop.app.terminal.safe_text import clean
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue, VtopError
from vtop.engine.events import Meta
from vtop.engine.events.journal import Recorder
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop.engine.state.measures import RunSummary, Spread, summarise

NOTHING_COMPUTED = 120.0  # seconds without a computed token: nothing comes any more, and no policy waits that long
IDLE_PAUSE = 0.02  # seconds between two steps that compute nothing
KEEP_FINISHED = 200_000  # requests whose latencies the summary is made of


def run_headless(settings: Settings, arguments: RunArguments) -> int:
    """Run everything, print the summary. Returns the exit code.

    It is 130 after SIGINT, and 1 when a step or a request failed or when no request was accepted.
    """
    work = arguments.work()
    engine_config, app_config = settings.engine_config(), settings.app_config()
    if work.empty:
        raise BadValue("--headless", "nothing to run", "give --prompt, --prompts FILE or --burst N")
    with report_stuck_calls("Ctrl-C, then once more, ends it"):
        return _load_and_drive(engine_config, app_config, work, arguments.json)


def _load_and_drive(engine_config: EngineConfig, app_config: AppConfig, work: Work, as_json: bool) -> int:
    with progress_console().status("loading") as status:

        def progress(stage: str, done: int, total: int | None) -> None:
            status.update(Text(clean(f"{stage} {done}/{total}" if total else stage)))

        try:
            engine = LLMEngine.from_config(engine_config, progress=progress)
        except VtopError:
            raise
        except Exception as error:  # libraries raise what they like; a user gets one line
            raise VtopError(f"model {engine_config.model!r} cannot be loaded: {_one_line(error)}") from error
    try:
        return drive(engine, app_config, work, as_json=as_json, seed=engine_config.seed)
    finally:
        engine.close()


def drive(engine: Any, app_config: AppConfig, work: Work, *, as_json: bool, seed: int = 0) -> int:
    """The same with an engine that is there already."""
    state = EngineState(engine.meta, keep_finished=KEEP_FINISHED)
    engine.on_frame(state.apply)
    recorder = None if work.record is None else Recorder(work.record, engine.meta)
    if recorder is not None:
        engine.on_frame(recorder.write)
    params = SamplingParams(max_tokens=app_config.max_tokens, temperature=app_config.temperature)
    try:
        with _interruptible() as interrupted, engine.clock.watched():
            _add_all(engine, work, params, seed, app_config.cache_salt)
            stopped = _step_all(engine, work, app_config.speed, interrupted)
            engine.flush()
    finally:
        if recorder is not None:
            recorder.close()
    summary = summarise(state)
    cut = bool(interrupted or stopped)
    if stopped:
        tell(f"vtop: engine stopped: {stopped}")
    unrecorded = "" if recorder is None else recorder.error
    if unrecorded:
        tell(f"vtop: {unrecorded}")
    if as_json:
        put(summary_json(summary, engine.meta, interrupted=cut))
    else:
        for refused in state.refused:
            tell(f"vtop: request {refused.id} refused: {refused.message}")
        print_summary(CleanConsole(), summary, engine.meta, interrupted=cut)
    if interrupted:
        return 128 + interrupted[0]
    none_ran = not summary.arrived and state.totals.refused
    failed = summary.failed_steps or summary.outcomes.get("failed") or none_ran
    return 1 if stopped or unrecorded or failed else 0


def _add_all(engine: Any, work: Work, params: SamplingParams, seed: int, cache_salt: str) -> None:
    for request_id, prompt in work.all_prompts(seed):
        try:
            engine.add_request(request_id, prompt, params, cache_salt=cache_salt)
        except BadValue:
            continue  # told as a Refused event, and shown with the summary


def _step_all(engine: Any, work: Work, speed: float | None, interrupted: list[int]) -> str:
    """Step until all is done, time is up, or an interrupt came. Returns what stopped the engine, if something did."""
    until = None if work.duration is None else engine.clock.now() + work.duration
    interval = 1.0 / speed if speed else 0.0
    due = time.monotonic()
    idle_since: float | None = None
    while engine.has_unfinished_requests() and not interrupted:
        if until is not None and engine.clock.now() >= until:
            return ""
        now = time.monotonic()
        if now < due:
            time.sleep(min(due - now, 0.1))  # short, so that an interrupt or the end of the duration is seen
            continue
        try:
            engine.step()
        except Exception as error:
            return _one_line(error)
        if interval:
            due = max(due + interval, now)
        if engine.last_step_ran:
            idle_since = None
        elif idle_since is None:
            idle_since = now
        elif now - idle_since < NOTHING_COMPUTED or engine.config.request_timeout is not None:
            due = max(due, now + IDLE_PAUSE)  # time alone may still change something; a time-out will
        else:
            return f"deadlock: nothing was computed for {NOTHING_COMPUTED:g} s, and nothing comes"
    return ""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM is noted and ends the run after the step; a second one ends it at once."""
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def summary_json(summary: RunSummary, meta: Meta, *, interrupted: bool) -> str:
    """One line of JSON: the fields of RunSummary, what ran, and whether it was cut short."""
    data: dict[str, Any] = {
        "version": meta.version,
        "model": meta.model,
        "device": meta.device,
        "dtype": meta.dtype,
        "backend": meta.backend,
        "backend_note": meta.backend_note,
        "compile_note": meta.compile_note,
        "kv_note": meta.kv_note,
        "host_note": meta.host_note,
        "block_size": meta.block_size,
        "config": meta.config,
        "interrupted": interrupted,
        **asdict(summary),
    }
    return json.dumps(data, default=str)


def print_summary(console: Console, summary: RunSummary, meta: Meta, *, interrupted: bool) -> None:
    """Print the tables."""
    outcomes = ", ".join(f"{count:,} {reason}" for reason, count in summary.outcomes.items()) or "none ended"
    if summary.unfinished:
        outcomes += f", {summary.unfinished:,} unfinished"
    accepted = f"{summary.arrived:,} accepted"
    if summary.sequences != summary.arrived:
        accepted += f" ({summary.sequences:,} sequences)"
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    rows = [
        ("model", f"{meta.model} on {meta.device}, {meta.dtype}, attention {meta.backend}"),
        *[("", clean(note)) for note in (meta.backend_note, meta.compile_note) if note],
        ("requests", f"{accepted}: {outcomes}"),
        ("tokens", f"{summary.prompt_tokens:,} prompt, {summary.output_tokens:,} output"),
        (
            "speed",
            f"{summary.output_tokens_per_second:,.1f} output tokens/s, {summary.requests_per_second:,.2f} requests/s, "
            f"{summary.steps:,} steps in {summary.seconds:,.2f} s",
        ),
        (
            "preemption",
            f"{summary.preemptions:,} of {summary.preempted_requests:,} requests, {summary.tokens_lost:,} tokens lost, "
            f"recompute tax {summary.recompute_tax:.1%}",
        ),
        (
            "KV peak",
            f"{summary.peak_blocks:,} of {summary.num_blocks:,} blocks of {meta.block_size} tokens "
            f"({summary.peak_kv:.0%})",
        ),
        ("KV use", f"{summary.mean_kv:.1%} on average, slots of used blocks {summary.fill:.1%} filled"),
        *([("", clean(meta.kv_note))] if meta.kv_note else []),
    ]
    if summary.failed_steps:
        rows.append(("failures", f"{summary.failed_steps:,} steps failed"))
    if interrupted:
        rows.append(("cut short", "interrupted; this is the run so far"))
    for name, text in rows:
        facts.add_row(Text(name), Text(text))
    console.print(Group(facts, Text(""), _latencies(summary)) if summary.ttft else facts)


def _latencies(summary: RunSummary) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    table.add_column("ms", style="dim")
    for name in ("p50", "p90", "p99", "mean", "most"):
        table.add_column(name, justify="right")
    for name, values in (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("E2E", summary.e2e)):
        if values is not None:
            table.add_row(name, *_milliseconds(values))
    return table


def _milliseconds(values: Spread) -> list[str]:
    return [f"{value * 1000:,.1f}" for value in (values.p50, values.p90, values.p99, values.mean, values.most)]
