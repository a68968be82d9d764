"""Reasons in words, short enough for a table cell. Ids are cleaned here; numbers come first."""

from __future__ import annotations

from vtop.app.terminal import safe_text
from vtop.app.terminal.glyphs import glyphs
from vtop.engine import events as ev
from vtop.engine.request import RequestStatus
from vtop.engine.state.explain import holds, needed
from vtop.engine.state.fold import EngineState, RequestView

ID_CELLS = 24  # an id inside a sentence
REASON_CELLS = 40  # for a reason with its step
FITS = "fits, next step"
_NO_LONGER = {ev.NeedsSeat: "a seat is open, next step", ev.SwappedFirst: "next"}


def short_id(request_id: str, ascii: bool = False, most: int = ID_CELLS) -> str:
    return safe_text.shorten(request_id, most, ascii=ascii)


def blocks_available(free: int, cached: int) -> str:
    """`4 available (1 free + 3 cached)`; what adds nothing is left out."""
    return f"{free + cached} available" + (f" ({free} free + {cached} cached)" if cached else "")


def reason_text(reason: ev.WaitReason, ascii: bool = False, *, own: str | None = None) -> str:
    """What a request waited for when that was decided. `own` is its id, since it may have been the victim itself."""
    match reason:
        case ev.NeedsBlocks():
            extra = [f"{reason.watermark} wm"] if reason.watermark else []
            extra += [f"{reason.growth} growth"] if reason.growth else []
            note = f" +{' +'.join(extra)}" if extra else ""
            return f"needs {reason.need} blk{note}, {reason.available} available"
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


def reason_now(request: RequestView, state: EngineState, ascii: bool = False, width: int = 1000) -> str:
    """The reason of a request with the step it belongs to, or that it is none any more.

    Numbers of an earlier step never stand alone: beside those of now they would contradict them.
    """
    reason = request.reason
    if reason is None:
        return ""
    if not holds(state, request):
        return _NO_LONGER.get(type(reason), FITS)
    at = f" {glyphs(ascii).dot} step {request.reason_step}"
    text = reason_text(reason, ascii, own=request.id)
    if safe_text.cells(text + at) <= width:
        return text + at
    if isinstance(reason, ev.SwappedFirst):
        text = f"{short_id(reason.id, ascii)} returns first"
    elif isinstance(reason, ev.NeedsBlocks):
        text = f"needs {reason.total} blk, {reason.available} available"
        if safe_text.cells(text + at) > width:
            return f"needs {reason.total}, {reason.available} available {glyphs(ascii).dot} {request.reason_step}"
    return safe_text.shorten(text, max(1, width - safe_text.cells(at)), ascii=ascii) + at


def reason_sentence(request: RequestView, state: EngineState, ascii: bool = False) -> str:
    """The same in full: what is needed is added up, and what is missing is said."""
    reason = request.reason
    if not isinstance(reason, ev.NeedsBlocks):
        return reason_now(request, state, ascii)
    if not holds(state, request):
        return f"{FITS}: needs {needed(state, reason)} blocks, {blocks_available(state.free, state.cached)} now"
    parts = [f"step {request.reason_step}: needs {reason.need} blocks"]
    parts += [f"{reason.growth} that running ones grow by"] if reason.growth else []
    parts += [f"{reason.watermark} left as watermark"] if reason.watermark else []
    text = " + ".join(parts) + (f" = {reason.total}" if len(parts) > 1 else "")
    short = reason.total - reason.available
    return f"{text}; {blocks_available(reason.free, reason.cached)}, {short} short"


def why_waiting(
    request: RequestView, head: RequestView | None, state: EngineState, ascii: bool = False, width: int = 1000
) -> str:
    """Why a waiting or swapped request is not running; `head` is the first of its queue.

    Whoever is behind the head waits for the head, whatever was said when it was one itself.
    """
    out = request.status is RequestStatus.SWAPPED
    before = f"{glyphs(ascii).swap_out} swapped out, " if out else ""
    after = f", {request.num_host_blocks} on host" if out else ""
    room = width - safe_text.cells(before) - safe_text.cells(after)
    if head is not None and request is not head:
        why = f"behind {short_id(head.id, ascii)}"
    elif request.reason is not None:
        if out and room < REASON_CELLS:  # the mark says as much
            before, after, room = f"{glyphs(ascii).swap_out} ", "", width - 2
        why = reason_now(request, state, ascii, room)
    else:
        why = "returns next" if out else "next"
    return before + why + after


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
