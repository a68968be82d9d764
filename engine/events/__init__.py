"""Everything the screen, a recording or a metric can know: one Frame per step, made of typed events.

State is the fold of Frames (`engine.state`), so an event carries what changed, and each decision carries its reason as
data: what was needed, what was free, what was lost. Times are engine seconds. Request ids are the user's; block ids
are those of the device pool.
"""

# ruff: noqa: I001 - one statement for each module whose names are told on
from __future__ import annotations

from vtop.engine.errors import VtopError

from typing import Any, get_args

import msgspec

from vtop.engine.events.blocks import (
    BlocksFreed as BlocksFreed,
    BlocksTaken as BlocksTaken,
    Cached as Cached,
    CacheReset as CacheReset,
    CopiedOnWrite as CopiedOnWrite,
    Event as Event,
    Evicted as Evicted,
    Forked as Forked,
    GaveWay as GaveWay,
    Merged as Merged,
    PoolResized as PoolResized,
    Preempted as Preempted,
    PrefixLookup as PrefixLookup,
    SwapOutFailed as SwapOutFailed,
    SwappedIn as SwappedIn,
    SwappedOut as SwappedOut,
)
from vtop.engine.events.reasons import (
    AfterPreemption as AfterPreemption,
    DecodesFirst as DecodesFirst,
    Limit as Limit,
    ModeWhy as ModeWhy,
    MoveCause as MoveCause,
    NeedsBlocks as NeedsBlocks,
    NeedsBudget as NeedsBudget,
    NeedsSeat as NeedsSeat,
    PreemptCause as PreemptCause,
    Reason as Reason,
    RefusalCode as RefusalCode,
    SwappedFirst as SwappedFirst,
    WaitReason as WaitReason,
)
from vtop.engine.events.requests import (
    Admitted as Admitted,
    Arrived as Arrived,
    BeamOutput as BeamOutput,
    Chosen as Chosen,
    DeadlineMissed as DeadlineMissed,
    Demoted as Demoted,
    Finished as Finished,
    GroupService as GroupService,
    Lifted as Lifted,
    Passed as Passed,
    PrioritySet as PrioritySet,
    Promoted as Promoted,
    Refused as Refused,
    Rekeyed as Rekeyed,
    Scheduled as Scheduled,
    Searched as Searched,
    SequenceFinished as SequenceFinished,
    Skipped as Skipped,
    Tokens as Tokens,
    TurnedAway as TurnedAway,
    Waits as Waits,
)

SCHEMA_VERSION = 2


class Switched(Event, frozen=True, tag="switched"):
    """An option was changed while the engine ran. Equal values: the policy's file was loaded again."""

    option: str
    before: str | int | float | bool | None
    after: str | int | float | bool | None


class StepFailed(Event, frozen=True, tag="step-failed"):
    """An exception in `where` (schedule, execute or commit). Requests `ids`, whose fault it is or which were in the
    batch, end with `failed`; without any, the step is abandoned and nobody ends."""

    where: str
    error: str
    ids: list[str]


class StepTimes(Event, frozen=True, tag="step-times"):
    """Seconds spent in the parts of the step; `model` is the forward pass, `swap` is moving blocks between the pools
    before it, `commit` includes text."""

    schedule: float
    prepare: float
    model: float
    sample: float
    commit: float
    swap: float = 0.0


class Paused(Event, frozen=True, tag="paused"):
    """The engine stopped between steps. `why` is command, step, end or the event that a run-until met.

    `text` says more to a person, in one line: of `end`, which workload has come to its end.
    """

    why: str
    text: str = ""


class Resumed(Event, frozen=True, tag="resumed"):
    """The engine runs on."""


class SpeedSet(Event, frozen=True, tag="speed-set"):
    """At most this many steps a second; None is no cap."""

    steps_per_second: float | None


class SubscriberBehind(Event, frozen=True, tag="subscriber-behind"):
    """The engine waited `seconds` because a subscriber was more than its bound of Frames behind."""

    name: str
    seconds: float


