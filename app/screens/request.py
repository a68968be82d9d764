"""One request on the whole screen: all about it, or why it is where it is."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from vtop.app.live.view import View
from vtop.app.screens.key_bar import KeyBar
from vtop.app.widgets.header_bar import HeaderBar
from vtop.app.widgets.panel import ListPanel
from vtop.app.widgets.request_detail import RequestDetail
from vtop.app.widgets.why_panel import WhyPanel


class RequestScreen(Screen[None]):
    """Header, details of the selected request, keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right_square_bracket", "app.neighbour(1)", "Next request", show=False),
        Binding("b,left_square_bracket", "app.neighbour(-1)", "Previous request", show=False),
    ]

    def __init__(self, key_bar: KeyBar, detail: ListPanel | None = None) -> None:
        super().__init__()
        self.key_bar = key_bar
        self.header = HeaderBar(id="header")
        self.detail = detail if detail is not None else RequestDetail(id="detail")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.detail
        yield self.key_bar

    def on_mount(self) -> None:
        self.detail.focus()

    @property
    def hints(self) -> tuple[str, ...]:
        return ("n next, b previous",)

    @property
    def typing(self) -> bool:
        return False

    def draw(self, view: View, status: str) -> None:
        """Show the view; `status` is the engine's, for the header."""
        self.header.show(view, status)
        self.detail.show(view)


class WhyScreen(RequestScreen):
    """Like the request screen, with the answer to *why* in the middle."""

    def __init__(self, key_bar: KeyBar) -> None:
        super().__init__(key_bar, WhyPanel(id="detail"))
