"""Why a request is where it is: its present reason, its history, and what must happen before it runs.

Everything comes from the fold of Frames, so a recording can be asked the same questions as a live engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.request import RequestStatus
from vtop.engine.state import EngineState, RequestView, Told


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
    first. For a wait for blocks: `need` must be free (with growth and watermark), `free` are; `endings` are running
    requests in the order in which they must end at the latest, until enough is free (`enough`).
    """

    id: str
    status: RequestStatus
    reason: ev.WaitReason | None
    head: str | None = None
    ahead: list[str] = field(default_factory=list)
    need: int = 0
    free: int = 0
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
        return Explanation(view.id, view.status, view.reason, free=state.free, history=history)
    # swapped requests return before anybody is admitted
    order = [other.id for other in state.swapped_order()]
    if view.status is RequestStatus.WAITING:
        order += [other.id for other in state.waiting_order()]
    ahead = order[: order.index(view.id)]
    head = state.requests.get(order[0])
    reason = head.reason if head is not None and head.reason is not None else view.reason
    need, endings, enough = _chain(state, reason)
    return Explanation(
        view.id,
        view.status,
        reason,
        head=None if head is None else head.id,
        ahead=ahead,
        need=need,
        free=state.free,
        endings=endings,
        enough=enough,
        history=history,
    )


def _chain(state: EngineState, reason: ev.WaitReason | None) -> tuple[int, list[Ending], bool]:
    """What must be free for the head, and who must end until it is."""
    if isinstance(reason, ev.NeedsBlocks):
        need = reason.need + reason.growth + reason.watermark
        missing = need - state.free
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
