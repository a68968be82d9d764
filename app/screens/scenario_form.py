"""Which variant of a scenario to load into the engine that runs, and whether to set its options too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vtop.app.screens.fields import Choice
from vtop.app.terminal.safe_text import shorten
from vtop.engine.scenarios.scenario import Scenario, Variant

AROUND = 10  # rows of the dialog beside its fields
SET, LEAVE = "set them too", "leave them"


@dataclass(frozen=True, slots=True)
class Loading:
    """What the form asks for."""

    scenario: Scenario
    variant: Variant
    set_options: bool


class ScenarioForm(ModalScreen[Loading | None]):
    """`differs` says, for a variant, in what the engine is not as the scenario expects; empty when in nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("enter", "submit", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(self, scenario: Scenario, differs: Callable[[Variant], str], ascii: bool) -> None:
        super().__init__()
        self._scenario = scenario
        self._differs = differs
        self._ascii = ascii
        # Anybody's text: the values shown are cleaned, and looked up by their place
        self._names = [shorten(variant.name, 40, ascii=ascii) for variant in scenario.variants]
        self._variant = Choice(self._names, self._names[0], id="field-variant")
        self._options = Choice((SET, LEAVE), SET, id="field-options")

    def compose(self) -> ComposeResult:
        scenario = self._scenario
        with Vertical(classes="dialog"):
            title = shorten(f"{scenario.name}: {scenario.title}", 140, ascii=self._ascii)
            yield Static(title, classes="dialog-title", markup=False)
            with VerticalScroll(classes="dialog-fields", can_focus=False):
                yield Static(shorten(scenario.look, 300, ascii=self._ascii), id="scenario-look", markup=False)
                with Horizontal(classes="dialog-field"):
                    yield Static("Variant", classes="dialog-label", markup=False)
                    yield self._variant
                with Horizontal(classes="dialog-field"):
                    yield Static("Its options", classes="dialog-label", markup=False)
                    yield self._options
                yield Static("", id="scenario-differs", markup=False)
            with Horizontal(classes="dialog-buttons"):
                yield Button("Load  Enter", id="submit", variant="primary", compact=True)
                yield Button("Cancel  Esc", id="cancel", compact=True)

    def on_mount(self) -> None:
        self._variant.focus()
        self._say()

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(VerticalScroll).styles.max_height = max(3, min(14, self.size.height - AROUND))

    def on_choice_changed(self, event: Choice.Changed) -> None:
        event.stop()
        self._say()

    def _say(self) -> None:
        text = self._differs(self._chosen) or "the engine is set up as the scenario expects"
        self.query_one("#scenario-differs", Static).update(shorten(text, 600, ascii=self._ascii))

    @property
    def _chosen(self) -> Variant:
        return self._scenario.variants[self._variant.index]

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "cancel":
            self.dismiss(None)
        else:
            self.action_submit()

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_submit(self) -> None:
        self.dismiss(Loading(self._scenario, self._chosen, self._options.value == SET))
