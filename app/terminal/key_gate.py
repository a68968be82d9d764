"""One key at a time: a key that comes while the one before is still at work waits until that has come to rest.

Textual hands each key to the widget that has the focus when the key comes. What an earlier key set off (a screen that
opens, a focus that moves) takes messages between widgets, and keys typed meanwhile would go to where the focus was.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from time import monotonic
from weakref import WeakSet

from textual import events
from textual._queue import Queue
from textual.app import App
from textual.message import Message
from textual.message_pump import MessagePump

LIMIT = 10.0  # seconds that a key waits at most; a widget that is at work longer is not waited for again
EAGER = 200  # looks in a row, one per turn of the event loop; then only every
PAUSE = 0.002  # seconds, so that a widget that waits for something does not make the loop spin

Input = events.Key | events.Paste | events.MouseDown | events.MouseUp


class KeyGate:
    """Of an app. Keys, pastes and mouse buttons come through in their order, none is lost."""

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._held: deque[Input] = deque()
        self._let_in: Input | None = None
        self._at_work = False  # something was let in, and has not been seen at rest
        self._since = 0.0
        self._looks = 0
        self._hung: WeakSet[MessagePump] = WeakSet()

    def admits(self, event: Input) -> bool:
        """Whether to handle it now. If not, it is posted to the app again when it may go on."""
        if event is self._let_in:
            self._let_in = None
            if self._held:
                self._begin()
        elif self._held or self._let_in is not None or (self._at_work and any(self._busy(handling=True))):
            self._held.append(event)
            if len(self._held) == 1 and self._let_in is None:
                self._begin()
            return False
        self._at_work = True
        return True

    def _begin(self) -> None:
        self._since, self._looks = monotonic(), 0
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Let the next one in if nothing is at work any more."""
        waited = monotonic() - self._since
        busy = list(self._busy())
        if busy and waited < LIMIT:
            self._looks += 1
            asyncio.get_running_loop().call_later(0 if self._looks < EAGER else PAUSE, self._look)
            return
        self._hung.update(busy)
        self._let_in = self._held.popleft()
        if not self._app.post_message(self._let_in):
            self._let_in = None  # the app ends
            self._held.clear()

    def _busy(self, handling: bool = False) -> Iterator[MessagePump]:
        """Who has messages to handle, or is not there yet. `handling`: the app itself is handling the one asked about.

        Textual has no public word for it: who is at rest waits for something to come into its queue.
        """
        for pump in (self._app, *self._app._registry):
            if pump._is_mounted and not pump.is_running:
                continue  # it has ended
            queue: Queue[Message | None] = pump._message_queue
            waits = bool(getattr(queue.ready_event, "_waiters", True)) or (handling and pump is self._app)
            if waits and queue.empty() and pump._is_mounted and not pump._next_callbacks:
                self._hung.discard(pump)
            elif pump not in self._hung:
                yield pump
