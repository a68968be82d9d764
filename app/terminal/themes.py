"""Themes from TOML files: those of the package, then those of the user. A bad one costs a line, never the app."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from vtop.engine.errors import BadValue
from vtop.engine.user_files import read_toml

_COLOURS = (
    "primary", "secondary", "warning", "error", "success", "accent", "foreground", "background", "surface", "panel",
    "boost",
)  # fmt: skip
_KEYS = (*_COLOURS, "dark", "ansi", "variables")
DEFAULT = "vtop-dark"


@dataclass(slots=True)
class Themes:
    """Themes by name, in the order of `t`, and a line for each file that could not be used."""

    themes: dict[str, Theme] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def after(self, name: str) -> str:
        """The next theme."""
        names = list(self.themes)
        return names[(names.index(name) + 1) % len(names)] if name in names else names[0]

    def chosen(self, name: str) -> str:
        """`name` when there is such a theme, else the default and a problem noted."""
        if name in self.themes:
            return name
        close = difflib.get_close_matches(name, self.themes, 1, 0.4)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(self.themes)}"
        self.problems.append(f"theme = {name!r}: {hint}")
        return DEFAULT if DEFAULT in self.themes else next(iter(self.themes))


def load_themes(user_folder: Path | None = None) -> Themes:
    """Read every theme. A user's theme replaces one of ours of the same name."""
    found = Themes()
    _load_into(
        found, sorted(_toml(Path(str(files("vtop.themes")))), key=lambda p: (p.name != f"{DEFAULT}.toml", p.name))
    )
    if user_folder is not None and os.path.isdir(user_folder):  # unlike Path's, false where nothing may be looked at
        try:
            _load_into(found, sorted(_toml(user_folder), key=lambda p: p.name), try_out=True)
        except OSError as error:
            found.problems.append(f"theme folder {user_folder}: cannot be read ({error.strerror})")
    if not found.themes:  # someone deleted them: the app still starts
        found.themes["textual-dark"] = Theme(name="textual-dark", primary="#0178D4")
    return found


def _toml(folder: Path) -> Iterable[Path]:
    return [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]


def _load_into(found: Themes, entries: Iterable[Path], try_out: bool = False) -> None:
    for entry in entries:
        name = entry.name.removesuffix(".toml")
        try:
            theme = theme_of(name, read_toml("theme", entry))
            if try_out:
                _try_out(theme)
        except BadValue as error:
            found.problems.append(f"theme file {entry.name}: {error}")
        else:
            found.themes[name] = theme


def _try_out(theme: Theme) -> None:
    """Raise BadValue when a style sheet cannot be made with the theme: found out later, that would end the app."""
    from textual.css.errors import StylesheetError, UnresolvedVariableError
    from textual.css.stylesheet import Stylesheet

    sheet = Stylesheet(variables=theme.to_color_system().generate())
    rules = "\n".join(f"Static {{ color: ${name}; }}" for name in theme.variables if _is_colour(name))
    for number, source in enumerate((files("vtop.app").joinpath("vtop.tcss").read_text(encoding="utf-8"), rules)):
        sheet.add_source(source, read_from=(str(number), ""))
    try:
        sheet.parse()
    except (StylesheetError, UnresolvedVariableError) as error:
        text = " ".join(str(error).split())[:80] or "a colour cannot be read"
        raise BadValue("variables", theme.variables, f"a style sheet with them is not valid ({text})") from None


def _is_colour(name: str) -> bool:
    return name in ("border", "border-blurred") or name.startswith("vtop-")


def theme_of(name: str, data: dict[str, Any]) -> Theme:
    """A theme from its table; BadValue names the key that cannot be used."""
    for key in data:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, 1, 0.4)
            hint = f"did you mean {close[0]}?" if close else f"keys are {', '.join(_KEYS)}"
            raise BadValue(key, data[key], hint)
    colours = {key: _colour(key, data[key]) for key in _COLOURS if key in data}
    if "primary" not in colours:
        raise BadValue("primary", None, "a theme needs this colour")
    for key in ("dark", "ansi"):
        if not isinstance(data.get(key, True), bool):
            raise BadValue(key, data[key], "give true or false")
    variables = data.get("variables", {})
    if not isinstance(variables, dict):
        raise BadValue("variables", variables, "write a section [variables]")
    for key, value in variables.items():
        if not isinstance(value, str):
            raise BadValue(f"variables.{key}", value, "give a text")
        if key.startswith("vtop-"):
            _colour(f"variables.{key}", value)
    return Theme(
        name=name,
        **colours,  # type: ignore[arg-type]  # all of them are texts
        dark=data.get("dark", True),
        ansi=data.get("ansi", False),
        variables={**_BASE_VARIABLES, **(_ANSI_VARIABLES if data.get("ansi", False) else {}), **variables},
    )


def _colour(key: str, value: Any) -> str:
    try:
        Color.parse(value)
    except (ColorParseError, TypeError, AttributeError):
        raise BadValue(key, value, 'give a colour such as "#4fb3e8" or "ansi_blue"') from None
    return str(value)


_BASE_VARIABLES = {"block-cursor-text-style": "none"}
# Textual's own style sheets ask for these when colours are the terminal's.
_ANSI_VARIABLES = {
    "ansi-background": "ansi_black",
    "ansi-foreground": "ansi_white",
    "border-blurred": "ansi_black",
    "block-cursor-foreground": "ansi_black",
    "block-cursor-background": "ansi_white",
    "input-cursor-background": "ansi_white",
    "input-cursor-foreground": "ansi_black",
    "input-selection-background": "ansi_bright_blue",
    "input-selection-foreground": "ansi_black",
    "screen-selection-background": "ansi_bright_blue",
    "screen-selection-foreground": "ansi_black",
}
