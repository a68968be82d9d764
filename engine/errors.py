"""Errors that a user can cause, as types with fields; the one-line text is made here, once."""

from __future__ import annotations

import reprlib


class VtopError(Exception):
    """Base of every error that is shown to the user as one line, without a traceback."""


class BadValue(VtopError, ValueError):
    """A field has a value that cannot be used.

    `field` is the name the user knows (an option, a parameter, a file), `value` what was given, `remedy` what to do.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field} = {shown(value)}: {remedy}")


def shown(value: object) -> str:
    """A value as it was typed, on one line of at most 80 characters, whatever its size and depth."""
    try:
        text = _SHORT.repr(value) if isinstance(value, (int, list, tuple, dict, set, frozenset)) else repr(value)
    except Exception:  # an object whose repr fails
        text = f"a {type(value).__name__}"
    text = in_one_line(text)
    return text if len(text) <= 80 else text[:31] + "..." + text[-46:]  # a path is known by its end


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 40
        self.maxstring = self.maxother = 200

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 256 else f"<a number of about {int(x.bit_length() * 0.30103):,} digits>"


_SHORT = _Short()


def in_one_line(text: str) -> str:
    """`text` without line ends and without what cannot be encoded."""
    return " ".join(text.encode(errors="backslashreplace").decode().split())


def error_line(error: BaseException) -> str:
    """An exception that nobody foresaw, in one line."""
    try:
        text = in_one_line(str(error))
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text[:500]}" if text else name


class DuplicateRequest(BadValue):
    """A request with this id is still alive."""

    def __init__(self, request_id: str) -> None:
        super().__init__("request_id", request_id, "a request with this id is still alive; choose another id")


class ModelRefused(VtopError):
    """A model cannot be served correctly, so it is not served at all. `reason` names the feature."""

    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"model {model!r} cannot be served: {reason}")


class SchedulerStopped(RuntimeError):
    """A scheduler cannot go on, whichever request it looks at: no request is at fault, so none is ended for it."""


class Deadlock(VtopError):
    """Requests wait, and nothing that changes that will ever happen. A bug of the scheduler, not of a request."""


class PoolError(Exception):
    """A caller broke the block pool's contract (double release, unknown block). A bug, not a user error."""


class NoFreeBlocks(PoolError):
    """`need` blocks were asked for and only `available` are. Callers ask `can_*` first."""

    def __init__(self, need: int, available: int) -> None:
        self.need = need
        self.available = available
        super().__init__(f"need {need} blocks, {available} available")
