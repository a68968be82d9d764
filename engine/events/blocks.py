"""Events about blocks: who took and gave back which, what they hold, copies. See `events.py` for the rest."""

from __future__ import annotations

import msgspec


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
