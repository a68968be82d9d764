"""Every option that may be set, the engine's (derived from EngineConfig) and the screen's; and how values are read."""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import cyclopts

from vtop.engine.config import EngineConfig, option_hints
from vtop.engine.errors import BadValue
from vtop.engine.fields import OPTIONS, check

Section = Literal["engine", "app"]
_WHOLE = re.compile(r"[+-]?\d{1,1000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.ASCII | re.IGNORECASE)


def _option(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True, slots=True)
class AppConfig:
    """Options of the screen, and the defaults of what is injected from it."""

    theme: str = _option("vtop-dark", "colours: a file of the themes folder, without .toml")
    fps: int = _option(12, "most redraws per second; halves by itself when drawing is slow")
    ascii: bool = _option(False, "draw with ASCII only, for fonts without block and braille glyphs")
    mouse: bool = _option(True, "let the mouse hover, click and scroll")
    speed: float | None = _option(None, "cap on engine steps per second (default: as fast as it goes)")
    paused: bool = _option(False, "start with the engine paused")
    max_tokens: int = _option(128, "output tokens of a request that names none")
    temperature: float = _option(0.7, "sampling temperature of a request that names none; 0 is greedy")
    cache_salt: str = _option("", "requests share cached blocks only with those of the same salt")

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name in OPTIONS:
                check(f.name, getattr(self, f.name), table=OPTIONS)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its section and key in the settings file, its type without None, and whether None is a value."""

    section: Section
    key: str
    type: Any
    optional: bool
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return "VTOP_" + self.key.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def expects(self) -> str:
        """What to give, as the end of an error message."""
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        return {
            bool: "give true or false",
            int: "give a whole number",
            float: "give a number",
            str: "give a text",
        }[self.type] + (", or none" if self.optional else "")


@cache
def options() -> dict[str, Option]:
    """All options by key; engine first, in the order of their definition."""
    found: dict[str, Option] = {}
    sources: tuple[tuple[Section, type[Any]], ...] = (("engine", EngineConfig), ("app", AppConfig))
    for section, source in sources:
        hints = option_hints() if source is EngineConfig else get_type_hints(source)
        for f in fields(source):
            kind, optional = _without_none(hints[f.name])
            default = None if f.default is MISSING else f.default
            found[f.name] = Option(section, f.name, kind, optional, default, str(f.metadata["help"]))
    return found


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [k for k in get_args(hint) if k is not type(None)]
        return kinds[0], len(kinds) < len(get_args(hint))
    return hint, False


def from_text(option: Option, name: str, text: str) -> Any:
    """The value that `text` means. `name` is what the user called the option; errors name it."""
    if option.optional and text.lower() in ("none", ""):
        return None
    try:
        if option.type is bool:
            return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False,
                    "off": False}[text.lower()]  # fmt: skip
        if option.type in (int, float):
            return number(option.type, text)
    except (KeyError, ValueError):
        raise BadValue(name, text, option.expects) from None
    return checked(option, name, text)


def checked(option: Option, name: str, value: Any) -> Any:
    """`value` as the option's type, or BadValue; a whole number is a number too."""
    if value is None and option.optional:
        return None
    if option.choices:
        if value not in option.choices:
            raise BadValue(name, value, option.expects)
        return value
    if option.type is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, option.type) or (option.type is int and isinstance(value, bool)):
        raise BadValue(name, value, option.expects)
    return value


# --- numbers, read as they are written: nothing is rounded, and nothing but `none` means none -----------------


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
    plain = _without_none(kind)[0]
    return cyclopts.convert(plain, tokens, converter=number if _is_number(plain) else None)


def kind_word(kind: Any) -> str:
    """What to give for a value of that type."""
    known = {int: "a whole number", float: "a number", bool: "true or false"}
    return known.get(_without_none(kind)[0], f"a {getattr(kind, '__name__', 'value').lower()}")


def number(kind: type, text: str) -> Any:
    """An int or a float as it is usually written. Raises ValueError."""
    if not (_WHOLE if kind is int else _NUMBER).fullmatch(text.strip()):
        raise ValueError(text)
    return kind(text)


def _is_number(kind: Any) -> bool:
    return kind in (int, float) or (get_origin(kind) is list and get_args(kind)[0] in (int, float))
