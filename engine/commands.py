"""What a person or a program can tell a running engine. Applied between steps, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from vtop.engine.errors import BadValue
from vtop.engine.events import TAGS
from vtop.engine.fields import check
from vtop.engine.request import SamplingParams
from vtop.engine.workload.jobs import Workload


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Queue a request. `prompt` is text or token ids; `timeout` and `deadline` are in seconds from now."""

    request_id: str
    prompt: str | tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: float = 0
    group: str = "default"
    timeout: float | None = None
    cache_salt: str = ""
    expected_tokens: int | None = None  # output tokens, as far as the sender knows
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """End a request in whatever queue it is; unknown and ended ids are no error."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop between steps."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Run freely; forgets a pending Step or RunUntil."""


@dataclass(frozen=True, slots=True)
class Step:
    """Run `count` steps that compute something, then pause."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class RunUntil:
    """Run until a Frame holds an event of one of these tags (`preempted`, `finished`, `refused` …), then pause."""

    tags: frozenset[str]


@dataclass(frozen=True, slots=True)
class SetSpeed:
    """Cap on steps per second; None lifts it."""

    steps_per_second: float | None


@dataclass(frozen=True, slots=True)
class ResizePool:
    """Give the device pool another number of blocks; holders of blocks beyond it are preempted."""

    num_blocks: int


@dataclass(frozen=True, slots=True)
class SetOption:
    """Change an option of the scheduler while requests run. Text is read as a person types it."""

    name: str
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Give a request another priority; unknown and ended ids are no error."""

    request_id: str
    priority: float


@dataclass(frozen=True, slots=True)
class ReloadPolicy:
    """Load the file of a user's policy again; a bad one is told and the old one stays."""


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Forget all cached content; blocks in use stay with their holders."""


@dataclass(frozen=True, slots=True)
class LoadWorkload:
    """Let the jobs of a workload come, at their times from now on; those that can never run are refused then.

    The engine pauses when `until` seconds of it are over; None: it does not.
    All times are multiplied by `stretch`; None: by how much slower a decode step is here than on the scenarios' card,
    and by 1 in a simulation. Before that the pool gets `num_blocks`, and `options` are set, whose times are multiplied
    too. What of them cannot be set is told, and the jobs come all the same.
    """

    workload: Workload
    stretch: float | None = None
    num_blocks: int | None = None
    options: tuple[SetOption, ...] = ()
    until: float | None = None


Command = (
    AddRequest
    | LoadWorkload
    | ResetPrefixCache
    | AbortRequest
    | Pause
    | Resume
    | Step
    | RunUntil
    | SetSpeed
    | ResizePool
    | SetOption
    | SetPriority
    | ReloadPolicy
)


_FIELDS: dict[type, dict[str, str]] = {
    AbortRequest: {"request_id": "request_id"},
    Step: {"count": "steps"},
    SetSpeed: {"steps_per_second": "speed"},
    ResizePool: {"num_blocks": "num_blocks"},
    SetPriority: {"request_id": "request_id", "priority": "priority"},
    LoadWorkload: {"stretch": "stretch", "until": "until"},
}
"""What the fields of commands are in the table of `fields.py`; those of AddRequest are checked where it is added."""


def check_command(command: Any) -> None:
    """Raise BadValue unless it is a command whose fields can be used."""
    if not isinstance(command, get_args(Command)):
        raise BadValue("command", command, "send one of the classes in vtop.engine.commands")
    for name, known in _FIELDS.get(type(command), {}).items():
        check(known, getattr(command, name))
    if isinstance(command, RunUntil):
        _check_tags(command.tags)
    elif isinstance(command, LoadWorkload):
        _check_load(command)


def _check_tags(tags: Any) -> None:
    known = isinstance(tags, (frozenset, set)) and all(isinstance(tag, str) and tag in TAGS for tag in tags)
    if not known or not tags:
        raise BadValue("tags", tags, f"give a frozenset of some of {', '.join(sorted(TAGS))}")


def _check_load(command: LoadWorkload) -> None:
    if not isinstance(command.workload, Workload):
        raise BadValue("workload", command.workload, "give a Workload")
    if command.num_blocks is not None:
        check("num_blocks", command.num_blocks)
    if not isinstance(command.options, tuple) or not all(isinstance(option, SetOption) for option in command.options):
        raise BadValue("options", command.options, "give a tuple of SetOption")