class Note(Event, frozen=True, tag="note"):
    """Something a person should know; `level` is info, warning or error."""

    level: str
    text: str


AnyEvent = (
    Arrived
    | Refused
    | Admitted
    | Waits
    | Skipped
    | BlocksTaken
    | BlocksFreed
    | PrefixLookup
    | Cached
    | Evicted
    | CacheReset
    | CopiedOnWrite
    | Scheduled
    | Preempted
    | SwappedOut
    | SwapOutFailed
    | SwappedIn
    | Forked
    | Merged
    | Passed
    | GroupService
    | Lifted
    | Promoted
    | Demoted
    | PrioritySet
    | Switched
    | Rekeyed
    | Tokens
    | TurnedAway
    | DeadlineMissed
    | SequenceFinished
    | Searched
    | Chosen
    | Finished
    | StepFailed
    | PoolResized
    | StepTimes
    | Paused
    | Resumed
    | SpeedSet
    | SubscriberBehind
    | Note
)


TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyEvent))
"""Of all events, as recordings and run-until name them."""


class Frame(msgspec.Struct, frozen=True):
    """Everything that happened in one step, in order.

    `serial` counts Frames without a gap; `step` counts engine steps and is that of the last one that ran. Commands
    applied while nothing runs come in a Frame of their own, with `ran` false. `time` is when the Frame was complete:
    when its tokens became known and its requests ended. `began` is when its decisions were taken (None: at `time`).
    Both are engine time, which stops with the engine; `unix_time` is the wall clock at `time` (None in virtual time,
    and in recordings that are older than the field).
    """

    serial: int
    step: int
    time: float
    ran: bool
    events: list[AnyEvent]
    began: float | None = None
    unix_time: float | None = None


class Meta(msgspec.Struct, frozen=True):
    """What a recording or a subscriber must know before the first Frame. First line of a recording.

    `unix_time` and `engine_time` are the same instant on the wall clock and the engine's clock (seconds).
    `kv_note`, `host_note`: how the two pools were sized. `compile_note`: what came of the option `compile`.
    `backend_note`: why torch computes attention, or some of it, in place of a faster backend; empty when it does not.
    """

    schema: int
    version: str
    model: str
    device: str
    dtype: str
    backend: str
    block_size: int
    num_blocks: int
    max_model_len: int
    token_budget: int
    max_num_seqs: int
    config: dict[str, Any]
    unix_time: float
    engine_time: float
    kv_note: str = ""
    num_host_blocks: int = 0
    fair_at: int = -1  # where the counter of a request's group belongs in the order of keys; -1: nowhere
    backend_note: str = ""
    host_note: str = ""
    compile_note: str = ""


MOST_SAMPLES = 1 << 16  # of one request in a recording

# what a handler can raise when an event names a request, a sequence, a block or a number that is not there
FAULTS = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, MemoryError)


class InconsistentFrame(VtopError, ValueError):
    """An event cannot have happened: `step`, `serial` and `event` (its kind) say where. What folds it is half done.

    A recording that says so was damaged or changed; of a running engine it is a bug.
    """

    def __init__(self, frame: Frame, event: Event | None, why: str) -> None:
        self.step, self.serial = frame.step, frame.serial
        self.event = "" if event is None else str(type(event).__struct_config__.tag)
        told = ""
        if event is not None:
            place = next(number for number, other in enumerate(frame.events, 1) if other is event)
            told = f", event {place} ({self.event})"
        why = "".join(c if c.isprintable() else "?" for c in why[:200])
        super().__init__(
            f"step {frame.step}, frame {frame.serial}{told} does not follow from what came before: {why}; "
            "the recording is damaged or was changed, record it again"
        )


def inconsistent(frame: Frame, event: Event, error: Exception) -> InconsistentFrame:
    """What `error`, one of FAULTS, says of an event."""
    return InconsistentFrame(frame, event, f"{type(error).__name__}: {error}")
