"""What goes wrong inside a screen on top of the overview closes that screen with a notice; the app goes on."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING
from weakref import WeakSet

from textual._context import active_message_pump
from textual.dom import DOMNode
from textual.screen import Screen
from textual.worker import WorkerFailed, active_worker

from vtop.app.terminal.safe_text import shorten

if TYPE_CHECKING:
    from vtop.app.main import VtopApp


class Closing:
    """Of an app. The overview is no such screen: without it there is nothing to go on with."""

    def __init__(self, app: VtopApp) -> None:
        self._app = app
        self._broken: WeakSet[Screen[object]] = WeakSet()

    def took(self, error: Exception, where: object = None) -> bool:
        """Whether the screen that `where`, or what runs now, belongs to is closed for it. Else it is for the caller."""
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error, where = error.error, active_worker.get().node
        node = where if where is not None else active_message_pump.get(None)
        screen = self._screen_of(node)
        if screen is None or self._app.is_leaving:
            return False
        if screen not in self._broken:
            self._broken.add(screen)
            if self._app.stray is not None:
                self._app.stray.write("".join(traceback.format_exception(error)))
            self._app.call_next(self._close, screen, f"{type(error).__name__}: {error}".split("\n")[0])
        return True

    def _screen_of(self, node: object) -> Screen[object] | None:
        """The screen that a widget is in, if the app can do without it."""
        nodes = node.ancestors_with_self if isinstance(node, DOMNode) else []
        screen = next((other for other in nodes if isinstance(other, Screen)), None)
        return None if screen is self._app.overview else screen

    async def _close(self, screen: Screen[object], why: str) -> None:
        app = self._app
        name = type(screen).__name__
        while screen in app.screen_stack:
            await app.pop_screen()
        where = f"; full text: {app.stray.path}" if app.stray is not None else ""
        app.say(f"{name} closed: {shorten(why, 160)}{where}", "error")
        app.touch()
