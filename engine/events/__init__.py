"""Everything the screen, a recording or a metric can know: one Frame per step, made of typed events.

State is the fold of Frames (`state.py`), so an event carries what changed, and each decision carries its reason as
data: what was needed, what was free, what was lost. Times are engine seconds. Request ids are the user's; block ids
are those of the device pool.
"""

# ruff: noqa: I001 - one statement for each module whose names are told on
from __future__ import annotations

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
    Merged as Merged,
    PoolResized as PoolResized,
    PrefixLookup as PrefixLookup,
)
from vtop.engine.events.preemption import (
    GaveWay as GaveWay,
    Preempted as Preempted,
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

SCHEMA_VERSION = 2

# --- events ----------------------------------------------------------------------------------------------------


class Arrived(Event, frozen=True, tag="arrived"):
    """A request was accepted and waits. `limit` is the most tokens (prompt + output) it may reach.

    `max_tokens` is what was asked for; None means until the model's limit or the end of the pool. It should be done by
    `deadline`, and is ended at `expires`; a request that expires and has no deadline of its own has that one.
    """

    id: str
    number: int
    key: tuple[float, ...]
    arrival: float
    prompt_tokens: int
    limit: int
    max_tokens: int | None
    prompt: str | None = None
    priority: int = 0
    group: str = "default"
    deadline: float | None = None
    expires: float | None = None
    temperature: float = 1.0
    seed: int = 0
    expected_tokens: int | None = None
    samples: int = 1  # sequences of the group


class Refused(Event, frozen=True, tag="refused"):
    """A request was not accepted. `need` and `capacity` are in the unit of the code (blocks or tokens)."""

    id: str
    code: RefusalCode
    message: str
    need: int = 0
    capacity: int = 0
    prompt: str | None = None


class Admitted(Event, frozen=True, tag="admitted"):
    """From waiting to running. `need` blocks were asked of `free` + `cached`; `resumed` after a preemption."""

    id: str
    serial: int
    resumed: bool
    need: int
    free: int
    watermark: int = 0
    cached: int = 0


class Waits(Event, frozen=True, tag="waits"):
    """The head of the waiting queue was not admitted, and why. Told when the reason (its numbers too) or the head
    changes: one told at an earlier step still holds.

    Everybody behind the head waits because of it: nothing overtakes.
    """

    id: str
    reason: WaitReason


class Skipped(Event, frozen=True, tag="skipped"):
    """A running request got no tokens in this step. Told when the reason changes."""

    id: str
    reason: WaitReason


class Scheduled(Event, frozen=True, tag="scheduled"):
    """What the step computes, in batch order: `tokens[i]` tokens for sequence `seqs[i]` of request `ids[i]`.

    `seqs` is empty when every entry is sequence 0. `budget` is the token budget, `limit` what bound the step.
    """

    ids: list[str]
    tokens: list[int]
    budget: int
    limit: Limit
    seqs: list[int] = msgspec.field(default_factory=list)


class Passed(Event, frozen=True, tag="passed"):
    """skip_ahead: `id` is admitted although `heads`, which come first, do not fit. `count` of `limit` passed the first.

    A request that `limit` others passed is passed by nobody, until it was admitted.
    """

    id: str
    heads: list[str]
    count: int
    limit: int


class GroupService(Event, frozen=True, tag="group-service"):
    """Virtual token counters of groups, as they are now; only those that changed since they were last told."""

    counters: dict[str, float]


class Lifted(Event, frozen=True, tag="lifted"):
    """A group that had nothing queued came back; its counter was lifted, so that idling saves up nothing."""

    group: str
    before: float
    after: float


class Promoted(Event, frozen=True, tag="promoted"):
    """A request moved ahead. starved: from level `before` to `after`, with a new key.

    aging: it was admitted before one that waits and is more important; `before` is its priority, `after` the one it
    had aged to, both as numbers of which the smaller goes first.
    """

    id: str
    cause: MoveCause
    before: float
    after: float
    key: tuple[float, ...]


class Demoted(Event, frozen=True, tag="demoted"):
    """mlfq: a running request used up the quantum of level `before`."""

    id: str
    before: float
    after: float
    key: tuple[float, ...]


class PrioritySet(Event, frozen=True, tag="priority-set"):
    """Somebody changed the priority of a request."""

    id: str
    before: int
    after: int
    key: tuple[float, ...]


class Switched(Event, frozen=True, tag="switched"):
    """An option was changed while the engine ran. Equal values: the policy's file was loaded again."""

    option: str
    before: str | int | float | bool | None
    after: str | int | float | bool | None


class Rekeyed(Event, frozen=True, tag="rekeyed"):
    """Requests have other keys: all alive ones after a switch of policy, or one that a user's policy moved.

    After a switch, `fair_at` says where the counter of the group belongs in the order (-1: nowhere; None: as before)
    and `counters` holds all of them.
    """

    ids: list[str]
    keys: list[tuple[float, ...]]
    fair_at: int | None = None
    counters: dict[str, float] = msgspec.field(default_factory=dict)


class Tokens(Event, frozen=True, tag="tokens"):
    """Output tokens of the step: the next token of each sequence, and the text that became final with it.

    Every output index of a sequence is told exactly once, in order. `seqs` is empty when all are sequence 0.
    """

    ids: list[str]
    tokens: list[int]
    texts: list[str]
    seqs: list[int] = msgspec.field(default_factory=list)


class BeamOutput(msgspec.Struct, frozen=True):
    """An output of a beam search: `logprob` of all its tokens, `score` by which it was ranked, and why it ended."""

    tokens: list[int]
    text: str
    logprob: float
    score: float
    reason: str
    stop_reason: str | int | None = None


class Searched(Event, frozen=True, tag="searched"):
    """A beam search is over, or was cut short: what its request returns, best first. Finished follows.

    `steps` is how many tokens its longest beam had; the sequences told so far are what was searched, not the result.
    """

    id: str
    outputs: list[BeamOutput]
    steps: int


class Chosen(Event, frozen=True, tag="chosen"):
    """Which of its samples a request returns (best_of), best first, by their log-probabilities. Finished follows."""

    id: str
    seqs: list[int]
    logprobs: list[float]


class Finished(Event, frozen=True, tag="finished"):
    """A request left the engine, from whatever queue. `text` is what the detokenizer still held back of sequence `seq`.

    `stop_reason` is the stop string or end token; `message` says more for failed, timeout and capacity.
    """

    id: str
    reason: str
    output_tokens: int
    text: str = ""
    stop_reason: str | int | None = None
    message: str = ""
    seq: int = 0


class TurnedAway(Event, frozen=True, tag="turned-away"):
    """A request that waited and never ran is ended, since `limit` may wait and `for_id` is more urgent.

    `key` and `for_key` are those of both. Finished, with reason `refused`, follows.
    """

    id: str
    for_id: str
    key: tuple[float, ...]
    for_key: tuple[float, ...]
    limit: int


class DeadlineMissed(Event, frozen=True, tag="deadline-missed"):
    """A request is not done at its deadline; it goes on, with `output_tokens` so far."""

    id: str
    deadline: float
    output_tokens: int


class SequenceFinished(Event, frozen=True, tag="sequence-finished"):
    """One of several samples ended; the request goes on with the others, or ends with them. As in Finished."""

    id: str
    seq: int
    reason: str
    output_tokens: int
    text: str = ""
    stop_reason: str | int | None = None
    message: str = ""


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
