"""Requests of several sequences: samples that fork, beams that live on, fork and are dropped, and what is returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtop.engine import events as ev
from vtop.engine.executor import SampledToken
from vtop.engine.request import FinishReason, Request, Sequence

if TYPE_CHECKING:
    from vtop.engine.sched.core import SchedulerCore


def fork_sequence(scheduler: SchedulerCore, parent: Sequence, child: Sequence) -> None:
    """The child goes on beside the parent, with the same blocks."""
    blocks = scheduler.blocks.fork(parent, child)
    scheduler.note(ev.Forked(parent.request.request_id, parent.index, child.index, blocks))


def fork_samples(
    scheduler: SchedulerCore, parent: Sequence, children: list[Sequence], tokens: list[SampledToken]
) -> list[tuple[Sequence, SampledToken]]:
    """The prompt of several samples is done: the others share its blocks, each with a first token of its own."""
    for child in children:
        fork_sequence(scheduler, parent, child)
    return list(zip(children, tokens, strict=True))


def tell_result(scheduler: SchedulerCore, request: Request, reason: FinishReason) -> None:
    """Of a beam search, or of more samples than are returned: which outputs the request returns."""
    name, most = request.request_id, request.params.n
    if request.beam is not None:
        best = request.beam.best()[:most]
        texts = scheduler.outputs.close_beams(request, best)
        outputs = [
            ev.BeamOutput(list(h.tokens), text, h.logprob, h.score, h.reason or reason.value, h.stop)
            for h, text in zip(best, texts, strict=True)
        ]
        scheduler.note(ev.Searched(name, outputs, request.beam.steps))
    elif len(request.sequences) > most and request.forked:
        chosen = request.chosen()
        scheduler.note(ev.Chosen(name, [s.index for s in chosen], [s.cumulative_logprob for s in chosen]))


def advance_beams(scheduler: SchedulerCore, request: Request) -> None:
    """All beams of a request know their likeliest tokens: choose, fork, drop, append; end when the search is over."""
    beam = request.beam
    assert beam is not None
    parents = request.beam_order
    found = [request.beam_found[seq] for seq in parents]
    request.beam_found = {}
    chosen = beam.advance(found)
    if not chosen:
        best = beam.best()
        stop = best[0].stop if best else None
        scheduler.finish(request, FinishReason.LENGTH if stop is None else FinishReason.STOP, stop_reason=stop)
        return
    kept = {continuation.parent for continuation in chosen}
    for index, seq in enumerate(parents):
        if index not in kept:
            drop_beam(scheduler, seq)
    used = {id(parents[index]) for index in kept}
    spare = [seq for seq in request.sequences if id(seq) not in used]
    order: list[Sequence] = []
    going_on: set[int] = set()
    for continuation in chosen:
        parent = parents[continuation.parent]
        if continuation.parent in going_on:
            child = spare.pop(0)
            fork_beam(scheduler, parent, child)
            order.append(child)
        else:
            going_on.add(continuation.parent)
            order.append(parent)
    for seq, continuation in zip(order, chosen, strict=True):
        seq.token_ids.append(continuation.token)
        seq.ended = False
    for seq in request.sequences:
        seq.ended = seq not in order
    request.beam_order = order
    scheduler.note(
        ev.Tokens(
            [request.request_id] * len(order),
            [continuation.token for continuation in chosen],
            [""] * len(order),
            [seq.index for seq in order],
        )
    )
    if any(len(seq.token_ids) > scheduler.capacity for seq in order):
        scheduler.finish(request, FinishReason.CAPACITY, message=scheduler.capacity_message(order[0]))


def fork_beam(scheduler: SchedulerCore, parent: Sequence, child: Sequence) -> None:
    """`child` goes on from where `parent` is, with the same blocks."""
    fork_sequence(scheduler, parent, child)
    child.token_ids = list(parent.token_ids)
    child.most_computed = parent.most_computed


def drop_beam(scheduler: SchedulerCore, seq: Sequence) -> None:
    """No continuation of this beam was good enough; its blocks return."""
    scheduler._tell_freed(seq, scheduler.blocks.free(seq))
    scheduler.blocks.forget_sequence(seq)
