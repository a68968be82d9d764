"""A question with yes and no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class ConfirmScreen(ModalScreen[bool]):
    """Ends with true for yes. `again` is the key that asked: pressing it twice is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape", "answer(False)", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, *, yes: str, again: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._question = question
        self._yes = yes
        for key in again:
            self._bindings.bind(key, "answer(True)", show=False)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small"):
            yield Static(self._question, classes="dialog-question", markup=False)
            with Horizontal(classes="dialog-buttons"):
                yield Button(f"{self._yes}  y", id="yes", variant="error", compact=True)
                yield Button("No  n", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
