"""Everything the screen, a recording or a metric can know: one Frame per step, made of typed events.

State is the fold of Frames (`state.py`), so an event carries what changed, and each decision carries its reason as
data: what was needed, what was free, what was lost. Times are engine seconds. Request ids are the user's; block ids
are those of the device pool.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 1


class Limit(StrEnum):
    """Which limit stopped a step from doing more."""

    NONE = "none"  # nothing was left out
    BLOCKS = "blocks"
    BUDGET = "budget"
    SEQS = "seqs"
    PREEMPTED = "preempted"  # a step that preempts admits nobody
    DECODES = "decodes"  # prefill-first: it was the decodes' turn


# --- reasons: why a request waits, or got nothing in this step -------------------------------------------------


class Reason(msgspec.Struct, frozen=True, tag=True, tag_field="code"):
    """Base of the reasons. `code` in JSON is the tag."""


class NeedsBlocks(Reason, frozen=True, tag="blocks"):
    """Admission needs `need` blocks and leaves `watermark` free; only `free` are.

    `growth` of the need is kept for what running requests take while a preempted one is computed again.
    """

    need: int
    free: int
    watermark: int = 0
    growth: int = 0


class NeedsBudget(Reason, frozen=True, tag="budget"):
    """The step's token budget is spent: `need` tokens wanted, `left` left of `budget`."""

    need: int
    left: int
    budget: int


class NeedsSeat(Reason, frozen=True, tag="seqs"):
    """All `limit` sequence slots are taken."""

    limit: int


class AfterPreemption(Reason, frozen=True, tag="preempted-this-step"):
    """A step that preempts admits nobody; `victim` was preempted."""

    victim: str


class DecodesFirst(Reason, frozen=True, tag="decodes-first"):
    """prefill-first: `steps` prompt steps ran in a row, now the decodes have a turn."""

    steps: int


WaitReason = NeedsBlocks | NeedsBudget | NeedsSeat | AfterPreemption | DecodesFirst


class RefusalCode(StrEnum):
    EMPTY_PROMPT = "empty-prompt"
    PROMPT_TOO_LONG = "prompt-too-long"  # no room for a token under max_model_len
    NEVER_FITS = "never-fits"  # the prompt needs more blocks than the pool has
    OVER_BUDGET = "over-budget"  # prefill-first: the prompt exceeds the token budget
    BAD_TOKEN = "bad-token"  # a token id outside the vocabulary
    BAD_PARAMETER = "bad-parameter"


class PreemptCause(StrEnum):
    NO_FREE_BLOCK = "no-free-block"
    POOL_RESIZED = "pool-resized"


# --- events ----------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base of the events. `event` in JSON is the tag."""


class Arrived(Event, frozen=True, tag="arrived"):
    """A request was accepted and waits. `limit` is the most tokens (prompt + output) it may reach.

    `max_tokens` is what was asked for; None means until the model's limit or the end of the pool.
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
    temperature: float = 1.0
    seed: int = 0


class Refused(Event, frozen=True, tag="refused"):
    """A request was not accepted. `need` and `capacity` are in the unit of the code (blocks or tokens)."""

    id: str
    code: RefusalCode
    message: str
    need: int = 0
    capacity: int = 0
    prompt: str | None = None


class Admitted(Event, frozen=True, tag="admitted"):
    """From waiting to running. `need` blocks were asked of `free`; `resumed` after a preemption."""

    id: str
    serial: int
    resumed: bool
    need: int
    free: int
    watermark: int = 0


class Waits(Event, frozen=True, tag="waits"):
    """The head of the waiting queue was not admitted, and why. Told when the reason or the head changes.

    Everybody behind the head waits because of it: nothing overtakes.
    """

    id: str
    reason: WaitReason


class Skipped(Event, frozen=True, tag="skipped"):
    """A running request got no tokens in this step. Told when the reason changes."""

    id: str
    reason: WaitReason


class BlocksTaken(Event, frozen=True, tag="blocks-taken"):
    """Blocks appended to the block table of sequence `seq` of a request, in table order."""

    id: str
    blocks: list[int]
    seq: int = 0


class BlocksFreed(Event, frozen=True, tag="blocks-freed"):
    """The whole block table of a sequence went back, tail first."""

    id: str
    blocks: list[int]
    seq: int = 0


class PrefixLookup(Event, frozen=True, tag="prefix-lookup"):
    """At admission `tokens` tokens were looked up in the prefix cache; the first `hit` of them need not be computed.

    `blocks` are taken over from others. `resumed` lookups mostly find the request's own blocks and count apart.
    """

    id: str
    tokens: int
    hit: int
    blocks: int
    resumed: bool


class Cached(Event, frozen=True, tag="cached"):
    """Blocks of a sequence are full and written: from now on they can be hit, even after nobody holds them."""

    id: str
    blocks: list[int]
    seq: int = 0


class Evicted(Event, frozen=True, tag="evicted"):
    """Cached blocks were handed out for something else, or went away: their content can no longer be hit."""

    blocks: list[int]


class CacheReset(Event, frozen=True, tag="cache-reset"):
    """All content was forgotten; held blocks stay held."""

    blocks: int


class CopiedOnWrite(Event, frozen=True, tag="copied-on-write"):
    """Entry `logical` of a sequence's table was shared and is now `target`, a copy of `source`."""

    id: str
    source: int
    target: int
    logical: int
    seq: int = 0


