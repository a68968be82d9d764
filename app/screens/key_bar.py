"""The last line: keys that make sense now, as many as fit; each can be clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from vtop.app.actions import Action, Situation, key_sign


class KeyBar(Widget):
    """`key word` pairs from the table of actions. At the right end stands a hint, e.g. which panels are hidden."""

    COMPONENT_CLASSES = {"key-bar--key", "key-bar--word", "key-bar--hint"}  # noqa: RUF012  (Textual's own form)

    class Clicked(Message):
        """A pair was clicked."""

        def __init__(self, action_id: str) -> None:
            self.action_id = action_id
            super().__init__()

    def __init__(self, actions: Sequence[Action], situation: Callable[[], Situation], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._actions = actions
        self._situation = situation
        self._hints: tuple[str, ...] = ()
        self._typing = False
        self._shown: tuple[object, ...] = ()
        self._places: list[tuple[int, int, str]] = []

    def update_bar(self, *, hints: tuple[str, ...], typing: bool) -> None:
        """Draw again if anything on the line is different now. The first of the hints that fits half of it is shown."""
        shown = (self._situation(), hints, typing)
        if shown != self._shown:
            self._shown, self._hints, self._typing = shown, hints, typing
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        key_style = self.get_component_rich_style("key-bar--key")
        word_style = self.get_component_rich_style("key-bar--word")
        hint_style = self.get_component_rich_style("key-bar--hint")
        segments: list[Segment] = []
        self._places = []
        hint = next((hint for hint in self._hints if len(hint) <= width // 2), "")
        room = width - (len(hint) + 2 if hint else 0)
        at = 0
        for key, word, action_id in self._pairs():
            size = len(key) + 1 + len(word) + 2
            if at + size - 2 > room:
                break
            segments += [Segment(key, key_style), Segment(f" {word}  ", word_style)]
            self._places.append((at, at + size - 2, action_id))
            at += size
        if at > width:
            return Strip(segments).crop(0, width)
        pad = width - at - len(hint)
        segments.append(Segment(" " * max(0, pad), word_style))
        if hint and pad >= 0:
            segments.append(Segment(hint, hint_style))
        return Strip(segments).adjust_cell_length(width, word_style)

    def _pairs(self) -> list[tuple[str, str, str]]:
        if self._typing:
            return [("Enter", "inject", ""), ("Esc", "leave", "leave-prompt"), *self._function_keys()]
        now = self._situation()
        pairs = []
        for action in self._actions:
            word = action.footer(now)
            if word and action.keys and action.enabled(now):
                pairs.append((key_sign(action.keys[0]), word, action.id))
        # Leaving and finding help must be on the line at any width.
        last = [pair for pair in pairs if pair[2] in ("help", "quit")]
        return [*last[::-1], *(pair for pair in pairs if pair not in last)]

    def _function_keys(self) -> list[tuple[str, str, str]]:
        """Keys that work while a letter is only a letter."""
        pairs = []
        now = self._situation()
        for action in self._actions:
            key = next((k for k in action.keys if "+" in k or (k[0] == "f" and k[1:].isdigit())), None)
            word = action.footer(now)
            if key and word and action.enabled(now):
                pairs.append((key_sign(key), word, action.id))
        return pairs

    def on_click(self, event: events.Click) -> None:
        for start, end, action_id in self._places:
            if start <= event.x < end and action_id:
                event.stop()
                self.post_message(self.Clicked(action_id))
