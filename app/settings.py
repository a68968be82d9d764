"""What is set and by whom: defaults < settings file < environment < command line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from vtop.app.options import AppConfig, Option, checked, from_text, options
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue, VtopError, shown
from vtop.engine.user_files import read_toml, typed_path, user_folder

FILE_VARIABLE = "VTOP_CONFIG"
_OTHER_VARIABLES = (FILE_VARIABLE, "VTOP_MODELS")  # no options: where the file is, where models are kept


class Origin(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


class BadSettings(VtopError):
    """The settings file cannot be used; the message names file, key and remedy."""

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        super().__init__(f"{path}: {what}: {remedy}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option with its value and origin, and the user's keys (action id -> keys)."""

    values: dict[str, Any]
    origins: dict[str, Origin]
    keys: dict[str, str] = field(default_factory=dict)
    path: Path | None = None  # the settings file, when there is one

    def engine_config(self) -> EngineConfig:
        """The engine's options; BadValue names the one that cannot be used."""
        return EngineConfig(**self._section("engine"))

    def engine_options(self) -> dict[str, Any]:
        """What `engine_config` is made of: None where a preset decides."""
        return self._section("engine")

    def named(self) -> list[str]:
        """The options on the command line."""
        return [key for key, origin in self.origins.items() if origin is Origin.COMMAND_LINE]

    def named_engine_options(self) -> dict[str, Any]:
        """The engine's options that the command line gives."""
        return {key: self.values[key] for key in self.named() if options()[key].section == "engine"}

    def app_config(self) -> AppConfig:
        """The screen's options; BadValue names the one that cannot be used."""
        return AppConfig(**self._section("app"))

    def _section(self, section: str) -> dict[str, Any]:
        return {key: self.values[key] for key, option in options().items() if option.section == section}


def config_folder() -> Path | None:
    """Where settings file and the user's own themes are; None for a user without a home."""
    return user_folder("config")


def settings_path(environment: Mapping[str, str]) -> Path | None:
    """The settings file: $VTOP_CONFIG, or config.toml in the platform's folder, where there is one."""
    if named := environment.get(FILE_VARIABLE):
        return typed_path(named)
    folder = config_folder()
    return None if folder is None else folder / "config.toml"


def load_settings(
    given: Mapping[str, Any], environment: Mapping[str, str] | None = None, path: Path | None = None
) -> Settings:
    """Put the layers on each other. `given` holds what the command line names, already typed."""
    environment = os.environ if environment is None else environment
    path = settings_path(environment) if path is None else path
    values = {key: option.default for key, option in options().items()}
    origins = dict.fromkeys(values, Origin.DEFAULT)
    file, keys = ({}, {}) if path is None else read_file(path, must_exist=FILE_VARIABLE in environment)
    for layer, origin in (
        (file, Origin.FILE),
        (_environment(environment), Origin.ENVIRONMENT),
        (dict(given), Origin.COMMAND_LINE),
    ):
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    return Settings(values, origins, keys, path if path is not None and path.is_file() else None)


def read_file(path: Path, must_exist: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
    """Options and keys of a settings file; both empty when there is no file."""
    if str(path) == os.devnull:  # the way to say: none
        return {}, {}
    try:
        data = read_toml("settings", path)
    except BadValue as error:
        if isinstance(error.__cause__, FileNotFoundError):
            if must_exist:
                raise BadSettings(path, "there is no such file", f"correct or unset {FILE_VARIABLE}") from None
            return {}, {}
        what, _, remedy = error.remedy.rpartition("; ")
        raise BadSettings(path, f"this {what}", f"{remedy}, or move it away") from None
    known = options()
    values: dict[str, Any] = {}
    for section, table in data.items():
        if section not in ("engine", "app", "keys"):
            raise BadSettings(path, f"unknown section [{section}]", _nearest(section, ("engine", "app", "keys")))
        if not isinstance(table, dict):
            raise BadSettings(path, f"{section} = {shown(table)}", f"write a section [{section}]")
        if section == "keys":
            continue
        for key, value in table.items():
            values[key] = _file_value(path, section, key, value, known)
    return values, _keys(path, data.get("keys", {}))


def _file_value(path: Path, section: str, key: str, value: Any, known: dict[str, Option]) -> Any:
    if key not in known or known[key].section != section:
        if key in known:
            raise BadSettings(path, f"unknown key {section}.{key}", f"it belongs in [{known[key].section}]")
        names = [k for k, o in known.items() if o.section == section]
        raise BadSettings(path, f"unknown key {section}.{key}", _nearest(key, names))
    try:
        return checked(known[key], f"{section}.{key}", value)
    except BadValue as error:
        raise BadSettings(path, f"{error.field} = {shown(value)}", error.remedy) from None


def _keys(path: Path, table: dict[str, Any]) -> dict[str, str]:
    from vtop.app.actions import ACTIONS, key_problem

    keys: dict[str, str] = {}
    for action, value in table.items():
        if action not in {a.id for a in ACTIONS}:
            raise BadSettings(path, f"unknown key keys.{action}", _nearest(action, [a.id for a in ACTIONS]))
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise BadSettings(path, f"keys.{action} = {shown(value)}", 'give a key or a list of keys, like "f2"')
        for name in names:
            problem = key_problem(name)
            if problem:
                raise BadSettings(path, f"keys.{action} = {shown(name)}", problem)
            other = next((a for a, given in keys.items() if name in given.split(",")), None)
            if other is not None:
                raise BadSettings(path, f"keys.{action} = {shown(name)}", f"{other} has that key; choose another")
        keys[action] = ",".join(names)
    return keys


def _environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {option.variable: option for option in options().values()}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if name in known:
            values[known[name].key] = from_text(known[name], name, text)
        elif name.startswith("VTOP_") and name not in _OTHER_VARIABLES:
            # Other programs may own VTOP_ names too, so only what looks like a slip is an error.
            close = difflib.get_close_matches(name, known, 1, 0.85)
            if close:
                raise BadValue(name, text, f"no such variable; did you mean {close[0]}?")
    return values


def _nearest(name: str, names: Iterable[str]) -> str:
    names = list(names)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(names)}"
