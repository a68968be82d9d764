"""`vtop sim --tui`: a simulation in the app. It stays when the workload has ended, and more can be injected."""

from __future__ import annotations

from vtop.app.commands.run import check_screen
from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.commands.work import Work
from vtop.app.screens.look_bar import Look
from vtop.app.screens.playing import Playing
from vtop.app.settings import Settings
from vtop.app.terminal.stuck import told_when_stuck
from vtop.engine.commands import AddRequest
from vtop.engine.errors import BadValue
from vtop.engine.request import SamplingParams
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.workload.engine import WorkloadEngine
from vtop.engine.workload.jobs import MadeUpTokenizer


def watch(settings: Settings, arguments: SimArguments) -> int:
    """Show what the arguments ask for; returns the exit code."""
    from vtop.app.commands.sim.play_command import checked_scale, look_of, scenario_and_variant, scenario_simulation
    from vtop.app.commands.sim.work import own_card

    scale = checked_scale(arguments.time_scale)
    if arguments.scenario is None:
        with told_when_stuck():
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
    with told_when_stuck():
        engine = make_engine(simulation, scale)
    check_screen()
    from vtop.app.live.engine import LiveFeed
    from vtop.app.run_app import run_app

    def make_feed() -> LiveFeed:
        feed = LiveFeed.of_engine(
            engine,
            paused=app_config.paused,
            steps_per_second=app_config.speed,
            record=work.record,
        )
        params = SamplingParams(max_tokens=app_config.max_tokens, temperature=app_config.temperature)
        for request_id, prompt in work.all_prompts(simulation.config.seed):
            feed.send(AddRequest(request_id, prompt, params, cache_salt=app_config.cache_salt))
        return feed

    injected = (len(work.prompts), 1 if work.burst else 0)
    playing = Playing(look, scale)
    model = simulation.card.shape.name
    return run_app(make_feed, app_config, model=model, keymap=settings.keys, injected=injected, playing=playing)
