"""Events about who gives way and how: preempted, swapped out, and back in. See `events.py` for the rest."""

from __future__ import annotations

from vtop.engine.events.blocks import Event
from vtop.engine.events.reasons import ModeWhy, PreemptCause


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
