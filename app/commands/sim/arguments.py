"""What `vtop sim` takes besides the engine's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from vtop.app.cli_values import strict_given

_WHAT = Group.create_ordered("What to simulate")
_LOAD = Group.create_ordered("Generated workload")
_CARD = Group.create_ordered("Card")
_OUT = Group.create_ordered("Comparison and output")


def _p(group: Group, help_: str) -> Parameter:
    return Parameter(group=group, help=help_, show_default=False, negative="", converter=strict_given)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimArguments:
    """All None or False unless given; defaults are in the help texts and in `sim_command`."""

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
