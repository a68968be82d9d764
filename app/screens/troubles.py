"""What goes wrong around the screen or inside one, and how the person hears of it."""

from __future__ import annotations

import traceback
from weakref import WeakSet

from textual._context import active_message_pump
from textual.dom import DOMNode
from textual.screen import Screen
from textual.worker import WorkerFailed, active_worker

from vtop.app.screens.shell import Shell
from vtop.app.terminal.safe_text import shorten
from vtop.app.terminal.stray import StrayOutput
from vtop.engine.thread import ThreadState

ALARM_EVERY = 1.5  # seconds between two notices of refusals and errors; what lies between is counted
STRAY_EVERY = 1.0  # seconds between two looks at what libraries wrote


class Troubles:
    """Looked at with every tick. `failure` says in one line why the engine is gone; empty while it is there.

    `stuck` says likewise which call of a user's policy does not return; the engine can do nothing then, nor be ended.
    """

    def __init__(self, app: Shell, stray: StrayOutput | None) -> None:
        self._app = app
        self._stray = stray
        self._stray_due = 0.0
        self._alarm_due = 0.0
        self._problem = ""
        self.failure = ""
        self.stuck = ""

    @property
    def failed(self) -> bool:
        return bool(self.failure)

    @property
    def last_words(self) -> str:
        """What to say when the screen is gone; empty when all is well."""
        return self.failure or self.stuck

    def look(self, now: float) -> None:
        """Tell what is new. `now` is any clock in seconds."""
        status = self._app.feed.status
        if status.state == ThreadState.FAILED and not self.failed:
            self._engine_failed(status.error, status.trace)
        elif status.stuck != self.stuck and not self.failed:
            self._policy_stuck(status.stuck)
        if now >= self._alarm_due:
            alarm = self._app.pump.alarm()
            if alarm:
                self._alarm_due = now + ALARM_EVERY
                self._app.say(alarm, "error")
        if self._app.feed.problem != self._problem:
            self._problem = self._app.feed.problem
            self._app.say(self._problem, "error")
            self._app.pump.tell("error", self._problem)
        if self._stray is not None and now >= self._stray_due:
            self._stray_due = now + STRAY_EVERY
            news = self._stray.news()
            if news:
                self._app.pump.tell("warning", news)

    def _policy_stuck(self, stuck: str) -> None:
        if not self.stuck:
            self._app.pump.tell("error", stuck)
        self.stuck = stuck
        self._app.overview.banner.say(f"{shorten(stuck, 2000)} | q quits" if stuck else "")
        self._app.overview.rearrange()
        self._app.touch()

    def _engine_failed(self, error: str, trace: str) -> None:
        where = ""
        if self._stray is not None:
            self._stray.write(trace or error)
            where = f" | log: {self._stray.path}"
        loaded = self._app.pump.live is not None
        what = "engine stopped" if loaded else "the model cannot be loaded"
        stale = " | the picture is stale" if loaded else ""
        self.failure = f"{what}: {error}"
        self._app.overview.banner.say(f"{what}: {shorten(error, 2000)}{stale}{where} | q quits")
        self._app.overview.rearrange()
        self._app.touch()


class Closing:
    """Of an app. The overview is no such screen: without it there is nothing to go on with."""

    def __init__(self, app: Shell) -> None:
        self._app = app
        self._broken: WeakSet[Screen[object]] = WeakSet()

    def closed_for(self, error: Exception, where: object = None) -> bool:
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
