"""The small dialogs: a question, and the forms that inject, burst, resize, set a priority or options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vtop.app.live.burst import MAX_BURST, MAX_WORDS, Lengths
from vtop.app.live.inject import Burst, Wanted
from vtop.app.options import Option, from_text, options
from vtop.app.screens.form import Field, FormScreen, number, whole
from vtop.engine.commands import SetOption
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.fields import MOST_BLOCKS, MOST_COUNT
from vtop.engine.presets.base import LIVE
from vtop.engine.request import SamplingParams
from vtop.engine.sched.live import LIVE_OPTIONS

_MANY = 2**31 - 1
MAX_SAMPLES = 64


class ConfirmScreen(ModalScreen[bool]):
    """Ends with true for yes. `again` is the key that asked: pressing it twice is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape", "answer(False)", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, *, yes: str, again: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._question = question
        self._yes = yes
        for key in again:
            self._bindings.bind(key, "answer(True)", show=False)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -small"):
            yield Static(self._question, classes="dialog-question", markup=False)
            with Horizontal(classes="dialog-buttons"):
                yield Button(f"{self._yes}  y", id="yes", variant="error", compact=True)
                yield Button("No  n", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


def inject_form(params: SamplingParams) -> FormScreen[Wanted]:
    """Ask for one prompt and how to run it."""

    def make(values: dict[str, str]) -> Wanted:
        if not values["prompt"].strip():
            raise BadValue("prompt", values["prompt"], "type something")
        seed = values["seed"].strip()
        return Wanted(
            prompt=values["prompt"],
            params=replace(
                params,
                max_tokens=whole(values, "max_tokens", 1, MOST_COUNT),
                temperature=number(values, "temperature", float, 0, 1e6),
                seed=whole(values, "seed", 0, 2**63) if seed else None,
                n=whole(values, "samples", 1, MAX_SAMPLES),
            ),
            priority=_priority(values),
            group=_group(values),
            count=whole(values, "count", 1, MAX_BURST),
        )

    fields = [
        Field("prompt", "Prompt", hint="what the model continues"),
        Field("max_tokens", "Max tokens", str(params.max_tokens or 128)),
        Field("temperature", "Temperature", f"{params.temperature:g}"),
        Field("priority", "Priority", "0"),
        Field("group", "Group", "default"),
        Field("count", "How many", "1"),
        Field("seed", "Seed", hint="empty: another one each time"),
        Field("samples", "Samples of each", str(params.n)),
    ]
    return FormScreen("Inject requests", fields, make, button="Inject")


def burst_form(params: SamplingParams, seed: int) -> FormScreen[Burst]:
    """Ask for many requests at once."""

    def make(values: dict[str, str]) -> Burst:
        return Burst(
            count=whole(values, "count", 1, MAX_BURST),
            lengths=Lengths(values["lengths"]),
            mean=whole(values, "length", 1, MAX_WORDS),
            seed=whole(values, "seed", 0, 2**63),
            params=replace(params, max_tokens=whole(values, "max_tokens", 1, MOST_COUNT)),
            group=_group(values),
        )

    fields = [
        Field("count", "Requests", "16"),
        Field("lengths", "Prompt lengths", Lengths.MIXED.value, choices=[kind.value for kind in Lengths]),
        Field("length", "Mean words", "48", hint="of fixed, uniform and lognormal"),
        Field("max_tokens", "Max tokens", str(params.max_tokens or 128)),
        Field("group", "Group", "default"),
        Field("seed", "Seed", str(seed)),
    ]
    return FormScreen("Inject a burst", fields, make, button="Inject")


def resize_form(num_blocks: int, block_size: int) -> FormScreen[int]:
    """Ask for another number of blocks."""

    def make(values: dict[str, str]) -> int:
        return whole(values, "num_blocks", 1, MOST_BLOCKS)

    title = f"Resize the block pool ({num_blocks} blocks of {block_size} tokens now)"
    return FormScreen(title, [Field("num_blocks", "Blocks", str(num_blocks))], make, button="Resize")


def _priority(values: dict[str, str]) -> float:
    """Any number; a whole one is shown without a point."""
    value = number(values, "priority", float, -_MANY, _MANY)
    return int(value) if value.is_integer() else value


def priority_form(request: str, priority: float) -> FormScreen[float]:
    """Ask for another priority; `request` is its id, cleaned."""

    def make(values: dict[str, str]) -> float:
        return _priority(values)

    title = f"Priority of request {request} ({priority} now)"
    return FormScreen(title, [Field("priority", "Priority", str(priority))], make, button="Set")


def _group(values: dict[str, str]) -> str:
    group = values["group"].strip()
    if not group or len(group) > 64:
        raise BadValue("group", group, "give a name of 1 to 64 characters")
    return group


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
