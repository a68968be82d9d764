"""Simulations and scenarios in the app: `vtop sim --tui` and `vtop --scenario`, in virtual time or with the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtop.app.commands.run import RunArguments, Work, check_screen, show
from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.commands.unattended import report_stuck_calls
from vtop.app.live.playing import Look, Playing
from vtop.app.settings import Settings
from vtop.engine.apply import PER_SECOND, SECONDS
from vtop.engine.commands import LoadWorkload, SetOption
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.scenarios.scenario import Scenario, Variant, find_scenario
from vtop.engine.sim.cards import Card
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.workload.engine import WorkloadEngine
from vtop.engine.workload.jobs import MadeUpTokenizer

MACHINE = (
    "model", "device", "dtype", "seed", "cpu_threads", "attention_backend", "gpu_memory_utilization",
    "kv_cache_memory", "swap_space", "max_model_len",
)  # fmt: skip
"""Options of the settings that a scenario on the engine keeps."""


@dataclass(frozen=True, slots=True)
class PlayArguments:
    """What is given to play besides options."""

    scenario: str | None
    time_scale: float | None
    on_engine: bool


def play(settings: Settings, run: RunArguments, arguments: PlayArguments) -> int:
    """Play the scenario; returns the exit code."""
    if arguments.scenario is None:
        name, value = ("--on-engine", True) if arguments.on_engine else ("--time-scale", arguments.time_scale)
        raise BadValue(name, value, "it goes with --scenario")
    if run.headless:
        raise BadValue("--headless", True, "without a screen use `vtop sim --scenario`")
    if arguments.on_engine and arguments.time_scale is not None:
        raise BadValue("--time-scale", arguments.time_scale, "it is for virtual time; leave out --on-engine")
    scale = checked_scale(arguments.time_scale)
    scenario, variant = scenario_and_variant(arguments.scenario)
    if arguments.on_engine:
        return _on_engine(settings, run, scenario, variant)
    return run_simulation(
        settings, scenario_simulation(settings, scenario, variant), look=look_of(scenario, variant), scale=scale,
        work=run.work(),
    )  # fmt: skip


def checked_scale(scale: float | None) -> float:
    """Virtual seconds per second; 0 for no bound. Raises BadValue."""
    if scale is not None and not 0 <= scale < 1e9:
        raise BadValue("--time-scale", scale, "give virtual seconds per second, 0 or more")
    return 1.0 if scale is None else scale


def scenario_and_variant(text: str) -> tuple[Scenario, Variant]:
    """NAME or NAME:VARIANT; without one, the first variant. Raises BadValue."""
    name, colon, wanted = (text, "", "") if Path(text).is_file() else text.rpartition(":")
    if not colon:
        name, wanted = text, ""
    try:
        scenario = find_scenario(name)
        return scenario, scenario.variant(wanted) if colon else scenario.variants[0]
    except BadValue as error:
        if error.field in ("scenario", "variant"):
            raise BadValue("--scenario", text, error.remedy) from None
        raise


def look_of(scenario: Scenario, variant: Variant) -> Look:
    return Look(f"{scenario.name}:{variant.name}", scenario.title, scenario.look, scenario.config(variant))


def scenario_simulation(
    settings: Settings, scenario: Scenario, variant: Variant, card: Card | None = None
) -> Simulation:
    """A variant as the file has it, but for engine options that were given on the command line."""
    simulation = scenario.simulation(variant, card)
    return replace(simulation, config=_config(scenario, variant, {}, settings.named_engine_options()))


def _config(scenario: Scenario, variant: Variant, base: dict[str, Any], given: dict[str, Any]) -> EngineConfig:
    return EngineConfig(**{**base, **scenario.engine, **variant.engine, **given})


def _on_engine(settings: Settings, run: RunArguments, scenario: Scenario, variant: Variant) -> int:
    """With the model. Times among the options are set with the jobs, when it is known how far to stretch them."""
    given = settings.named_engine_options()
    base = {key: settings.values[key] for key in MACHINE}
    config = _config(scenario, variant, base, given)
    timed = tuple(
        SetOption(name, getattr(config, name))
        for name in (*SECONDS, *PER_SECOND)
        if name in {**scenario.engine, **variant.engine} and name not in given
    )
    work, app_config = run.work(), settings.app_config()
    check_screen()
    from vtop.app.live.engine import LiveFeed

    def make_feed() -> LiveFeed:
        feed = LiveFeed.of_config(
            config, paused=app_config.paused, steps_per_second=app_config.speed, record=work.record
        )
        feed.send(LoadWorkload(scenario.workload(variant), options=timed, until=scenario.until))
        return feed

    playing = Playing(look_of(scenario, variant))
    return show(settings, make_feed, work, model=config.model, seed=config.seed, playing=playing)


def watch(settings: Settings, arguments: SimArguments) -> int:
    """Show what the arguments ask for; returns the exit code."""
    from vtop.app.commands.sim.work import own_card

    scale = checked_scale(arguments.time_scale)
    if arguments.scenario is None:
        with report_stuck_calls():
            simulation = _one_case(settings, arguments)
        return run_simulation(settings, simulation, scale=scale)
    scenario, variant = scenario_and_variant(arguments.scenario)
    card = own_card(arguments)
    simulation = scenario_simulation(settings, scenario, variant, card)
    return run_simulation(settings, simulation, look=look_of(scenario, variant), scale=scale)


def _one_case(settings: Settings, arguments: SimArguments) -> Simulation:
    from vtop.app.commands.sim.work import cases

    found = cases(arguments, settings.engine_config(), settings.engine_options())
    if len(found) > 1:
        raise BadValue("--tui", True, f"it shows one run, not {len(found)}; give one rate, policy and seed")
    return found[0].simulation


def make_engine(simulation: Simulation, scale: float) -> WorkloadEngine:
    """An engine for people: text becomes made-up tokens, and nothing that they do is a deadlock."""
    engine = build(simulation, scale or None)
    engine.tokenizer = MadeUpTokenizer()
    engine.patient = True
    return engine


def run_simulation(
    settings: Settings,
    simulation: Simulation,
    *,
    scale: float,
    look: Look | None = None,
    work: Work | None = None,
) -> int:
    """Show a simulation until the person leaves. What cannot be used is said before the screen is there."""
    work = work or Work()
    app_config = settings.app_config()
    with report_stuck_calls():
        engine = make_engine(simulation, scale)
    check_screen()
    from vtop.app.live.engine import LiveFeed

    def make_feed() -> LiveFeed:
        return LiveFeed.of_engine(
            engine, paused=app_config.paused, steps_per_second=app_config.speed, record=work.record
        )

    model, seed = simulation.card.shape.name, simulation.config.seed
    return show(settings, make_feed, work, model=model, seed=seed, playing=Playing(look, scale))
