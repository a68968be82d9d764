"""What is played and what to look at, below the header. A click or its key hides it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from vtop.app.screens.expects import differences, words
from vtop.app.terminal.safe_text import cells, clean, shorten
from vtop.engine.apply import PER_SECOND, SECONDS
from vtop.engine.config import EngineConfig
from vtop.engine.state.fold import EngineState

LEAST_HEIGHT = 20  # rows of the screen; a smaller one has none to give
TWO_ROWS_FROM = 34
GAP = "  "
STRETCHED = frozenset((*SECONDS, *PER_SECOND))


@dataclass(frozen=True, slots=True)
class Look:
    """A scenario's name with its variant, its title, and what it says to look at. All of it may be anybody's text."""

    name: str
    title: str
    text: str
    expects: EngineConfig | None = None  # its options; the engine may have others


def unlike(look: Look, state: EngineState | None, virtual: bool) -> str:
    """In what the engine is not, now, as the scenario expects; empty when in nothing. Not cleaned."""
    if look.expects is None or state is None:
        return ""
    found = differences(look.expects, state)
    if not virtual:  # times were stretched with those of the jobs
        found = [d for d in found if d.name not in STRETCHED or d.here is None or d.expected is None]
    return f"differs: {', '.join(map(words, found))}" if found else ""


class LookBar(Static):
    """One row, or two on a tall screen when one is too short for all. Hidden while there is nothing to say.

    What of the scenario does not hold in this engine is said first: else the line would claim what is not there.
    """

    class Clicked(Message):
        """The person has seen it."""

    def __init__(self, ascii: bool, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.display = False
        self.look: Look | None = None
        self.wanted = True
        self._unlike = ""
        self._ascii = ascii

    def say(self, look: Look | None) -> None:
        """Show this; None hides the bar."""
        self.look, self.wanted = look, True

    def compare(self, state: EngineState | None, virtual: bool) -> bool:
        """See in what the engine is unlike what the scenario expects; true when that has changed."""
        before = self._unlike
        self._unlike = "" if self.look is None else unlike(self.look, state, virtual)
        return self._unlike != before

    def rows(self, width: int, height: int) -> int:
        """Rows it takes on a screen of that size."""
        if self.look is None or not self.wanted or height < LEAST_HEIGHT:
            return 0
        return 2 if height >= TWO_ROWS_FROM and self._cells(self.look) > width - 2 else 1

    def place(self, width: int, height: int) -> None:
        """Draw for a screen of that size."""
        rows = self.rows(width, height)
        self.display = rows > 0
        if self.look is not None and rows:
            self.styles.height = rows
            self.update(self._content(self.look, max(1, width - 2), rows))

    def _cells(self, look: Look) -> int:
        parts = [part for part in (look.name, self._unlike, look.title, look.text) if part]
        return sum(cells(clean(part[:1000], ascii=self._ascii)) + len(GAP) for part in parts) - len(GAP)

    def _content(self, look: Look, width: int, rows: int) -> Content:
        name = shorten(look.name, max(1, width // 3), ascii=self._ascii)
        left = width - cells(name) - len(GAP)
        parts: list[str | tuple[str, str] | Content] = [(name, "bold $accent"), GAP]
        whole = self._cells(look) <= width
        if self._unlike:
            most = left if rows > 1 or whole else left * 2 // 3
            said = shorten(self._unlike, most, ascii=self._ascii)
            parts += [(said, "$warning"), GAP]
            left -= cells(said) + len(GAP)
        if rows > 1:
            if left > 0:
                parts.append((shorten(look.title, left, ascii=self._ascii), "bold"))
            return Content.assemble(*parts, "\n", shorten(look.text, width, ascii=self._ascii))
        if whole:
            parts += [(shorten(look.title, width, ascii=self._ascii), "bold"), GAP]
        # else what to look at goes before what it is called
        return Content.assemble(*parts, shorten(look.text, max(1, width if whole else left), ascii=self._ascii))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Clicked())
