"""The small dialogs: inject, burst, resize, priority; each is a form and what it makes."""

from __future__ import annotations

from dataclasses import replace

from vtop.app.live.burst import MAX_BURST, MAX_WORDS, Lengths
from vtop.app.live.inject import Burst, Wanted
from vtop.app.screens.form import Field, FormScreen, number, whole
from vtop.engine.errors import BadValue
from vtop.engine.fields import MOST_BLOCKS, MOST_COUNT
from vtop.engine.request import SamplingParams

_MANY = 2**31 - 1
MAX_SAMPLES = 64


def inject_form(params: SamplingParams) -> FormScreen[Wanted]:
    """Ask for one prompt and how to run it."""

    def make(values: dict[str, str]) -> Wanted:
        if not values["prompt"].strip():
            raise BadValue("prompt", values["prompt"], "type something")
        seed = values["seed"].strip()
        return Wanted(
            prompt=values["prompt"],
            params=replace(
                params,
                max_tokens=whole(values, "max_tokens", 1, MOST_COUNT),
                temperature=number(values, "temperature", float, 0, 1e6),
                seed=whole(values, "seed", 0, 2**63) if seed else None,
                n=whole(values, "samples", 1, MAX_SAMPLES),
            ),
            priority=whole(values, "priority", -_MANY, _MANY),
            group=_group(values),
            count=whole(values, "count", 1, MAX_BURST),
        )

    fields = [
        Field("prompt", "Prompt", hint="what the model continues"),
        Field("max_tokens", "Max tokens", str(params.max_tokens or 128)),
        Field("temperature", "Temperature", f"{params.temperature:g}"),
        Field("priority", "Priority", "0"),
        Field("group", "Group", "default"),
        Field("count", "How many", "1"),
        Field("seed", "Seed", hint="empty: another one each time"),
        Field("samples", "Samples of each", str(params.n)),
    ]
    return FormScreen("Inject requests", fields, make, button="Inject")


def burst_form(params: SamplingParams, seed: int) -> FormScreen[Burst]:
    """Ask for many requests at once."""

    def make(values: dict[str, str]) -> Burst:
        return Burst(
            count=whole(values, "count", 1, MAX_BURST),
            lengths=Lengths(values["lengths"]),
            mean=whole(values, "length", 1, MAX_WORDS),
            seed=whole(values, "seed", 0, 2**63),
            params=replace(params, max_tokens=whole(values, "max_tokens", 1, MOST_COUNT)),
            group=_group(values),
        )

    fields = [
        Field("count", "Requests", "16"),
        Field("lengths", "Prompt lengths", Lengths.MIXED.value, choices=[kind.value for kind in Lengths]),
        Field("length", "Mean words", "48", hint="of fixed, uniform and lognormal"),
        Field("max_tokens", "Max tokens", str(params.max_tokens or 128)),
        Field("group", "Group", "default"),
        Field("seed", "Seed", str(seed)),
    ]
    return FormScreen("Inject a burst", fields, make, button="Inject")


def resize_form(num_blocks: int, block_size: int) -> FormScreen[int]:
    """Ask for another number of blocks."""

    def make(values: dict[str, str]) -> int:
        return whole(values, "num_blocks", 1, MOST_BLOCKS)

    title = f"Resize the block pool ({num_blocks} blocks of {block_size} tokens now)"
    return FormScreen(title, [Field("num_blocks", "Blocks", str(num_blocks))], make, button="Resize")


def priority_form(request: str, priority: int) -> FormScreen[int]:
    """Ask for another priority; `request` is its id, cleaned."""

    def make(values: dict[str, str]) -> int:
        return whole(values, "priority", -_MANY, _MANY)

    title = f"Priority of request {request} ({priority} now)"
    return FormScreen(title, [Field("priority", "Priority", str(priority))], make, button="Set")


def _group(values: dict[str, str]) -> str:
    group = values["group"].strip()
    if not group or len(group) > 64:
        raise BadValue("group", group, "give a name of 1 to 64 characters")
    return group
