"""The line at the bottom where a prompt is typed; Enter injects it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from vtop.app.screens.fields import TextInput

_IDLE = "press p, type, and Enter injects it"
_TYPING = "type a prompt; Enter injects it, up: the one before, Esc leaves"
_IDLE_MADE_UP = "press p, type, and Enter injects it; here 4 characters are a made-up token"
_TYPING_MADE_UP = "type a prompt; no model reads it: 4 characters are a made-up token; Enter injects it, Esc leaves"
_KEEP = 50


class PromptBar(Horizontal):
    """Text field with a memory of what was injected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("up", "recall(-1)", show=False),
        Binding("down", "recall(1)", show=False),
    ]

    class Injected(Message):
        """Enter was pressed on a text."""

        def __init__(self, prompt: str) -> None:
            self.prompt = prompt
            super().__init__()

    class Left(Message):
        """Esc: the focus should go elsewhere."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._past: list[str] = []
        self._at = 0
        self._idle, self._typing = _IDLE, _TYPING
        self.input = TextInput(placeholder=_IDLE, id="prompt-input")

    def made_up_tokens(self) -> None:
        """Say that text is not read: a simulation has no tokenizer."""
        self._idle, self._typing = _IDLE_MADE_UP, _TYPING_MADE_UP
        self.input.placeholder = self._idle

    def compose(self) -> ComposeResult:
        yield Static("prompt: ", id="prompt-label", markup=False)
        yield self.input

    def on_descendant_focus(self) -> None:
        self.input.placeholder = self._typing
        self.set_class(True, "-typing")

    def on_descendant_blur(self) -> None:
        self.input.placeholder = self._idle
        self.set_class(False, "-typing")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value
        if not text.strip():
            return
        self._past = [*self._past[-_KEEP:], text]
        self._at = len(self._past)
        self.input.clear()
        self.post_message(self.Injected(text))

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def action_recall(self, step: int) -> None:
        if self._past:
            self._at = max(0, min(len(self._past), self._at + step))
            self.input.value = self._past[self._at] if self._at < len(self._past) else ""
            self.input.cursor_position = len(self.input.value)
