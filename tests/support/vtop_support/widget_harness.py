"""Mounts one widget in an app of its own, and reads what is on its rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.message import Message
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widget import Widget

from vtop.app.live.view import View
from vtop.app.widgets.panel import Panel


class OneWidget(App[None]):
    """Holds a widget, and keeps the messages it posts."""

    def __init__(self, widget: Widget, theme: str = "textual-dark", rows: int | None = None) -> None:
        super().__init__()
        self.animation_level = "none"
        self.widget = widget
        self.seen: list[Message] = []
        self._wanted = theme
        self._height = rows

    def compose(self) -> ComposeResult:
        yield self.widget

    def on_mount(self) -> None:
        self.theme = self._wanted
        if self._height is not None:
            self.widget.styles.height = self._height


Show = Callable[[], None]


@asynccontextmanager
async def mounted(
    widget: Panel, view: View, width: int = 80, height: int = 24, theme: str = "textual-dark", rows: int | None = None
) -> AsyncIterator[Pilot[None]]:
    """The widget on a screen of that size, showing the view."""
    app = OneWidget(widget, theme, rows)

    def keep(message: Message) -> None:
        # The hook is called again for each node that a message bubbles to.
        own = type(message).__qualname__.startswith(f"{type(widget).__name__}.")
        if own and not any(message is other for other in app.seen):
            app.seen.append(message)

    async with app.run_test(size=(width, height), message_hook=keep) as pilot:
        await pilot.pause()
        widget.show(view)
        await pilot.pause()
        yield pilot


def strips_of(widget: Widget) -> list[Strip]:
    """What the widget gives to the screen, filters included."""
    width, height = widget.outer_size
    return widget.render_lines(Region(0, 0, width, height))


def lines_of(widget: Widget) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in strips_of(widget)]


def assert_exact(widget: Widget) -> list[str]:
    """Every row is as wide as the widget, by the width that the characters really have."""
    lines = lines_of(widget)
    width, height = widget.outer_size
    assert len(lines) == height
    for y, (line, strip) in enumerate(zip(lines, strips_of(widget), strict=True)):
        assert cell_len(line) == width == strip.cell_length, (y, cell_len(line), width, line)
        assert line.isprintable(), (y, line)
    return lines
