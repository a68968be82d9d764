"""Why the selected request is where it is, on the whole screen."""

from __future__ import annotations

from vtop.app.screens.key_bar import KeyBar
from vtop.app.screens.request import RequestScreen
from vtop.app.widgets.why_panel import WhyPanel


class WhyScreen(RequestScreen):
    """Like the request screen, with the answer to *why* in the middle."""

    def __init__(self, key_bar: KeyBar) -> None:
        super().__init__(key_bar, WhyPanel(id="detail"))
