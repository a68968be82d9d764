"""What the command LoadWorkload does to a running engine."""

from __future__ import annotations

from typing import Any

from vtop.engine import events as ev
from vtop.engine.commands import LoadWorkload
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.workload.engine import WorkloadEngine

SECONDS = ("request_timeout", "max_predicted_ttft", "mlfq_starvation")
PER_SECOND = ("aging_rate",)


def load_workload(engine: LLMEngine, command: LoadWorkload) -> None:
    """Set the options that come with the workload, then let its jobs come. Raises BadValue."""
    if not isinstance(engine, WorkloadEngine):
        raise BadValue("workload", command.workload.name, "this engine takes single requests only")
    stretch = engine.load(command.workload, command.stretch, command.until)
    if command.num_blocks is not None:
        try:
            engine.resize_pool(command.num_blocks)
        except BadValue as error:
            engine.note(ev.Note("error", str(error)))
    for option in command.options:
        try:
            engine.set_option(option.name, _stretched(option.name, option.value, stretch))
        except BadValue as error:
            engine.note(ev.Note("error", str(error)))


def _stretched(name: str, value: Any, stretch: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name in SECONDS:
        return value * stretch
    return value / stretch if name in PER_SECOND else value
