"""A line that must not be missed: the engine stopped, or hangs."""

from __future__ import annotations

from textual.widgets import Static

from vtop.app.terminal.safe_text import cells

_MOST_ROWS = 3


class Banner(Static):
    """Hidden until there is something to say."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.display = False
        self._text = ""

    def rows(self, width: int) -> int:
        """Rows it takes on a screen of that width; 0 while there is nothing to say."""
        return min(_MOST_ROWS, -(-cells(self._text) // max(1, width - 2))) if self.display else 0

    def say(self, text: str) -> None:
        """Show a line; a narrow screen breaks it. An empty one hides the banner."""
        self._text = text
        self.update(text)
        self.display = bool(text)
