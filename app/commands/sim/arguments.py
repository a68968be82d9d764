"""What `vtop sim` takes besides the options of engine and screen, and what of it goes together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from vtop.app.options import options, strict_given
from vtop.engine.errors import BadValue

_WHAT = Group.create_ordered("What to simulate")
_LOAD = Group.create_ordered("Generated workload")
_CARD = Group.create_ordered("Card")
_OUT = Group.create_ordered("Comparison and output")


def _p(group: Group, help_: str) -> Parameter:
    return Parameter(group=group, help=help_, show_default=False, negative="", converter=strict_given)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimArguments:
    """All None or False unless given; defaults are in the help texts and in `work`."""

    scenario: Annotated[str | None, _p(_WHAT, "A scenario of the gallery by name, or a TOML file.")] = None
    check: Annotated[bool, _p(_WHAT, "Evaluate the scenario's checks; exit code 1 when one fails.")] = False
    trace: Annotated[str | None, _p(_WHAT, "A trace (Azure, BurstGPT, Mooncake, Bailian, vLLM log, ShareGPT, Vidur, "
                                           "recording), or the name of one that comes with vtop.")] = None  # fmt: skip
    against: Annotated[Path | None, _p(_WHAT, "With --trace: the measured run to compare with.")] = None
    reference: Annotated[str | None, _p(_WHAT, "Replay a recorded vLLM run: rtx4090 or rtxpro6000.")] = None
    scale_time: Annotated[float, _p(_WHAT, "Trace: multiply times (0.5 is twice as fast).")] = 1.0
    scale_length: Annotated[str, _p(_WHAT, "Trace: multiply lengths, as in 0.25 or 1/16.")] = "1"
    limit: Annotated[int | None, _p(_WHAT, "Trace: its first so many requests.")] = None

    rate: Annotated[list[float] | None, Parameter(
        group=_LOAD, help="Requests per second; may be given several times (default: 4). Not with ramp and closed.",
        consume_multiple=False, negative="", converter=strict_given)] = None  # fmt: skip
    rates: Annotated[str | None, _p(_LOAD, "The same as a list: 1,2,4,8.")] = None
    requests: Annotated[int | None, _p(_LOAD, "Requests of a run (default: 300, or as many as come in --seconds).")] = (
        None
    )
    seconds: Annotated[float | None, _p(_LOAD, "Arrivals for so many virtual seconds; a closed loop ends then.")] = None
    arrivals: Annotated[str, _p(_LOAD, "poisson (default), bursts:ON:OFF, ramp:START:END:SECONDS, "
                                       "closed:CLIENTS[:THINK].")] = "poisson"  # fmt: skip
    prompt_tokens: Annotated[str, _p(_LOAD, "N, LOW-HIGH or lognormal:MEDIAN:SIGMA[:LOW:HIGH] (default: "
                                            "lognormal:200:0.8:4:2048).")] = "lognormal:200:0.8:4:2048"  # fmt: skip
    output_tokens: Annotated[str, _p(_LOAD, "Likewise (default: lognormal:100:0.7:2:1024).")] = (
        "lognormal:100:0.7:2:1024"
    )
    groups: Annotated[str | None, _p(_LOAD, "Groups with their shares of the requests, as in A=0.8,B=0.2.")] = None
    priorities: Annotated[str | None, _p(_LOAD, "Priorities with their shares, as in 0=0.8,10=0.2.")] = None
    deadlines: Annotated[str | None, _p(_LOAD, "Seconds from arrival with their shares, as in 2=0.2,none=0.8.")] = None
    timeouts: Annotated[str | None, _p(_LOAD, "Likewise; the request is ended then.")] = None
    prefixes: Annotated[str | None, _p(_LOAD, "Shared beginnings of prompts, COUNTxTOKENS[@SHARE], as in 4x256.")] = (
        None
    )
    turns: Annotated[str, _p(_LOAD, "Requests of a session, each prompt the conversation so far (default: 1).")] = "1"
    think: Annotated[float, _p(_LOAD, "Seconds between the turns of a session, on average.")] = 0.0
    samples: Annotated[str | None, _p(_LOAD, "Samples per request with their shares, as in 1=0.9,4=0.1.")] = None
    beams: Annotated[str | None, _p(_LOAD, "Beam widths with their shares, as in none=0.9,4=0.1.")] = None
    length_error: Annotated[float | None, _p(_LOAD, "Requests declare their output length, wrong by this sigma.")] = (
        None
    )

    card: Annotated[str, _p(_CARD, "rtx4090, rtxpro6000 (fitted); a100, h100, h200, b200, l40s (data sheet); or a file "
                                   "of `vtop calibrate` (default: rtx4090).")] = "rtx4090"  # fmt: skip
    model_shape: Annotated[str | None, _p(_CARD, "Data sheet cards: llama-8b, llama-70b … or a config.json.")] = None
    gpus: Annotated[int, _p(_CARD, "Data sheet cards: so many that share the work.")] = 1

    policies: Annotated[
        str | None,
        _p(
            _OUT,
            "Policies to compare, each with options of the engine, presets too: "
            "fcfs,priority:aging_rate=1,fcfs:preset=vllm-v1. A value with commas goes in quotes: "
            "'fair:group_weights=\"a=2,b=1\"'.",
        ),
    ] = None
    seeds: Annotated[int, _p(_OUT, "Workloads per rate; means come with 95 % intervals (default: 1).")] = 1
    workers: Annotated[int | None, _p(_OUT, "Processes (default: one per core).")] = None
    ttft_limit: Annotated[float, _p(_OUT, "Goodput: seconds to the first token (default: 2).")] = 2.0
    tpot_limit: Annotated[float, _p(_OUT, "Goodput: seconds per token after it (default: 0.1).")] = 0.1
    json: Annotated[bool, _p(_OUT, "Print one JSON object instead of tables; every run has its own config.")] = False
    csv: Annotated[Path | None, _p(_OUT, "Write one line per policy, rate and seed to this file.")] = None
    plot: Annotated[Path | None, _p(_OUT, "Draw into this folder (needs matplotlib: the extra `plots`).")] = None
    overwrite: Annotated[bool, _p(_OUT, "Replace files of --csv and --plot that are there already.")] = False
    tui: Annotated[bool, _p(_OUT, "Watch one run in the app, in virtual time.")] = False
    time_scale: Annotated[float | None, _p(_OUT, "With --tui: virtual seconds per second at most (default: 1; 0 is as "
                                                 "fast as it goes).")] = None  # fmt: skip


_CARD_OPTIONS = frozenset({"card", "model_shape", "gpus"})
_LOAD_OPTIONS = frozenset(
    {"requests", "seconds", "arrivals", "prompt_tokens", "output_tokens", "groups", "priorities", "deadlines",
     "timeouts", "prefixes", "turns", "think", "samples", "beams", "length_error"}
)  # fmt: skip
_RATE_OPTIONS = frozenset({"rate", "rates"})
_TRACE_OPTIONS = frozenset({"trace", "scale_time", "scale_length", "limit"})
_LIMITS_OPTIONS = frozenset({"ttft_limit", "tpot_limit"})
_COMPARE_OPTIONS = _LIMITS_OPTIONS | {"policies", "workers", "csv", "plot", "overwrite"}
_SHOWN_OPTIONS = frozenset({"json", "tui", "time_scale"})

# What is simulated, the most special first -> what goes with it; made-up requests are the empty name.
_GOES_WITH: dict[str, frozenset[str]] = {
    "reference": frozenset({"json"}),
    "against": _CARD_OPTIONS | {"trace", "limit", "json"},
    "scenario": _CARD_OPTIONS | _LIMITS_OPTIONS | _SHOWN_OPTIONS | {"check", "csv", "overwrite"},
    "trace": _CARD_OPTIONS | _RATE_OPTIONS | _TRACE_OPTIONS | _COMPARE_OPTIONS | _SHOWN_OPTIONS,
    "": _CARD_OPTIONS | _RATE_OPTIONS | _LOAD_OPTIONS | _COMPARE_OPTIONS | _SHOWN_OPTIONS | {"seeds"},
}
# option -> the option without which it says nothing
_NEEDS = {
    "check": "scenario", "scale_time": "trace", "scale_length": "trace", "limit": "trace", "time_scale": "tui",
    "think": "turns",
}  # fmt: skip
_NOT_WATCHED = _LIMITS_OPTIONS | {"json", "csv", "plot", "check", "seeds", "workers"}
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
    if kind in ("closed", "ramp") and (rate := next((name for name in sorted(_RATE_OPTIONS) if name in given), "")):
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