class Scheduled(Event, frozen=True, tag="scheduled"):
    """What the step computes, in batch order: `tokens[i]` tokens for sequence `seqs[i]` of request `ids[i]`.

    `seqs` is empty when every entry is sequence 0. `budget` is the token budget, `limit` what bound the step.
    """

    ids: list[str]
    tokens: list[int]
    budget: int
    limit: Limit
    seqs: list[int] = []


class Preempted(Event, frozen=True, tag="preempted"):
    """A running request lost its blocks so that `for_id` could go on (its own id: it gave way itself).

    `tokens_lost` are computed tokens thrown away; `used_before` and `used_after` are blocks of the pool in use;
    `count` is the how-many-th preemption of this request. `rule` is the victim rule that chose it.
    """

    id: str
    for_id: str
    cause: PreemptCause
    mode: str
    rule: str
    key: tuple[float, ...]
    for_key: tuple[float, ...]
    blocks_freed: int
    tokens_lost: int
    used_before: int
    used_after: int
    pool: int
    count: int


class Tokens(Event, frozen=True, tag="tokens"):
    """Output tokens of the step: the next token of each sequence, and the text that became final with it.

    Every output index of a sequence is told exactly once, in order. `seqs` is empty when all are sequence 0.
    """

    ids: list[str]
    tokens: list[int]
    texts: list[str]
    seqs: list[int] = []


class Finished(Event, frozen=True, tag="finished"):
    """A request left the engine, from whatever queue. `text` is what the detokenizer still held back.

    `stop_reason` is the stop string or end token; `message` says more for failed, timeout and capacity.
    """

    id: str
    reason: str
    output_tokens: int
    text: str = ""
    stop_reason: str | int | None = None
    message: str = ""


class StepFailed(Event, frozen=True, tag="step-failed"):
    """An exception in `where` (schedule or execute); the requests of the batch ended with `failed`."""

    where: str
    error: str
    ids: list[str]


class PoolResized(Event, frozen=True, tag="pool-resized"):
    """The device pool has another number of blocks."""

    before: int
    after: int


class StepTimes(Event, frozen=True, tag="step-times"):
    """Seconds spent in the parts of the step; `model` is the forward pass, `commit` includes text."""

    schedule: float
    prepare: float
    model: float
    sample: float
    commit: float


class Paused(Event, frozen=True, tag="paused"):
    """The engine stopped between steps. `why` is command, step or the event that a run-until met."""

    why: str


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
    | Tokens
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


class Frame(msgspec.Struct, frozen=True):
    """Everything that happened in one step, in order.

    `serial` counts Frames without a gap; `step` counts engine steps and is that of the last one that ran. Commands
    applied while nothing runs come in a Frame of their own, with `ran` false. `time` is when the Frame was complete:
    when its tokens became known and its requests ended. `began` is when its decisions were taken (None: at `time`).
    """

    serial: int
    step: int
    time: float
    ran: bool
    events: list[AnyEvent]
    began: float | None = None


class Meta(msgspec.Struct, frozen=True):
    """What a recording or a subscriber must know before the first Frame. First line of a recording.

    `unix_time` and `engine_time` are the same instant on the wall clock and the engine's clock (seconds).
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
