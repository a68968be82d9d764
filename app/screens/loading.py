"""What is seen while the model loads, and when it cannot be loaded."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from vtop.app.terminal.glyphs import thin_bar
from vtop.engine.thread import ThreadStatus

_WIDTH = 40


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
        done, rest = thin_bar(share, _WIDTH, self._ascii)
        picture = Content.assemble((done, "$primary"), (rest, "$panel"), f" {share:4.0%}") if known else Content("")
        self.query_one("#loading-bar", Static).update(picture)
        text = status.stage or "starting"
        if known:
            text += f", {_amount(status.done)} of {_amount(status.total or 0)}"
        self.query_one("#loading-stage", Static).update(text)


def _amount(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 10 * 2**20 else f"{count:,}"
