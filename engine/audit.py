"""Compares the fold of Frames with the engine itself. A difference is a bug of the highest rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vtop.engine.blocks.manager import BlockManager
from vtop.engine.request import FinishReason, Request, RequestStatus
from vtop.engine.sched.live import LIVE_OPTIONS
from vtop.engine.sched.output import EngineOutputs
from vtop.engine.state.fold import FREE, EngineState, RequestView

if TYPE_CHECKING:
    from vtop.engine.sched.core import SchedulerCore


class AuditError(AssertionError):
    """The fold and the engine differ, or the engine breaks an invariant. Lists every difference."""

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        super().__init__("; ".join(differences))


def audit(
    scheduler: SchedulerCore,
    blocks: BlockManager,
    requests: Mapping[str, Request],
    state: EngineState,
    outputs: EngineOutputs | None = None,
) -> None:
    """Check I1, I2 and I6 on the engine and I3 between the engine and `state`, of the requests that ended lately too.

    With `outputs`, what callers are given is compared as well. Raises AuditError.
    """
    if scheduler.has_events:
        raise AuditError(["events are not published yet; flush first"])
    waiting, running, swapped = scheduler.waiting.ordered(), scheduler.running.snapshot(), scheduler.swapped.ordered()
    found: list[str] = []
    tables = [seq.blocks for request in requests.values() for seq in request.sequences]
    try:
        blocks.pool.check(tables)
        blocks.host.check([seq.host_blocks for request in requests.values() for seq in request.sequences])
    except Exception as error:
        found.append(str(error))
    _expect(found, "alive requests", sorted(requests), sorted(r.request_id for r in waiting + running + swapped))
    for status, queue in (
        (RequestStatus.WAITING, waiting),
        (RequestStatus.RUNNING, running),
        (RequestStatus.SWAPPED, swapped),
    ):
        found += [f"{r.request_id} is {r.status} in the {status} queue" for r in queue if r.status is not status]
    found += [f"{r.request_id} waits and holds blocks" for r in waiting + swapped if r.num_blocks]
    found += [
        f"{r.request_id} is {r.status} and holds host blocks"
        for r in waiting + running
        if any(seq.host_blocks for seq in r.sequences)
    ]
    held = Counter(block for r in swapped for seq in r.sequences for block in seq.host_blocks)
    counts = [held[block] for block in range(blocks.host.total)]
    _expect(found, "host reference counts", state.host_ref_count.tolist(), counts)
    owners = {block: r.number for r in swapped for seq in r.sequences for block in seq.host_blocks}
    expected = [owners.get(block, FREE) for block in range(blocks.host.total)]
    _expect(found, "host block owners", state.host_owner.tolist(), expected)
    _expect(found, "used host blocks", state.host_used, blocks.host.used)
    _expect(found, "swapped", [v.id for v in state.swapped_order()], [r.request_id for r in swapped])

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
    _expect(found, "place of the group counter", state.fair_at, scheduler.policy.fair_at)
    _expect(found, "group counters", state.counters, scheduler.policy.counters)
    for name in LIVE_OPTIONS:
        _expect(found, name, state.options[name], getattr(scheduler.config, name))
    for request in waiting + running + swapped:
        view = state.requests.get(request.request_id)
        if view is None:
            found.append(f"{request.request_id} is not in the fold")
        else:
            _compare(found, request, view)
            _compare_output(found, request, outputs, view)
    ended = {view.number: view for view in state.finished}
    for request in scheduler.ended:
        if request.number in ended:
            _compare_end(found, request, ended[request.number])
            _compare_output(found, request, outputs, ended[request.number])
        elif len(state.finished) < (state.finished.maxlen or 0):
            found.append(f"{request.request_id} ended, and is not among the finished ones of the fold")
    if found:
        raise AuditError(found)


def _compare(found: list[str], request: Request, view: RequestView) -> None:
    name = request.request_id
    _expect(found, f"{name} status", view.status, request.status)
    _expect(found, f"{name} key", tuple(view.key), tuple(request.key))
    _expect(found, f"{name} preemptions", view.preemptions, request.preemptions)
    _expect(found, f"{name} priority", view.priority, request.priority)
    _expect(found, f"{name} passed", view.passed, request.passed)
    for seq, seen in zip(sorted(request.sequences, key=lambda s: s.index), view.sequences, strict=True):
        _expect(found, f"{name} block table", seen.blocks, seq.blocks)
        _expect(found, f"{name} host table", seen.host_blocks, seq.host_blocks)
        _expect(found, f"{name} computed", seen.num_computed, seq.num_computed)
        _expect(found, f"{name} tokens", seen.num_tokens, seq.num_tokens)
        _expect(found, f"{name} outputs", seen.output_tokens, seq.output_token_ids)


def _compare_end(found: list[str], request: Request, view: RequestView) -> None:
    name = request.request_id
    reason = request.finish_reason.value if request.finish_reason is not None else ""
    _expect(found, f"{name} id", view.id, name)
    _expect(found, f"{name} status", view.status, request.status)
    _expect(found, f"{name} reason", view.finish_reason, reason)
    _expect(found, f"{name} stop reason", view.stop_reason, request.stop_reason)
    _expect(found, f"{name} message", view.message, request.finish_message)
    _expect(found, f"{name} preemptions", view.preemptions, request.preemptions)
    for seq, seen in zip(sorted(request.sequences, key=lambda s: s.index), view.sequences, strict=True):
        _expect(found, f"{name} blocks after its end", (seen.blocks, seen.host_blocks), ([], []))
        _expect(found, f"{name} outputs", seen.output_tokens, seq.output_token_ids)


def _compare_output(found: list[str], request: Request, outputs: EngineOutputs | None, view: RequestView) -> None:
    """What the fold shows of each sample or hypothesis, and what the caller is given of it."""
    output = outputs.result(request) if outputs is not None else None
    if output is None:
        return
    name, over = request.request_id, view.status is RequestStatus.FINISHED
    _expect(found, f"{name} ended", over, output.finished)
    if request.beam is not None:
        if view.found or (over and output.outputs and output.outputs[0].token_ids):
            told = [(f.tokens, f.text, f.logprob, f.reason, f.stop_reason) for f in view.found]
            given = [
                (o.token_ids, o.text, o.cumulative_logprob, o.finish_reason, o.stop_reason) for o in output.outputs
            ]
            _expect(found, f"{name} hypotheses", told, given)
        return
    if over and request.forked and len(view.sequences) > request.params.n:
        _expect(found, f"{name} samples returned", view.chosen, [sample.index for sample in output.outputs])
    failed = request.finish_reason is FinishReason.FAILED  # perhaps in its output: the end may be missing
    for sample in output.outputs:
        seen = view.sequences[sample.index]
        told_tokens, told_text = seen.output_tokens, seen.text
        if failed:
            told_tokens, told_text = told_tokens[: len(sample.token_ids)], told_text[: len(sample.text)]
        _expect(found, f"{name} tokens of sample {sample.index}", told_tokens, sample.token_ids)
        _expect(found, f"{name} text of sample {sample.index}", told_text, sample.text)
        if len(view.sequences) > 1 and not over:
            _expect(found, f"{name} end of sample {sample.index}", seen.finish_reason, sample.finish_reason or "")


def _expect(found: list[str], what: str, fold: object, engine: object) -> None:
    if fold != engine:
        found.append(f"{what}: fold {fold!r}, engine {engine!r}")
