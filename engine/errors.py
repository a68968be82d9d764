"""Errors that a user can cause, as types with fields; the one-line text is made here, once."""

from __future__ import annotations


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
        super().__init__(f"{field} = {_shown(value)}: {remedy}")


def _shown(value: object) -> str:
    """The value as it was typed, on one line and not too long, whatever it is."""
    try:
        shown = repr(value)
    except Exception:  # a number of thousands of digits, an object whose repr fails
        shown = f"a {type(value).__name__}"
    shown = in_one_line(shown)
    return shown if len(shown) <= 80 else shown[:31] + "..." + shown[-46:]  # a path is known by its end


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


class PoolError(Exception):
    """A caller broke the block pool's contract (double release, unknown block). A bug, not a user error."""


class NoFreeBlocks(PoolError):
    """`need` blocks were asked for and only `free` are free. Callers ask `can_*` first."""

    def __init__(self, need: int, free: int) -> None:
        self.need = need
        self.free = free
        super().__init__(f"need {need} blocks, {free} free")
