"""The fields of dialogs: a line of text that survives any paste, and a choice among a few values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from vtop.app.live.inject import MAX_PROMPT

_SPACES = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


class Choice(Widget, can_focus=True):
    """One of `values`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", show=False),
        Binding("right,space", "turn(1)", show=False),
    ]

    class Changed(Message):
        """Another value was chosen."""

    def __init__(self, values: Sequence[str], value: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._values = list(values)
        self.index = self._values.index(value)

    @property
    def value(self) -> str:
        return self._values[self.index]

    def render(self) -> Content:
        return Content(f"< {self.value} >")

    def action_turn(self, step: int) -> None:
        self.index = (self.index + step) % len(self._values)
        self.refresh()
        self.post_message(self.Changed())

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.action_turn(1)


class TextInput(Input):
    """An Input without a blinking cursor (it would draw twice a second while nothing happens)."""

    class Cut(Message):
        """A paste was longer than fits; `lost` characters were left out."""

        def __init__(self, lost: int) -> None:
            self.lost = lost
            super().__init__()

    def __init__(
        self, value: str = "", *, placeholder: str = "", id: str | None = None, select_on_focus: bool = False
    ) -> None:
        super().__init__(value, placeholder=placeholder, id=id, compact=True, select_on_focus=select_on_focus)
        self.cursor_blink = False

    def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        room = max(0, MAX_PROMPT - len(self.value) + len(self.selected_text))
        text = event.text[:room].rstrip("\r\n").replace("\r\n", "\n").translate(_SPACES)
        if len(event.text) > room:
            self.post_message(self.Cut(len(event.text) - room))
        self.replace(text, *self.selection) if not self.selection.is_empty else self.insert_text_at_cursor(text)
