"""A dialog with fields. What is wrong is said in it, in one line, and nothing typed is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from vtop.app.screens.fields import Choice, TextInput
from vtop.engine.errors import BadValue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field:
    """A line of the form. With `choices` it is one of those, else a text."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    choices: Sequence[str] = ()


class FormScreen(ModalScreen[T | None], Generic[T]):
    """Ends with what `make` returns for the values, or None. `make` raises BadValue for what cannot be used."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", show=False),
        Binding("enter", "submit", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    def __init__(
        self,
        title: str,
        fields: Sequence[Field],
        make: Callable[[dict[str, str]], T],
        *,
        button: str = "OK",
        wide: bool = False,
    ) -> None:
        super().__init__()
        self._title = title
        self._fields = fields
        self._make = make
        self._button = button
        self._wide = wide  # long labels, and what the hint says below them
        self._inputs: dict[str, TextInput | Choice] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide" if self._wide else "dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            with VerticalScroll(classes="dialog-fields", can_focus=False):
                for field in self._fields:
                    with Horizontal(classes="dialog-field"):
                        yield Static(field.label, classes="dialog-label", markup=False)
                        widget: TextInput | Choice
                        if field.choices:
                            widget = Choice(field.choices, field.value, id=f"field-{field.name}")
                        else:
                            widget = TextInput(
                                field.value, placeholder=field.hint, id=f"field-{field.name}", select_on_focus=True
                            )
                        self._inputs[field.name] = widget
                        yield widget
            if self._wide:
                yield Static("", id="dialog-hint", markup=False)
            yield Static("", id="dialog-error", markup=False)
            with Horizontal(classes="dialog-buttons"):
                yield Button(f"{self._button}  Enter", id="submit", variant="primary", compact=True)
                yield Button("Cancel  Esc", id="cancel", compact=True)

    def on_mount(self) -> None:
        next(iter(self._inputs.values())).focus()

    def on_descendant_focus(self) -> None:
        focused = self.focused
        if self._wide and focused is not None:
            hints = {f"field-{field.name}": field.hint for field in self._fields}
            self.query_one("#dialog-hint", Static).update(hints.get(focused.id or "", ""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_submit()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._say("")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "cancel":
            self.dismiss(None)
        else:
            self.action_submit()

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_submit(self) -> None:
        values = {name: widget.value for name, widget in self._inputs.items()}
        try:
            result = self._make(values)
        except BadValue as error:
            self._say(str(error))
            field = self._inputs.get(error.field)
            if field is not None:
                field.focus()
            return
        self.dismiss(result)

    def on_text_input_cut(self, event: TextInput.Cut) -> None:
        event.stop()
        self._say(f"the paste was cut by {event.lost:,} characters")

    def _say(self, text: str) -> None:
        self.query_one("#dialog-error", Static).update(text)


def number(values: dict[str, str], name: str, kind: type[int] | type[float], least: float, most: float) -> float:
    """The number in a field, or BadValue."""
    text = values[name].strip()
    try:
        value = kind(text)
    except ValueError:
        raise BadValue(name, text, "give a whole number" if kind is int else "give a number") from None
    if not least <= value <= most:
        raise BadValue(name, text, f"give {least:g} to {most:g}")
    return value


def whole(values: dict[str, str], name: str, least: int, most: int) -> int:
    """The whole number in a field, or BadValue."""
    return int(number(values, name, int, least, most))
