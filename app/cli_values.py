"""Numbers on the command line, read as they are written: nothing is rounded, and nothing but none means none."""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin

import cyclopts

_WHOLE = re.compile(r"[+-]?\d{1,1000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.ASCII | re.IGNORECASE)


class Unset:
    """`none` was given for an option that may be none; None itself stands for an option that was not given."""


UNSET = Unset()


def strict(kind: Any, tokens: Sequence[Any]) -> Any:
    """A converter for cyclopts, of an option that may be none. Raises ValueError for text that is not of that kind."""
    if len(tokens) == 1 and tokens[0].value.lower() == "none":
        return UNSET
    return strict_given(kind, tokens)


def strict_given(kind: Any, tokens: Sequence[Any]) -> Any:
    """The same for one that is None only when it is not given."""
    plain = _without_none(kind)
    return cyclopts.convert(plain, tokens, converter=number if _is_number(plain) else None)


def kind_word(kind: Any) -> str:
    """What to give for a value of that type."""
    known = {int: "a whole number", float: "a number", bool: "true or false"}
    return known.get(_without_none(kind), f"a {getattr(kind, '__name__', 'value').lower()}")


def number(kind: type, text: str) -> Any:
    """An int or a float as it is usually written. Raises ValueError."""
    if not (_WHOLE if kind is int else _NUMBER).fullmatch(text.strip()):
        raise ValueError(text)
    return kind(text)


def _is_number(kind: Any) -> bool:
    return kind in (int, float) or (get_origin(kind) is list and get_args(kind)[0] in (int, float))


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return next(k for k in get_args(kind) if k is not type(None))
    return kind
