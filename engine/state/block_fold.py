"""BlockFold: the part of the fold that is events about blocks: tables, the prefix cache, copies, swaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtop.engine import events as ev
from vtop.engine.fields import MOST_BLOCKS
from vtop.engine.request import RequestStatus
from vtop.engine.state.arrays import FREE, StateView
from vtop.engine.state.views import RequestView, SequenceView

_BETWEEN_STEPS = frozenset({ev.PreemptCause.POOL_RESIZED, ev.PreemptCause.CACHE_RESET})


class BlockFold(StateView):
    """Takes the events about blocks; EngineState is made on top of this."""

    def _blocks_taken(self, e: ev.BlocksTaken) -> None:
        view = self.requests[e.id]
        seq = view.sequences[e.seq]
        seq.blocks.extend(e.blocks)
        for block in e.blocks:
            self._hold(view, block)

    def _blocks_freed(self, e: ev.BlocksFreed) -> None:
        view = self.requests[e.id]
        seq = view.sequences[e.seq]
        seq.blocks.clear()
        seq.num_computed = 0
        for block in e.blocks:
            self._let_go(view, block)

    def _prefix_lookup(self, e: ev.PrefixLookup) -> None:
        view = self.requests[e.id]
        seq = view.sequences[e.seq]
        seq.num_computed = e.hit
        seq.most_computed = max(seq.most_computed, e.hit)
        self.totals.look_up(view, e)

    def _cached(self, e: ev.Cached) -> None:
        self.hashed[e.blocks] = True

    def _evicted(self, e: ev.Evicted) -> None:
        self.hashed[e.blocks] = False
        self.totals.evictions += len(e.blocks)

    def _cache_reset(self, e: ev.CacheReset) -> None:
        self.hashed[:] = False

    def _copied_on_write(self, e: ev.CopiedOnWrite) -> None:
        view = self.requests[e.id]
        view.sequences[e.seq].blocks[e.logical] = e.target
        self._hold(view, e.target)
        self._let_go(view, e.source)
        self.copied.add(self.step, self.time, view.number, [(e.source, e.target)])
        self.totals.copies += 1

    def _gave_way(self, e: ev.Preempted | ev.SwappedOut, queue: dict[str, RequestView], status: RequestStatus) -> None:
        """From running to `queue`; what a victim has in common, whatever became of its K/V."""
        view = queue[e.id] = self.running.pop(e.id)
        view.status, view.key = status, e.key
        self.totals.preempt(view, e)
        if e.cause not in _BETWEEN_STEPS:
            self.last_step.preemptions += 1
        view.queued_at = self.began
        view.scheduled_tokens = 0
        view.reason = None

    def _swapped_out(self, e: ev.SwappedOut) -> None:
        self._gave_way(e, self.swapped, RequestStatus.SWAPPED)
        view = self.swapped[e.id]
        for seq, table in zip(view.sequences, e.tables, strict=True):
            for block in seq.blocks:
                self._let_go(view, block)
            for block in table:
                self.host_ref_count[block] += 1
                self.host_owner[block] = view.number  # blocks are shared inside a request only
            seq.blocks, seq.host_blocks = [], list(table)
        self.moved_out.add(self.step, self.time, view.number, e.pairs)

    def _swap_out_failed(self, e: ev.SwapOutFailed) -> None:
        view = self.swapped.pop(e.id)
        self.waiting[e.id] = view
        view.status = RequestStatus.WAITING
        view.key, view.reason = e.key, None
        self.totals.lose(view, e.tokens_lost)
        for seq in view.sequences:
            self._free_host(seq)
            seq.num_computed = 0

    def _swapped_in(self, e: ev.SwappedIn) -> None:
        view = self.swapped.pop(e.id)
        self.running[e.id] = view
        view.status = RequestStatus.RUNNING
        view.key, view.reason = e.key, None
        view.preempted_wait += self.began - view.queued_at
        for seq, table in zip(view.sequences, e.tables, strict=True):
            self._free_host(seq)
            for block in table:
                self._hold(view, block)
            seq.blocks = list(table)
        self.moved_in.add(self.step, self.time, view.number, e.pairs)
        self.totals.swapped_in_blocks += len(e.pairs)

    def _free_host(self, seq: SequenceView) -> None:
        for block in seq.host_blocks:
            self.host_ref_count[block] -= 1
            if self.host_ref_count[block] == 0:
                self.host_owner[block] = FREE
        seq.host_blocks = []

    def _forked(self, e: ev.Forked) -> None:
        view = self.requests[e.id]
        parent, child = view.sequences[e.parent], view.sequences[e.child]
        if e.prompt_tokens is None:
            child.num_tokens, child.num_computed = parent.num_tokens, parent.num_computed
            child.output_tokens, child.text_parts = list(parent.output_tokens), list(parent.text_parts)
        else:
            child.num_computed = e.prompt_tokens
        child.most_computed = max(child.most_computed, child.num_computed)
        child.blocks = list(e.blocks)
        for block in e.blocks:
            self._hold(view, block)

    def _merged(self, e: ev.Merged) -> None:
        view = self.requests[e.id]
        view.sequences[e.seq].blocks[e.logical] = e.into
        self._hold(view, e.into)
        self._let_go(view, e.block)

    def _pool_resized(self, e: ev.PoolResized) -> None:
        if e.before != self.num_blocks or not 0 < e.after <= MOST_BLOCKS:
            raise ValueError(f"{e.before} to {e.after} blocks, of {self.num_blocks}")
        self._resize(e.before, e.after)


BLOCK_HANDLERS: dict[type, Callable[[BlockFold, Any], None]] = {
    ev.BlocksTaken: BlockFold._blocks_taken,
    ev.BlocksFreed: BlockFold._blocks_freed,
    ev.PrefixLookup: BlockFold._prefix_lookup,
    ev.Cached: BlockFold._cached,
    ev.Evicted: BlockFold._evicted,
    ev.CacheReset: BlockFold._cache_reset,
    ev.CopiedOnWrite: BlockFold._copied_on_write,
    ev.SwappedOut: BlockFold._swapped_out,
    ev.SwapOutFailed: BlockFold._swap_out_failed,
    ev.SwappedIn: BlockFold._swapped_in,
    ev.Forked: BlockFold._forked,
    ev.Merged: BlockFold._merged,
    ev.PoolResized: BlockFold._pool_resized,
}
