"""`vtop --scenario`: a scenario in the app, in virtual time or with the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtop.app.commands.run import RunArguments, check_screen
from vtop.app.commands.sim.play import run_simulation
from vtop.app.screens.look_bar import Look
from vtop.app.screens.playing import Playing
from vtop.app.settings import Settings
from vtop.engine.apply import PER_SECOND, SECONDS
from vtop.engine.commands import AddRequest, LoadWorkload, SetOption
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.request import SamplingParams
from vtop.engine.scenarios.scenario import Scenario, Variant, find_scenario
from vtop.engine.sim.cards import Card
from vtop.engine.sim.simulator import Simulation

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
    from vtop.app.run_app import run_app

    def make_feed() -> LiveFeed:
        feed = LiveFeed.of_config(
            config, paused=app_config.paused, steps_per_second=app_config.speed, record=work.record
        )
        feed.send(LoadWorkload(scenario.workload(variant), options=timed, until=scenario.until))
        params = SamplingParams(max_tokens=app_config.max_tokens, temperature=app_config.temperature)
        for request_id, prompt in work.all_prompts(config.seed):
            feed.send(AddRequest(request_id, prompt, params, cache_salt=app_config.cache_salt))
        return feed

    playing = Playing(look_of(scenario, variant))
    injected = (len(work.prompts), 1 if work.burst else 0)
    return run_app(make_feed, app_config, model=config.model, keymap=settings.keys, injected=injected, playing=playing)
