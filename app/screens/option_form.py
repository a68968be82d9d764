"""The dialog of the scheduler's options: what they are now, and which of them to change while requests run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from vtop.app.options import Option, from_text, options
from vtop.app.screens.form import Field, FormScreen
from vtop.engine.commands import SetOption
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.presets.base import LIVE
from vtop.engine.sched.live import LIVE_OPTIONS


def option_form(now: Mapping[str, Any]) -> FormScreen[list[SetOption]]:
    """Ask for other values; ends with a command for each that differs from `now`. A preset fixes most of them."""
    names = {f.name for f in fields(EngineConfig)}
    current = asdict(EngineConfig(**{name: value for name, value in now.items() if name in names}))

    def make(values: dict[str, str]) -> list[SetOption]:
        changed = {name: _value(options()[name], values[name]) for name in shown if values[name] != shown[name]}
        EngineConfig(**(current | changed))  # what cannot be used is said here, where it can be corrected
        return [SetOption(name, value) for name, value in changed.items()]

    offered = LIVE_OPTIONS if current["preset"] == "sensible" else LIVE
    shown = {name: _shown(current[name]) for name in offered}
    form_fields = [Field(name, name, shown[name], options()[name].help, _choices(options()[name])) for name in shown]
    return FormScreen("Set options of the scheduler while it runs", form_fields, make, button="Set", wide=True)


def _value(option: Option, text: str) -> Any:
    value = from_text(option, option.key, text.strip())
    if isinstance(value, float) and value != value:
        raise BadValue(option.key, text, "give a number")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _choices(option: Option) -> tuple[str, ...]:
    return ("false", "true") if option.type is bool else option.choices
