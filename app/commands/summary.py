"""The end of a headless run: a table for people, or one JSON object for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vtop.app.terminal.safe_text import clean
from vtop.engine.events import Meta
from vtop.engine.state.measures import RunSummary, Spread


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
