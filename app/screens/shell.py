"""The app as those know it who act on it: screens, handlers, troubles. `main` makes one, and imports them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

from textual.app import App

from vtop.app.actions import BY_ID, Action, key_sign
from vtop.app.live.feed import Feed
from vtop.app.live.inject import Injector
from vtop.app.live.playing import Look
from vtop.app.live.pump import Pump
from vtop.app.live.view import View
from vtop.app.screens.overview import OverviewScreen
from vtop.app.terminal.safe_text import shorten
from vtop.app.terminal.stray import StrayOutput
from vtop.app.terminal.themes import Themes
from vtop.app.widgets.selection import Selection

Severity = Literal["information", "warning", "error"]


class Shell(App[None]):
    """What is shown and by whom it is fed, and what may be done to it. A subclass draws and sets all of it."""

    feed: Feed
    view: View
    pump: Pump
    selection: Selection
    overview: OverviewScreen
    injector: Injector
    themes: Themes
    actions: tuple[Action, ...]  # with the user's keys
    stray: StrayOutput | None
    cap: float | None  # on steps per second

    def __init__(self) -> None:
        super().__init__()
        self.on_leave: Callable[[int], None] = lambda code: None
        self._leaving = False

    # --- what a subclass gives ---------------------------------------------------------------------------------

    def touch(self) -> None:
        """Something else than Frames changed the view: draw it now, not with the next tick."""
        raise NotImplementedError

    def select(self, request_id: str | None, block: int | None = None) -> None:
        """Light a request everywhere."""
        raise NotImplementedError

    def open_request(self) -> None:
        """Show the selected request on the whole screen."""
        raise NotImplementedError

    def open_why(self) -> None:
        """Say why the selected request is where it is; once more goes back."""
        raise NotImplementedError

    def show_look(self, look: Look) -> None:
        """Say what is played now, and what to look at."""
        raise NotImplementedError

    @property
    def last_words(self) -> str:
        """What to say of the engine when the screen is gone; empty when all is well."""
        raise NotImplementedError

    # --- its end -----------------------------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        """The app is about to end."""
        return self._leaving

    def leave(self, code: int) -> None:
        """End the app with that exit code."""
        if not self._leaving:
            self._leaving = True
            self.on_leave(code)
            self.exit(return_code=code)

    def leave_from_anywhere(self, code: int) -> None:
        """The same from a signal handler or another thread."""
        loop: asyncio.AbstractEventLoop | None = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.leave, code)

    @property
    def crash(self) -> str:
        """What an exception in the screen was, in one line; empty when there was none."""
        error = self._exception
        return "" if error is None else f"{type(error).__name__}: {error}".split("\n")[0]

    # --- words -------------------------------------------------------------------------------------------------

    def say(self, text: str, severity: Severity = "information") -> None:
        """Show a short notice. Never markup."""
        self.notify(shorten(text, 300), severity=severity, markup=False, timeout=4)

    def clean(self, text: str) -> str:
        """A request id or the like, fit for a question or a notice."""
        return shorten(text, 40, ascii=self.view.ascii)

    def keys_of(self, action_id: str) -> tuple[str, ...]:
        """The keys of an action, the user's where there are any."""
        return next(action.keys for action in self.actions if action.id == action_id)

    def sign_of(self, action_id: str) -> str:
        """How the first key of an action is written; its title when it has none."""
        keys = self.keys_of(action_id)
        return key_sign(keys[0]) if keys else BY_ID[action_id].title
