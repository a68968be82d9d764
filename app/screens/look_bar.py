"""What is played and what to look at, below the header. A click or its key hides it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from vtop.app.safe_text import cells, clean, shorten

LEAST_HEIGHT = 20  # rows of the screen; a smaller one has none to give
TWO_ROWS_FROM = 34
GAP = "  "


@dataclass(frozen=True, slots=True)
class Look:
    """A scenario's name with its variant, its title, and what it says to look at. All of it may be anybody's text."""

    name: str
    title: str
    text: str


class LookBar(Static):
    """One row, or two on a tall screen when one is too short for all. Hidden while there is nothing to say."""

    class Clicked(Message):
        """The person has seen it."""

    def __init__(self, ascii: bool, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.display = False
        self.look: Look | None = None
        self.wanted = True
        self._ascii = ascii

    def say(self, look: Look | None) -> None:
        """Show this; None hides the bar."""
        self.look, self.wanted = look, True

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
        return sum(cells(clean(part[:1000], ascii=self._ascii)) + 2 for part in (look.name, look.title, look.text)) - 2

    def _content(self, look: Look, width: int, rows: int) -> Content:
        name = shorten(look.name, max(1, width // 3), ascii=self._ascii)
        left = width - cells(name) - len(GAP)
        if rows > 1:
            title = shorten(look.title, left, ascii=self._ascii)
            text = shorten(look.text, width, ascii=self._ascii)
            return Content.assemble((name, "bold $accent"), GAP, (title, "bold"), "\n", text)
        if self._cells(look) > width:  # what to look at goes before what it is called
            return Content.assemble((name, "bold $accent"), GAP, shorten(look.text, left, ascii=self._ascii))
        title, text = (shorten(part, width, ascii=self._ascii) for part in (look.title, look.text))
        return Content.assemble((name, "bold $accent"), GAP, (title, "bold"), GAP, text)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Clicked())
