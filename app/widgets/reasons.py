"""Reasons in words, short enough for a table cell. Ids are cleaned here; numbers come first."""

from __future__ import annotations

from vtop.app import safe_text
from vtop.app.glyphs import glyphs
from vtop.engine import events as ev
from vtop.engine.request import RequestStatus
from vtop.engine.state import EngineState, RequestView

ID_CELLS = 24  # an id inside a sentence


def short_id(request_id: str, ascii: bool = False, most: int = ID_CELLS) -> str:
    return safe_text.shorten(request_id, most, ascii=ascii)


def reason_text(reason: ev.WaitReason, ascii: bool = False, *, free: int | None = None, own: str | None = None) -> str:
    """What a request waits for.

    A reason is told when the need changes; `free` are the blocks that can be handed out now, where that is known.
    `own` is the id of the request, which may have been the victim itself.
    """
    match reason:
        case ev.NeedsBlocks():
            extra = [f"{reason.watermark} wm"] if reason.watermark else []
            extra += [f"{reason.growth} growth"] if reason.growth else []
            note = f" (+{' +'.join(extra)})" if extra else ""
            return f"needs {reason.need} blk, {reason.free if free is None else free} free{note}"
        case ev.NeedsBudget():
            return f"needs {reason.need} tok, {reason.left} of {reason.budget} left in step"
        case ev.NeedsSeat():
            return f"all {reason.limit} seats taken"
        case ev.AfterPreemption():
            if reason.victim == own:
                return "just preempted"
            return f"after preempting {short_id(reason.victim, ascii)}"
        case ev.SwappedFirst():
            return f"swapped out {short_id(reason.id, ascii)} returns first"
        case ev.DecodesFirst():
            return f"decodes first, after {reason.steps} prompt step{'s' if reason.steps != 1 else ''}"


def reason_sentence(reason: ev.WaitReason, free: int, ascii: bool = False) -> str:
    """The same in full: what is needed is added up, and what is missing is said. `free` are the blocks free now."""
    if not isinstance(reason, ev.NeedsBlocks):
        return reason_text(reason, ascii, free=free)
    need = reason.need + reason.growth + reason.watermark
    parts = [f"needs {reason.need} blocks"]
    parts += [f"{reason.growth} that running ones grow by"] if reason.growth else []
    parts += [f"{reason.watermark} left as watermark"] if reason.watermark else []
    text = " + ".join(parts) + (f" = {need}" if len(parts) > 1 else "")
    return f"{text}; {free} free, {need - free} short" if need > free else f"{text}; {free} free now"


def why_waiting(request: RequestView, head: RequestView | None, ascii: bool = False, *, free: int | None = None) -> str:
    """Why a waiting or swapped request is not running; `head` is the first of its queue, `free` as for `reason_text`.

    Whoever is behind the head waits for the head, whatever was said when it was one itself.
    """
    out = request.status is RequestStatus.SWAPPED
    if head is not None and request is not head:
        why = f"behind {short_id(head.id, ascii)}"
    elif request.reason is not None:
        why = reason_text(request.reason, ascii, free=free, own=request.id)
    else:
        why = "returns next" if out else "next"
    return f"{glyphs(ascii).swap_out} swapped out, {why}, {host_blocks(request)} on host" if out else why


def host_blocks(request: RequestView) -> int:
    """Blocks of the host pool in its tables; those that its samples share count once."""
    return len({block for seq in request.sequences for block in seq.host_blocks})


def head_of(state: EngineState, request: RequestView) -> RequestView | None:
    """The first of the queue that a waiting or swapped request is in."""
    return swapped_head(state) if request.status is RequestStatus.SWAPPED else queue_head(state)


def swapped_head(state: EngineState) -> RequestView | None:
    """The swapped request that returns first."""
    return min(state.swapped.values(), key=state.order, default=None)


def queue_head(state: EngineState) -> RequestView | None:
    """The first of the waiting queue."""
    if not state.waiting:
        return None
    blocked = state.waiting.get(state.blocked_head) if state.blocked_head is not None else None
    first = min(state.waiting.values(), key=state.order)
    return blocked if blocked is not None and state.order(blocked) == state.order(first) else first


def limit_text(limit: ev.Limit) -> str:
    """What stopped a step from doing more."""
    return {
        ev.Limit.NONE: "none",
        ev.Limit.BLOCKS: "KV blocks",
        ev.Limit.BUDGET: "token budget",
        ev.Limit.SEQS: "sequence seats",
        ev.Limit.PREEMPTED: "preempted",
        ev.Limit.SWAPPED: "swapped first",
        ev.Limit.DECODES: "decodes' turn",
    }[limit]


def ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
