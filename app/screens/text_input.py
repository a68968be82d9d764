"""A one-line text field that survives any paste: a huge one is cut, line ends and control characters become spaces."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import Input

from vtop.app.live.inject import MAX_PROMPT

_SPACES = dict.fromkeys((*range(32), *range(127, 160), 8232, 8233), " ")


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
