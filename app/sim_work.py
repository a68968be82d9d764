"""From the arguments of `vtop sim` to workloads, cards and cases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from vtop.app import sim_texts
from vtop.app.sim_arguments import SimArguments
from vtop.engine.cards import Card, find_card
from vtop.engine.compare import Case, PolicyChoice, parse_policies
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.measures import Limits
from vtop.engine.simulator import Simulation, device_blocks
from vtop.engine.traces import SHIPPED, open_trace, shipped_trace
from vtop.engine.workload import Workload
from vtop.engine.workload_gen import WorkloadSpec, generate

DEFAULT_RATE = 4.0
DEFAULT_REQUESTS = 300
MANY = 1_000_000  # requests, when --seconds says how long


def limits(arguments: SimArguments) -> Limits:
    for name, value in (("--ttft-limit", arguments.ttft_limit), ("--tpot-limit", arguments.tpot_limit)):
        if not value > 0:
            raise BadValue(name, value, "give seconds above 0")
    return Limits(arguments.ttft_limit, arguments.tpot_limit)


def card_of(arguments: SimArguments, config: EngineConfig) -> Card:
    return find_card(arguments.card, arguments.model_shape, arguments.gpus, config.block_size)


def rates(arguments: SimArguments) -> list[float]:
    found = list(arguments.rate or []) + (
        sim_texts.numbers("--rates", arguments.rates) if arguments.rates is not None else []
    )
    for rate in found:
        if not 0 < rate < 1e6:
            raise BadValue("--rate", rate, "give requests per second above 0")
    return found


def trace_workload(arguments: SimArguments) -> Workload | None:
    """The trace, scaled; None when none was given."""
    if arguments.trace is None:
        return None
    path = shipped_trace(arguments.trace) if arguments.trace in SHIPPED else Path(arguments.trace)
    try:
        length = float(Fraction(arguments.scale_length))
    except (ValueError, ZeroDivisionError):
        raise BadValue("--scale-length", arguments.scale_length, "give a number or a fraction, as in 1/16") from None
    workload = open_trace(path, limit=arguments.limit).workload
    return workload.scaled(arguments.scale_time, length)


def spec_of(arguments: SimArguments, rate: float) -> WorkloadSpec:
    """The generated workload that the arguments describe."""
    a = arguments
    wanted = a.requests or (MANY if a.seconds is not None else DEFAULT_REQUESTS)
    try:
        return WorkloadSpec(
            name="generated",
            requests=wanted,
            seconds=a.seconds,
            arrivals=sim_texts.arrivals("--arrivals", a.arrivals, rate),
            prompt=sim_texts.lengths("--prompt-tokens", a.prompt_tokens),
            output=sim_texts.lengths("--output-tokens", a.output_tokens),
            turns=sim_texts.lengths("--turns", a.turns),
            think=a.think,
            prefixes=None if a.prefixes is None else sim_texts.prefixes("--prefixes", a.prefixes),
            groups=(("default", 1.0),) if a.groups is None else sim_texts.mix("--groups", a.groups, str),
            priorities=((0, 1.0),) if a.priorities is None else sim_texts.mix("--priorities", a.priorities, int),
            deadlines=_seconds("--deadlines", a.deadlines),
            timeouts=_seconds("--timeouts", a.timeouts),
            samples=((1, 1.0),) if a.samples is None else sim_texts.mix("--samples", a.samples, int),
            beams=((None, 1.0),) if a.beams is None else sim_texts.mix("--beams", a.beams, int, none=True),
            expected_error=a.length_error,
        )
    except BadValue as error:
        if error.field.startswith("--"):
            raise
        raise BadValue("--" + error.field.replace("_", "-"), error.value, error.remedy) from None


def _seconds(option: str, text: str | None) -> list[tuple[float | None, float]]:
    return [(None, 1.0)] if text is None else sim_texts.mix(option, text, float, none=True)


def policies(arguments: SimArguments, config: EngineConfig) -> list[PolicyChoice]:
    if arguments.policies is None:
        return [PolicyChoice(config.scheduling_policy, {})]
    return parse_policies(arguments.policies)


def cases(arguments: SimArguments, config: EngineConfig) -> list[Case]:
    """Policies by rates by seeds. Raises BadValue."""
    if arguments.seeds < 1:
        raise BadValue("--seeds", arguments.seeds, "give at least 1")
    card, trace, wanted = card_of(arguments, config), trace_workload(arguments), rates(arguments)
    choices = [(choice.label, choice.apply(config)) for choice in policies(arguments, config)]
    made = []
    loads: list[float | None] = [*wanted] or [None if trace is not None else DEFAULT_RATE]
    for rate in loads:
        for seed in range(arguments.seeds if trace is None else 1):
            workload = _workload(arguments, trace, rate, config.seed + seed)
            for label, chosen in choices:
                simulation = Simulation(workload, replace(chosen, seed=config.seed + seed), card)
                made.append(Case(label, rate, seed, simulation))
    device_blocks(config, card)  # what is wrong with it is told now, not by the first run
    return made


def _workload(arguments: SimArguments, trace: Workload | None, rate: float | None, seed: int) -> Workload:
    if trace is None:
        return generate(spec_of(arguments, DEFAULT_RATE if rate is None else rate), seed)
    if rate is None:
        return trace
    last = max(job.at for job in trace.jobs if job.after is None)
    if not last:
        raise BadValue("--rate", rate, "all requests of this trace come at once; leave the rate out")
    return trace.scaled(len(trace.jobs) / last / rate)
