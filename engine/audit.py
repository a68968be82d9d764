"""Compares the fold of Frames with the engine itself. A difference is a bug of the highest rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vtop.engine.block_manager import BlockManager
from vtop.engine.request import Request, RequestStatus
from vtop.engine.state import FREE, EngineState, RequestView

if TYPE_CHECKING:
    from vtop.engine.scheduler import Scheduler


class AuditError(AssertionError):
    """The fold and the engine differ, or the engine breaks an invariant. Lists every difference."""

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        super().__init__("; ".join(differences))


def audit(scheduler: Scheduler, blocks: BlockManager, requests: Mapping[str, Request], state: EngineState) -> None:
    """Check I1, I2 and I6 on the engine and I3 between the engine and `state`. Raises AuditError."""
    if scheduler.has_events:
        raise AuditError(["events are not published yet; flush first"])
    waiting, running = scheduler.waiting.ordered(), list(scheduler.running)
    found: list[str] = []
    tables = [seq.blocks for request in requests.values() for seq in request.sequences]
    try:
        blocks.pool.check(tables)
    except Exception as error:
        found.append(str(error))
    _expect(found, "alive requests", sorted(requests), sorted(r.request_id for r in waiting + running))
    for status, queue in ((RequestStatus.WAITING, waiting), (RequestStatus.RUNNING, running)):
        found += [f"{r.request_id} is {r.status} in the {status} queue" for r in queue if r.status is not status]
    found += [f"{r.request_id} waits and holds blocks" for r in waiting if r.num_blocks]

    _expect(found, "pool size", state.num_blocks, blocks.pool.total)
    _expect(found, "used blocks", state.used, blocks.pool.used)
    _expect(
        found, "reference counts", state.ref_count.tolist(), list(map(blocks.pool.ref_count, range(blocks.pool.total)))
    )
    hashed = [block in blocks.pool.index for block in range(blocks.pool.total)]
    _expect(found, "blocks with content", state.hashed.tolist(), hashed)
    _expect(found, "cached blocks", state.cached, blocks.pool.cached)
    _expect(found, "unowned blocks", int((state.owner == FREE).sum()), blocks.pool.available)
    _expect(found, "waiting", [v.id for v in state.waiting_order()], [r.request_id for r in waiting])
    _expect(found, "running", [v.id for v in state.running_order()], [r.request_id for r in running])
    for request in waiting + running:
        view = state.requests.get(request.request_id)
        if view is None:
            found.append(f"{request.request_id} is not in the fold")
        else:
            _compare(found, request, view)
    if found:
        raise AuditError(found)


def _compare(found: list[str], request: Request, view: RequestView) -> None:
    name = request.request_id
    _expect(found, f"{name} status", view.status, request.status)
    _expect(found, f"{name} key", tuple(view.key), tuple(request.key))
    _expect(found, f"{name} preemptions", view.preemptions, request.preemptions)
    for seq, seen in zip(request.sequences, view.sequences, strict=True):
        _expect(found, f"{name} block table", seen.blocks, seq.blocks)
        _expect(found, f"{name} computed", seen.num_computed, seq.num_computed)
        _expect(found, f"{name} tokens", seen.num_tokens, seq.num_tokens)
        _expect(found, f"{name} outputs", seen.output_tokens, seq.output_token_ids)


def _expect(found: list[str], what: str, fold: object, engine: object) -> None:
    if fold != engine:
        found.append(f"{what}: fold {fold!r}, engine {engine!r}")
