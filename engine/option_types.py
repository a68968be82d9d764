"""What an option may be, by the type hints of EngineConfig: one check for files, the command line and live switches."""

from __future__ import annotations

import difflib
import functools
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vtop.engine.errors import BadValue
from vtop.engine.fields import check_text

_WORDS: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none",
}  # fmt: skip
MOST_BITS = 64  # what counters, arrays and recordings hold


def check_option(name: str, value: Any) -> None:
    """Raise BadValue unless `value` is of the type of option `name`; ranges are EngineConfig's own."""
    hint = _hint(name)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if not isinstance(value, str) or value not in choices:
            raise BadValue(name, value, f"choose one of {', '.join(choices)}")
        return
    kinds = option_kinds(name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if type(value) not in kinds and not (float in kinds and whole):
        words = [word for kind, word in _WORDS.items() if kind in kinds]
        raise BadValue(name, value, f"give {', or '.join(words)}")
    if isinstance(value, str):
        check_text(name, value)
        if "\0" in value:
            raise BadValue(name, value, "give a text without zero characters")
    if isinstance(value, float) and math.isnan(value):
        raise BadValue(name, value, "give a number")
    if whole and value.bit_length() > MOST_BITS:
        raise BadValue(name, value, f"give a whole number of at most {MOST_BITS} bits")


def option_kinds(name: str) -> set[type]:
    """The types that an option takes; none for one whose values are chosen by name."""
    hint = _hint(name)
    return {kind for kind in get_args(hint) or (hint,) if isinstance(kind, type)}


def _hint(name: str) -> Any:
    hints = _hints()
    if not isinstance(name, str) or name not in hints:
        close = difflib.get_close_matches(str(name), hints, n=1)
        nearest = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(hints)}"
        raise BadValue("option", name, f"there is no such option{nearest}")
    return hints[name]


@functools.cache
def _hints() -> dict[str, Any]:
    from vtop.engine.config import EngineConfig  # which uses this module

    return get_type_hints(EngineConfig)
