"""Where Frames come from and commands go to. The screen knows no more about an engine than this."""

from __future__ import annotations

from typing import Protocol

from vtop.engine.commands import Command
from vtop.engine.events import Frame, Meta
from vtop.engine.thread import ThreadStatus


class Feed(Protocol):
    """A live engine, or whatever looks like one. Called from the screen's thread; nothing here blocks but `close`."""

    @property
    def meta(self) -> Meta | None:
        """Facts about the engine; None until it is loaded."""
        ...

    @property
    def status(self) -> ThreadStatus:
        """What the engine is doing now; after a failure, what failed."""
        ...

    @property
    def problem(self) -> str:
        """What went wrong beside the engine, such as the recording; empty while all is well."""
        ...

    @property
    def pending(self) -> int:
        """Frames that `drain` would give."""
        ...

    def start(self) -> None:
        """Begin to load; called once, when the screen has been painted."""
        ...

    def drain(self, limit: int | None = None) -> list[Frame]:
        """Frames since the last call, oldest first; at most `limit`."""
        ...

    def busy(self, busy: bool) -> None:
        """The screen folds and draws, or is done with it: an engine that wants the interpreter may wait meanwhile."""
        ...

    def send(self, command: Command) -> None:
        """Queue a command; what it did comes back as a Frame."""
        ...

    def close(self, timeout: float = 1.0) -> bool:
        """Stop; true when everything ended within `timeout` seconds."""
        ...
