"""A field with a few values: < mixed >. Left, right, space or a click go round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget


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
