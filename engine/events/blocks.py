"""Events about blocks: who took and gave back which, what they hold, copies; who gave way, and how. See `events`."""

from __future__ import annotations

import msgspec

from vtop.engine.events.reasons import ModeWhy, PreemptCause


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base of the events. `event` in JSON is the tag."""


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
    seq: int = 0


class Cached(Event, frozen=True, tag="cached"):
    """Blocks of a sequence are full and written: from now on they can be hit, even after nobody holds them."""

    id: str
    blocks: list[int]
    seq: int = 0


class Evicted(Event, frozen=True, tag="evicted"):
    """Cached blocks were handed out for something else, or went away: their content can no longer be hit.

    `hashes[i]` is the 64-bit hash of what block i held (with everything before it), `last_used[i]` when it was held
    last.
    """

    blocks: list[int]
    hashes: list[int] = msgspec.field(default_factory=list)
    last_used: list[float] = msgspec.field(default_factory=list)


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


class Forked(Event, frozen=True, tag="forked"):
    """Sequence `child` of a group goes on from where sequence `parent` is, and shares its `blocks`.

    After a preemption `child` has outputs of its own: it shares the first `prompt_tokens` tokens, and computes the
    others again. None: it has what the parent has.
    """

    id: str
    parent: int
    child: int
    blocks: list[int]
    prompt_tokens: int | None = None


class Merged(Event, frozen=True, tag="merged"):
    """Entry `logical` of a table became full and equal to block `into`: it is that block now, `block` went back."""

    id: str
    block: int
    into: int
    logical: int
    seq: int = 0


class PoolResized(Event, frozen=True, tag="pool-resized"):
    """The device pool has another number of blocks."""

    before: int
    after: int


class GaveWay(Event, frozen=True, kw_only=True):
    """Base of the two preemptions: a running request left the device so that `for_id` could go on.

    `for_id` is its own id when it gave way itself. `used_before` and `used_after` are blocks of the pool in use, of
    `pool`; `count` is the how-many-th preemption of this request, of either kind. `rule` is the victim rule that chose
    it, empty where none did. `key` is its key in the queue where it waits now, `for_key` that of the other. `why` says
    why in this way; `swap_seconds` and `recompute_seconds` are the estimates that hybrid compared, None where unknown.
    `pool_after` is the size to which the pool shrinks, where that is the cause.
    """

    id: str
    for_id: str
    cause: PreemptCause
    rule: str
    key: tuple[float, ...]
    for_key: tuple[float, ...]
    used_before: int
    used_after: int
    pool: int
    count: int
    why: ModeWhy = ModeWhy.MODE
    swap_seconds: float | None = None
    recompute_seconds: float | None = None
    pool_after: int | None = None


class Preempted(GaveWay, frozen=True, kw_only=True, tag="preempted"):
    """A running request lost its blocks; what it computed is computed again.

    `blocks_freed` are blocks that nobody else held; `tokens_lost` are computed tokens thrown away. `rank` and
    `for_rank` are what the policy compares for victims: the larger gives way first.
    """

    mode: str
    blocks_freed: int
    tokens_lost: int
    rank: tuple[float, ...] = ()
    for_rank: tuple[float, ...] = ()


class SwappedOut(GaveWay, frozen=True, kw_only=True, tag="swapped-out"):
    """A running request's K/V moved to the host pool; nothing that it computed is lost.

    `tables` are its sequences' tables in the host pool, `pairs` the copies (device block, host block), in order.
    """

    tables: list[list[int]]
    pairs: list[tuple[int, int]]


class SwapOutFailed(Event, frozen=True, tag="swap-out-failed"):
    """The step that was to copy a request's K/V to the host failed: it waits instead, and computes them again.

    `tokens_lost` are computed tokens thrown away; `key` is its key in the waiting queue.
    """

    id: str
    key: tuple[float, ...]
    tokens_lost: int


class SwappedIn(Event, frozen=True, tag="swapped-in"):
    """A swapped request runs again: `tables` are its sequences' tables, `pairs` the copies (host, device block).

    `need` blocks were asked of `free` + `cached`, `watermark` of them left.
    """

    id: str
    key: tuple[float, ...]
    tables: list[list[int]]
    pairs: list[tuple[int, int]]
    need: int
    free: int
    watermark: int = 0
    cached: int = 0
