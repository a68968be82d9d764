"""Loads many requests into the engine that runs: which scenario, which variant, with its options or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from vtop.app.live.playing import Look, differences, differences_text, options_to_set
from vtop.app.screens.fields import Choice
from vtop.app.screens.form import Field, FormScreen
from vtop.app.screens.shell import Shell
from vtop.app.terminal.safe_text import fit, shorten
from vtop.engine.commands import LoadWorkload
from vtop.engine.errors import BadValue
from vtop.engine.scenarios.scenario import Scenario, Variant, gallery, load_scenario
from vtop.engine.user_files import read_toml, typed_path

BURST, FILE = "burst", "file"  # scenarios' ids begin with a mark, so that one may be called so
MARK = "scenario:"
NAME_CELLS, TEXT_CELLS = 14, 52
_AROUND_LIST = 11  # rows of the picker beside its list
_AROUND_FIELDS = 10  # rows of the form beside its fields
SET, LEAVE = "set them too", "leave them"
_OWN = (
    (BURST, "burst...", "many made-up prompts at once, with a distribution of lengths"),
    (FILE, "file...", "a scenario of your own, a TOML file"),
)


class LoadPicker(ModalScreen[str | None]):
    """Ends with BURST, FILE, MARK + name of a scenario, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", show=False),
        Binding("j", "move('down')", show=False),
        Binding("k", "move('up')", show=False),
    ]

    def __init__(self, scenarios: Mapping[str, Path], ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._heads = {name: _head(path) for name, path in scenarios.items()}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Load requests", classes="dialog-title", markup=False)
            options = [self._option(id_, name, text) for id_, name, text in _OWN]
            options += [self._option(MARK + name, name, title) for name, (title, _) in self._heads.items()]
            yield OptionList(*options, id="load-list", markup=False)
            yield Static("", id="load-hint", markup=False)
            yield Static("Enter: load   Esc: back", id="load-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(OptionList).styles.max_height = max(3, self.size.height - _AROUND_LIST)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        name = (event.option_id or "").removeprefix(MARK)
        look = self._heads[name][1] if name in self._heads else ""
        self.query_one("#load-hint", Static).update(shorten(look, 140, ascii=self._ascii))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)

    def action_move(self, way: str) -> None:
        listed = self.query_one(OptionList)
        listed.action_cursor_down() if way == "down" else listed.action_cursor_up()

    def _option(self, id_: str, name: str, text: str) -> Option:
        shown, rest = fit(name, NAME_CELLS, ascii=self._ascii), shorten(text, TEXT_CELLS, ascii=self._ascii)
        return Option(Content.assemble((shown, "bold"), rest), id=id_)


def _head(path: Path) -> tuple[str, str]:
    """Title and what to look at; the rest is read and checked when it is chosen."""
    try:
        data = read_toml("scenario", path)
    except BadValue:
        return path.name, ""
    return str(data.get("title", path.stem)), str(data.get("look", ""))


def file_form() -> FormScreen[Scenario]:
    """Ask for a file; ends with the scenario in it. What is wrong with it is said in the form."""

    def make(values: dict[str, str]) -> Scenario:
        text = values["path"].strip()
        if not text:
            raise BadValue("path", text, "give a TOML file")
        return load_scenario(typed_path(text))

    return FormScreen("Load a scenario of your own", [Field("path", "File", hint="a TOML file")], make, button="Read")


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
        self.query_one(VerticalScroll).styles.max_height = max(3, min(14, self.size.height - _AROUND_FIELDS))

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


class Loader:
    """Asks and sends. `burst` asks for a burst of made-up prompts."""

    def __init__(self, app: Shell, burst: Callable[[], None]) -> None:
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
            return differences_text(differences(scenario.config(variant), state))

        self.app.push_screen(ScenarioForm(scenario, differs, self.app.view.ascii), self._send)

    def _send(self, loading: Loading | None) -> None:
        state = self.app.pump.live
        if loading is None or state is None:
            return
        scenario, variant = loading.scenario, loading.variant
        found = differences(scenario.config(variant), state)
        workload = scenario.workload(variant)
        blocks, options = options_to_set(found) if loading.set_options else (None, ())
        self.app.feed.send(LoadWorkload(workload, None, blocks, options, scenario.until))
        name, count = f"{scenario.name}:{variant.name}", len(workload.jobs)
        rest = differences_text(found, setting=loading.set_options)
        self.app.say(f"{name}: {count} request{'s' * (count != 1)} to come" + (f"; {rest}" if rest else ""))
        self.app.show_look(Look(name, scenario.title, scenario.look, scenario.config(variant)))
