"""Which options of `vtop sim` go together: a table, checked before anything runs. Nothing given is ignored silently."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.options import options
from vtop.engine.errors import BadValue

_CARD = frozenset({"card", "model_shape", "gpus"})
_LOAD = frozenset(
    {"requests", "seconds", "arrivals", "prompt_tokens", "output_tokens", "groups", "priorities", "deadlines",
     "timeouts", "prefixes", "turns", "think", "samples", "beams", "length_error"}
)  # fmt: skip
_RATE = frozenset({"rate", "rates"})
_TRACE = frozenset({"trace", "scale_time", "scale_length", "limit"})
_LIMITS = frozenset({"ttft_limit", "tpot_limit"})
_COMPARE = _LIMITS | {"policies", "workers", "csv", "plot", "overwrite"}
_SHOWN = frozenset({"json", "tui", "time_scale"})

# What is simulated, the most special first -> what goes with it; made-up requests are the empty name.
_GOES_WITH: dict[str, frozenset[str]] = {
    "reference": frozenset({"json"}),
    "against": _CARD | {"trace", "limit", "json"},
    "scenario": _CARD | _LIMITS | _SHOWN | {"check", "csv", "overwrite"},
    "trace": _CARD | _RATE | _TRACE | _COMPARE | _SHOWN,
    "": _CARD | _RATE | _LOAD | _COMPARE | _SHOWN | {"seeds"},
}
# option -> the option without which it says nothing
_NEEDS = {
    "check": "scenario", "scale_time": "trace", "scale_length": "trace", "limit": "trace", "time_scale": "tui",
    "think": "turns",
}  # fmt: skip
_NOT_WATCHED = _LIMITS | {"json", "csv", "plot", "check", "seeds", "workers"}
_CONTRARY = (("rate", "scale_time"), ("rates", "scale_time"))
_NOT_EMPTY = ("scenario", "trace", "reference", "card", "model_shape")

NO_MODEL = frozenset(
    {"model", "device", "dtype", "cpu_threads", "cpu_pack_weights", "attention_backend", "enforce_eager", "compile",
     "kv_cache_memory"}
)  # fmt: skip
"""Options of the engine that are of a real model."""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_together(a: SimArguments, given_options: Collection[str] = ()) -> None:
    """`given_options` are those of engine and screen on the command line. Raises BadValue for the first slip."""
    given: dict[str, Any] = {
        f.name: value for f in fields(SimArguments) if (value := getattr(a, f.name)) != f.default and value is not False
    }
    for name in _NOT_EMPTY:
        if getattr(a, name) == "":
            raise BadValue(flag(name), "", "give a name or a file")
    sources = [name for name in ("scenario", "trace", "reference") if name in given]
    if len(sources) > 1:
        raise _bad(sources[1], given, f"leave out {flag(sources[0])}: one workload at a time")
    if "against" in given and "trace" not in given:
        raise _bad("against", given, "give the arrivals with --trace as well")
    if "overwrite" in given and not {"csv", "plot"} & given.keys():
        raise _bad("overwrite", given, "it goes with --csv or --plot")
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise _bad(name, given, f"it goes with {flag(other)}")
    source = next(name for name in _GOES_WITH if not name or name in given)
    for name in given:
        if name != source and name not in _GOES_WITH[source]:
            raise _bad(name, given, f"it does not go with {flag(source)}" if source else "it goes with --trace")
        if "tui" in given and name in _NOT_WATCHED:
            raise _bad(name, given, "it goes without --tui")
    for name, other in _CONTRARY:
        if name in given and other in given:
            raise _bad(other, given, f"{flag(name)} sets the times; give one of the two")
    kind = a.arrivals.partition(":")[0]
    if kind in ("closed", "ramp") and (rate := next((name for name in sorted(_RATE) if name in given), "")):
        raise _bad(rate, given, f"--arrivals {kind} has no rate; leave it out")
    _check_options(given, source, given_options)


def _check_options(given: dict[str, Any], source: str, given_options: Collection[str]) -> None:
    for key in given_options:
        option = options()[key]
        if option.section == "app" and "tui" not in given:
            raise BadValue(option.flag, "given", "it is of the screen; it goes with --tui")
        if key in NO_MODEL:
            raise BadValue(option.flag, "given", "a simulation runs no model; see --card and --model-shape")
        if source == "reference":
            raise BadValue(option.flag, "given", "--reference has the settings of the recorded run")


def _bad(name: str, given: dict[str, Any], remedy: str) -> BadValue:
    value = given[name]
    return BadValue(flag(name), str(value) if isinstance(value, Path) else value, remedy)


def named(error: BadValue, a: SimArguments) -> BadValue:
    """The same error, about the option that was typed. What a scenario's file says is not of an option."""
    in_file = a.scenario is not None and (
        error.field not in ("scenario", "card", "gpus", "model_shape")
        or (error.field == "card" and a.card == SimArguments().card)
    )
    if error.field in _NAMES and not in_file:
        return BadValue(_NAMES[error.field], error.value, error.remedy)
    return error


# fields of what the arguments become (a card, a workload, its jobs) -> options
_NAMES = {
    **{f.name: flag(f.name) for f in fields(SimArguments)},
    "expected_error": "--length-error", "expected_tokens": "--length-error", "n": "--samples", "beam_width": "--beams",
}  # fmt: skip
