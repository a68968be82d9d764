"""From the arguments of `vtop sim` to workloads, cards and cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtop.app.commands.sim import texts as sim_texts
from vtop.app.commands.sim.arguments import NO_MODEL, SimArguments
from vtop.app.terminal.printing import tell
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.policies import make_policy
from vtop.engine.sim.cards import Card, card_names, find_card
from vtop.engine.sim.compare import Case
from vtop.engine.sim.cost_model import CostModel, StepLoad
from vtop.engine.sim.policy_choice import PolicyChoice, parse_policies
from vtop.engine.sim.simulator import Simulation, device_blocks
from vtop.engine.state.measures import Limits
from vtop.engine.traces.read import SHIPPED, open_trace, shipped_trace
from vtop.engine.workload.distributions import ClosedLoop
from vtop.engine.workload.generate import WorkloadSpec, generate
from vtop.engine.workload.jobs import Job, Workload

DEFAULT_RATE = 4.0
DEFAULT_REQUESTS = 300
MANY = 1_000_000  # requests, when --seconds says how long
MOST_SEEDS = 1_000
MOST_RUNS = 10_000


def limits(arguments: SimArguments) -> Limits:
    for name, value in (("--ttft-limit", arguments.ttft_limit), ("--tpot-limit", arguments.tpot_limit)):
        if not value > 0:
            raise BadValue(name, value, "give seconds above 0")
    return Limits(arguments.ttft_limit, arguments.tpot_limit)


def card_of(arguments: SimArguments, config: EngineConfig) -> Card:
    """The card of the arguments. Raises BadValue."""
    a = arguments
    card = find_card(a.card, a.model_shape, a.gpus, config.block_size)
    if a.card.lower().replace(" ", "").replace("_", "") not in card_names():  # as find_card reads it: a file
        for option, value, default in (("--gpus", a.gpus, 1), ("--model-shape", a.model_shape, None)):
            if value != default:
                raise BadValue(option, value, f"{a.card} was fitted with its own; leave it out")
    return card


def own_card(arguments: SimArguments) -> Card | None:
    """The card when one was given; None for the scenario's own. Raises BadValue."""
    a, default = arguments, SimArguments()
    if (a.card, a.model_shape, a.gpus) == (default.card, default.model_shape, default.gpus):
        return None
    return card_of(a, EngineConfig())


def check_blocks(config: EngineConfig, card: Card) -> int:
    """Blocks of the device pool. Raises BadValue that names what was given."""
    try:
        return device_blocks(config, card)
    except BadValue:
        share, default = config.gpu_memory_utilization, EngineConfig().gpu_memory_utilization
        if share < default and _fits(replace(config, gpu_memory_utilization=default), card):
            remedy = f"leaves no room for KV beside the weights of {card.shape.name}; give a larger share"
            raise BadValue("--gpu-memory-utilization", share, remedy) from None
        raise


def _fits(config: EngineConfig, card: Card) -> bool:
    try:
        return device_blocks(config, card) > 0
    except BadValue:
        return False


def rates(arguments: SimArguments) -> list[float]:
    listed = [] if arguments.rates is None else sim_texts.numbers("--rates", arguments.rates)
    if arguments.rates is not None and not listed:
        raise BadValue("--rates", arguments.rates, "give requests per second, as in 1,2,4")
    for option, found in (("--rate", arguments.rate or []), ("--rates", listed)):
        for rate in found:
            if not 0 < rate < 1e6:
                raise BadValue(option, rate, "give requests per second above 0")
    return list(dict.fromkeys((*(arguments.rate or []), *listed)))  # one given twice would count as two seeds


def trace_workload(arguments: SimArguments) -> Workload | None:
    """The trace, scaled; None when none was given."""
    if arguments.trace is None:
        return None
    if arguments.limit is not None and arguments.limit < 1:
        raise BadValue("--limit", arguments.limit, "give at least 1")
    path = shipped_trace(arguments.trace) if arguments.trace in SHIPPED else Path(arguments.trace)
    length = sim_texts.ratio("--scale-length", arguments.scale_length)
    trace = open_trace(path, limit=arguments.limit)
    if trace.left_out:
        why = ", ".join(f"{count:,} with {reason}" for reason, count in trace.left_out.items())
        tell(f"vtop: requests of {trace.workload.name} that are left out: {why}")
    return trace.workload.scaled(arguments.scale_time, length)


def spec_of(arguments: SimArguments, rate: float) -> WorkloadSpec:
    """The generated workload that the arguments describe."""
    a = arguments
    wanted = a.requests
    if wanted is None:
        wanted = DEFAULT_REQUESTS if a.seconds is None else MANY
    prompt = sim_texts.lengths("--prompt-tokens", a.prompt_tokens)
    output = sim_texts.lengths("--output-tokens", a.output_tokens)
    sim_texts.requests("--requests", wanted)
    if a.seconds is None:
        sim_texts.check_total("--requests", wanted, prompt, output)
    return WorkloadSpec(
        name="generated",
        requests=wanted,
        seconds=a.seconds,
        arrivals=sim_texts.arrivals("--arrivals", a.arrivals, rate),
        prompt=prompt,
        output=output,
        turns=sim_texts.lengths("--turns", a.turns, sim_texts.MOST_TURNS),
        think=a.think,
        prefixes=None if a.prefixes is None else sim_texts.prefixes("--prefixes", a.prefixes),
        groups=(("default", 1.0),) if a.groups is None else sim_texts.mix("--groups", a.groups, str),
        priorities=sim_texts.mix("--priorities", "0" if a.priorities is None else a.priorities, sim_texts.as_number),
        deadlines=_seconds("--deadlines", a.deadlines),
        timeouts=_seconds("--timeouts", a.timeouts),
        samples=((1, 1.0),) if a.samples is None else sim_texts.mix("--samples", a.samples, int),
        beams=((None, 1.0),) if a.beams is None else sim_texts.mix("--beams", a.beams, int, none=True),
        expected_error=a.length_error,
    )


