"""Which call into a user's policy each thread is in, so that another thread can tell when one does not return.

Nothing can end such a call from outside: who watches can say what hangs, and leave. A call that holds the interpreter
(a loop inside C, as in `sum(itertools.count())`) cannot even be watched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

STUCK_AFTER = 2.0  # seconds in one call: a policy is asked thousands of times per second

P = ParamSpec("P")
R = TypeVar("R")
_calls: dict[int, tuple[str, str, float]] = {}  # by thread: the policy, what of it, time.monotonic() when it began


def call_user(policy: str, what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `function`, which is `what` of the user's `policy`, returns or raises."""
    thread = threading.get_ident()
    _calls[thread] = policy, what, time.monotonic()
    try:
        return function(*args, **kwargs)
    finally:
        _calls.pop(thread, None)


def stuck_call(thread: int | None) -> str:
    """Of the thread with that identifier: the call that has not returned for STUCK_AFTER, in one line; else empty."""
    call = None if thread is None else _calls.get(thread)
    if call is None:
        return ""
    policy, what, since = call
    seconds = time.monotonic() - since
    return f"policy {policy}: {what} has not returned for {seconds:.0f} s" if seconds >= STUCK_AFTER else ""
