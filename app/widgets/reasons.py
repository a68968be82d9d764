"""Reasons in words, short enough for a table cell. Ids are cleaned here; numbers come first."""

from __future__ import annotations

from vtop.app import safe_text
from vtop.engine import events as ev
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
        case ev.DecodesFirst():
            return f"decodes first, after {reason.steps} prompt step{'s' if reason.steps != 1 else ''}"


def why_waiting(request: RequestView, head: RequestView | None, ascii: bool = False, *, free: int | None = None) -> str:
    """Why this waiting request is not running; `head` is the first of the queue, `free` as for `reason_text`.

    Nobody overtakes, so whoever is behind the head waits for the head, whatever was said when it was one itself.
    """
    if head is None or request is head:
        if request.reason is None:
            return "next"
        return reason_text(request.reason, ascii, free=free, own=request.id)
    return f"behind {short_id(head.id, ascii)}"


def queue_head(state: EngineState) -> RequestView | None:
    """The first of the waiting queue."""
    if not state.waiting:
        return None
    blocked = state.waiting.get(state.blocked_head) if state.blocked_head is not None else None
    first = min(state.waiting.values(), key=lambda r: r.key)
    return blocked if blocked is not None and blocked.key == first.key else first


def limit_text(limit: ev.Limit) -> str:
    """What stopped a step from doing more."""
    return {
        ev.Limit.NONE: "none",
        ev.Limit.BLOCKS: "KV blocks",
        ev.Limit.BUDGET: "token budget",
        ev.Limit.SEQS: "sequence seats",
        ev.Limit.PREEMPTED: "preempted",
        ev.Limit.DECODES: "decodes' turn",
    }[limit]


def ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