def _seconds(option: str, text: str | None) -> list[tuple[float | None, float]]:
    return [(None, 1.0)] if text is None else sim_texts.mix(option, text, float, none=True)


def policies(arguments: SimArguments, config: EngineConfig) -> list[PolicyChoice]:
    if arguments.policies is None:
        return [PolicyChoice(config.scheduling_policy, {})]
    return parse_policies(arguments.policies)


def configs(
    arguments: SimArguments, config: EngineConfig, given: Mapping[str, Any] | None = None
) -> list[tuple[str, EngineConfig]]:
    """Labels and configurations of the policies, tried as far as that goes without a run. Raises BadValue."""
    found = []
    for choice in policies(arguments, config):
        if arguments.policies is None:
            found.append((choice.label, config))
            continue
        for name in sorted(NO_MODEL & choice.options.keys()):
            raise BadValue("--policies", choice.label, f"a simulation runs no model; leave out {name}")
        try:
            chosen = choice.apply(config, given)
            make_policy(chosen)
        except BadValue as error:
            about = "" if error.field == "scheduling_policy" else f"{error.field} = {error.value!r}: "
            raise BadValue("--policies", choice.label, about + error.remedy) from None
        found.append((choice.label, chosen))
    return found


def cases(arguments: SimArguments, config: EngineConfig, given: Mapping[str, Any] | None = None) -> list[Case]:
    """Policies by rates by seeds. `given` is what `config` was made of (see PolicyChoice.apply). Raises BadValue."""
    if not 1 <= arguments.seeds <= MOST_SEEDS:
        raise BadValue("--seeds", arguments.seeds, f"give at least 1, at most {MOST_SEEDS:,}")
    card, wanted = card_of(arguments, config), rates(arguments)
    choices = configs(arguments, config, given)
    for _, chosen in choices:
        check_blocks(chosen, card)  # what is wrong with it is told now, not by the first run
    trace = trace_workload(arguments)
    made = []
    longest = min(chosen.request_timeout or math.inf for _, chosen in choices)
    low_first = config.priority_order == "low-first"
    loads: list[float | None] = [*wanted] or [None if trace is not None or _without_rate(arguments) else DEFAULT_RATE]
    if len(loads) * arguments.seeds * len(choices) > MOST_RUNS:
        remedy = f"makes {len(loads)} rates x {arguments.seeds} seeds x {len(choices)} policies; give at most "
        raise BadValue("--seeds", arguments.seeds, f"{remedy}{MOST_RUNS:,} runs")
    for rate in loads:
        for seed in range(arguments.seeds if trace is None else 1):
            workload, until = _workload(arguments, trace, rate, config.seed + seed, card, longest)
            for label, chosen in choices:
                simulation = Simulation(workload, replace(chosen, seed=config.seed + seed), card, until)
                made.append(Case(label, rate, seed, simulation, low_first))
    return made


def _without_rate(arguments: SimArguments) -> bool:
    return arguments.arrivals.partition(":")[0] in ("closed", "ramp")


def _workload(
    arguments: SimArguments, trace: Workload | None, rate: float | None, seed: int, card: Card, longest: float
) -> tuple[Workload, float | None]:
    """The workload, and the end of the run where it has no end of its own."""
    if trace is None:
        spec = spec_of(arguments, DEFAULT_RATE if rate is None else rate)
        if isinstance(spec.arrivals, ClosedLoop) and spec.seconds is not None:
            return _long_enough(spec, spec.arrivals.clients, spec.seconds, seed, card.cost, longest), spec.seconds
        return generate(spec, seed), None
    if rate is None:
        return trace, None
    last = max(job.at for job in trace.jobs if job.after is None)
    if not last:
        raise BadValue("--rate", rate, "all requests of this trace come at once; leave the rate out")
    return trace.scaled(len(trace.jobs) / last / rate), None


def _long_enough(
    spec: WorkloadSpec, clients: int, seconds: float, seed: int, cost: CostModel, longest: float
) -> Workload:
    """A closed loop in which no client is through before `seconds`, or with all the requests of `spec`.

    How many requests that takes is known only by running them; none takes less than its steps alone, or `longest`.
    """
    step = cost.seconds(StepLoad(tokens=1, decodes=1, context=1))
    requests = min(spec.requests, 8 * clients)
    while True:
        workload = generate(replace(spec, requests=requests, seconds=None), seed)
        if requests == spec.requests or _earliest_end(workload.jobs, step, longest) >= seconds:
            return workload
        requests = min(spec.requests, 2 * requests)


def _earliest_end(jobs: Sequence[Job], step: float, longest: float) -> float:
    """Of the first client that has nothing left to send."""
    ends: dict[str, float] = {}
    for job in jobs:
        start = job.at if job.after is None else ends.pop(job.after) + job.at
        ends[job.id] = start + min(step * job.output_tokens, job.timeout or longest)
    return min(ends.values())
