"""Why a request is where it is: its present reason, its history, and what must happen before it runs.

Everything comes from the fold of Frames, so a recording can be asked the same questions as a live engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.request import RequestStatus
from vtop.engine.state.fold import EngineState, RequestView, Told


@dataclass(frozen=True, slots=True)
class Ending:
    """A running request that gives blocks back when it ends: after at most `tokens` more output tokens."""

    id: str
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Answer to *why* for one request.

    `reason` is its own, or that of the `head` everybody behind waits for. `ahead` are the ids before it, next one
    first. For a wait for blocks: `need` must be available (with growth and watermark), `available` are now; `endings`
    are running requests in the order in which they must end at the latest, until enough is (`enough`). `reason` was
    decided in `reason_step`; `holds` is false when it is one no longer, by what is available now.
    """

    id: str
    status: RequestStatus
    reason: ev.WaitReason | None
    reason_step: int = 0
    holds: bool = True
    head: str | None = None
    ahead: list[str] = field(default_factory=list)
    need: int = 0
    available: int = 0
    endings: list[Ending] = field(default_factory=list)
    enough: bool = True
    history: list[Told] = field(default_factory=list)


def explain(state: EngineState, request_id: str) -> Explanation | None:
    """Why `request_id` is where it is; None when nothing is known of it."""
    view = state.find(request_id)
    if view is None:
        return None
    history = list(view.history)
    if view.status not in (RequestStatus.WAITING, RequestStatus.SWAPPED):
        return Explanation(
            view.id, view.status, view.reason, view.reason_step, available=state.available, history=history
        )
    # swapped requests return before anybody is admitted
    order = [other.id for other in state.swapped_order()]
    if view.status is RequestStatus.WAITING:
        order += [other.id for other in state.waiting_order()]
    ahead = order[: order.index(view.id)]
    head = state.requests[order[0]]  # whatever was said when another one was the head
    need, endings, enough = _chain(state, head.reason)
    return Explanation(
        view.id,
        view.status,
        head.reason,
        head.reason_step,
        holds(state, head),
        head=head.id,
        ahead=ahead,
        need=need,
        available=state.available,
        endings=endings,
        enough=enough,
        history=history,
    )


def needed(state: EngineState, reason: ev.NeedsBlocks) -> int:
    """Blocks that must be available now: without running requests nothing is kept for them."""
    if not state.running and state.options.get("preset") != "vllm-v0":
        return reason.need
    return reason.total


def holds(state: EngineState, request: RequestView) -> bool:
    """Whether the reason of a waiting or swapped request, told in an earlier step, is still one in this state."""
    reason = request.reason
    match reason:
        case ev.NeedsBlocks():
            return needed(state, reason) > state.available
        case ev.NeedsSeat():
            return _no_seat(state, request, reason.limit)
        case ev.SwappedFirst():
            return bool(state.swapped)
        case _:
            return True


def _no_seat(state: EngineState, request: RequestView, limit: int) -> bool:
    options = state.options
    if "max_active_seqs" in str(options.get("preset_quirks", "")):
        return True  # a cap of its own: what it left is not known
    limit = options.get("max_num_seqs", limit)
    if options.get("preset") == "vllm-v1":  # seats are of requests
        return len(state.running) >= limit
    return state.seats > 0 and state.seats + len(request.sequences) > limit


def _chain(state: EngineState, reason: ev.WaitReason | None) -> tuple[int, list[Ending], bool]:
    """What must be available for the head, and who must end until it is."""
    if isinstance(reason, ev.NeedsBlocks):
        need = needed(state, reason)
        missing = need - state.available
    elif isinstance(reason, ev.NeedsSeat):
        need, missing = 1, 1
    else:
        return 0, [], True
    endings: list[Ending] = []
    by_blocks = isinstance(reason, ev.NeedsBlocks)
    for other in sorted(state.running.values(), key=_tokens_left):
        if missing <= 0:
            break
        freed = _own_blocks(state, other)
        endings.append(Ending(other.id, _tokens_left(other), freed))
        missing -= freed if by_blocks else 1
    return need, endings, missing <= 0


def _tokens_left(view: RequestView) -> int:
    return max(0, view.limit - view.prompt_tokens - view.output_tokens)


def _own_blocks(state: EngineState, view: RequestView) -> int:
    """Blocks that nobody else holds: what its end would give back."""
    held = {block for seq in view.sequences for block in seq.blocks}
    own = {block: sum(seq.blocks.count(block) for seq in view.sequences) for block in held}
    return sum(int(state.ref_count[block]) == own[block] for block in held)
