"""What commands do to a running engine; those that are about stepping are EngineThread's own."""

from __future__ import annotations

from typing import Any

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.workload.engine import WorkloadEngine

SECONDS = ("request_timeout", "max_predicted_ttft", "mlfq_starvation")
PER_SECOND = ("aging_rate",)


def apply(engine: LLMEngine, command: cmd.Command) -> None:
    """Do what a checked command says. Raises BadValue, of AddRequest after it was told as a refusal."""
    match command:
        case cmd.AddRequest():
            engine.add_request(
                command.request_id,
                command.prompt,
                command.params,
                priority=command.priority,
                group=command.group,
                timeout=command.timeout,
                cache_salt=command.cache_salt,
                expected_tokens=command.expected_tokens,
                deadline=command.deadline,
            )
        case cmd.AbortRequest(request_id):
            if not engine.abort_request(request_id):
                engine.note(ev.Note("info", f"abort: request {request_id!r} is not alive"))
        case cmd.ResetPrefixCache():
            engine.reset_prefix_cache()
        case cmd.ResizePool(num_blocks):
            engine.resize_pool(num_blocks)
        case cmd.SetOption(name, value):
            engine.set_option(name, value)
        case cmd.SetPriority(request_id, priority):
            if not engine.set_priority(request_id, priority):
                engine.note(ev.Note("info", f"priority: request {request_id!r} is not alive"))
        case cmd.ReloadPolicy():
            engine.reload_policy()
        case cmd.LoadWorkload():
            load_workload(engine, command)


def load_workload(engine: LLMEngine, command: cmd.LoadWorkload) -> None:
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
