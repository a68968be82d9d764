"""Loads a scenario into the engine that runs: which one, which variant, with its options or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vtop.app.screens.expects import differences, to_set, told
from vtop.app.screens.load_picker import BURST, FILE, MARK, LoadPicker, file_form
from vtop.app.screens.look_bar import Look
from vtop.app.screens.scenario_form import Loading, ScenarioForm
from vtop.engine.commands import LoadWorkload
from vtop.engine.errors import BadValue
from vtop.engine.scenarios.scenario import Scenario, Variant, gallery, load_scenario

if TYPE_CHECKING:
    from vtop.app.main import VtopApp


class Loader:
    """Asks and sends. `burst` asks for a burst of made-up prompts."""

    def __init__(self, app: VtopApp, burst: Callable[[], None]) -> None:
        self.app = app
        self._burst = burst

    def ask(self) -> None:
        """Show what can be loaded."""
        known = gallery()

        def done(choice: str | None) -> None:
            if choice == BURST:
                self._burst()
            elif choice == FILE:
                self.app.push_screen(file_form(), self._variant)
            elif choice is not None:
                try:
                    scenario = load_scenario(known[choice.removeprefix(MARK)])
                except BadValue as error:
                    self.app.say(str(error), "error")
                else:
                    self._variant(scenario)

        self.app.push_screen(LoadPicker(known, self.app.view.ascii), done)

    def _variant(self, scenario: Scenario | None) -> None:
        state = self.app.pump.live
        if scenario is None or state is None:
            return

        def differs(variant: Variant) -> str:
            return told(differences(scenario.config(variant), state))

        self.app.push_screen(ScenarioForm(scenario, differs, self.app.view.ascii), self._send)

    def _send(self, loading: Loading | None) -> None:
        state = self.app.pump.live
        if loading is None or state is None:
            return
        scenario, variant = loading.scenario, loading.variant
        found = differences(scenario.config(variant), state)
        workload = scenario.workload(variant)
        blocks, options = to_set(found) if loading.set_options else (None, ())
        self.app.feed.send(LoadWorkload(workload, None, blocks, options, scenario.until))
        name, count = f"{scenario.name}:{variant.name}", len(workload.jobs)
        rest = told(found, setting=loading.set_options)
        self.app.say(f"{name}: {count} request{'s' * (count != 1)} to come" + (f"; {rest}" if rest else ""))
        self.app.show_look(Look(name, scenario.title, scenario.look, scenario.config(variant)))
