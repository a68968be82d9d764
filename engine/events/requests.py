"""Events about requests: from arrival to end, their tokens, and who goes before whom. See `events` for the rest."""

from __future__ import annotations

import msgspec

from vtop.engine.events.blocks import Event
from vtop.engine.events.reasons import Limit, MoveCause, RefusalCode, WaitReason


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
    priority: int | float = 0  # whole ones stay whole in a recording
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
    before: int | float
    after: int | float
    key: tuple[float, ...]


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
