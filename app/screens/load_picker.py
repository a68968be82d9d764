"""What to load: a burst, the user's own file, or a scenario of the gallery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from vtop.app.screens.form import Field, FormScreen
from vtop.app.terminal.safe_text import fit, shorten
from vtop.engine.errors import BadValue
from vtop.engine.scenarios.scenario import Scenario, load_scenario
from vtop.engine.user_files import read_toml
from vtop.engine.user_folders import typed_path

BURST, FILE = "burst", "file"  # scenarios' ids begin with a mark, so that one may be called so
MARK = "scenario:"
NAME_CELLS, TEXT_CELLS = 14, 52
AROUND = 11  # rows of the dialog beside the list
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
        self.query_one(OptionList).styles.max_height = max(3, self.size.height - AROUND)

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
