"""What stands beside the panels: how far loading is, and what must not be missed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from vtop.app.terminal.glyphs import thin_bar
from vtop.app.terminal.safe_text import cells
from vtop.engine.thread import ThreadStatus

_BAR_WIDTH = 40
_BANNER_ROWS = 3


class LoadingPanel(Vertical):
    """Stage and progress bar. Drawn from what the engine's thread last said; moves only when that changes."""

    def __init__(self, model: str, ascii: bool, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._model = model
        self._ascii = ascii
        self._status: ThreadStatus | None = None

    def compose(self) -> ComposeResult:
        yield Static(f"loading model {self._model}", id="loading-model", markup=False)
        yield Static("", id="loading-bar", markup=False)
        yield Static("starting", id="loading-stage", markup=False)

    def show_status(self, status: ThreadStatus) -> None:
        """Draw what the engine's thread is at."""
        if status == self._status:
            return
        self._status = status
        known = status.total is not None and status.total > 0
        share = status.done / status.total if status.total else 0.0
        done, rest = thin_bar(share, _BAR_WIDTH, self._ascii)
        picture = Content.assemble((done, "$primary"), (rest, "$panel"), f" {share:4.0%}") if known else Content("")
        self.query_one("#loading-bar", Static).update(picture)
        text = status.stage or "starting"
        if known:
            text += f", {_amount(status.done)} of {_amount(status.total or 0)}"
        self.query_one("#loading-stage", Static).update(text)


def _amount(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 10 * 2**20 else f"{count:,}"


class Banner(Static):
    """Hidden until there is something to say."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.display = False
        self._text = ""

    def rows(self, width: int) -> int:
        """Rows it takes on a screen of that width; 0 while there is nothing to say."""
        return min(_BANNER_ROWS, -(-cells(self._text) // max(1, width - 2))) if self.display else 0

    def say(self, text: str) -> None:
        """Show a line; a narrow screen breaks it. An empty one hides the banner."""
        self._text = text
        self.update(text)
        self.display = bool(text)
