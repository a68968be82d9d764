"""Says what hangs while there is no screen that would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vtop.app.terminal.printing import tell
from vtop.engine.policies.user import stuck_call

LOOK_EVERY = 0.5  # seconds


@contextmanager
def told_when_stuck(way_out: str = "Ctrl-C ends it") -> Iterator[None]:
    """Say on stderr, once, when a user's policy that this thread asks does not return, and the way out."""
    done, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not done.wait(LOOK_EVERY):
            if stuck := stuck_call(thread):
                tell(f"vtop: {stuck}; {way_out}")
                return

    threading.Thread(target=watch, name="vtop-stuck", daemon=True).start()
    try:
        yield
    finally:
        done.set()
