"""BlockLedger: the part of Ledger that is about blocks: how many are held, and what was computed more than once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vtop.engine import events as ev
from vtop.engine.state.records import RequestRecord, RunTotals


@dataclass(slots=True)
class LedgerTotals(RunTotals):
    """What only a Ledger counts besides. Tokens, blocks, requests; seconds for the two times."""

    prefill_tokens: int = 0  # of the computed ones, those of prompts
    looked_up_blocks: int = 0  # blocks of first lookups, the last partial one not counted
    hit_blocks: int = 0
    peak_entries: int = 0  # table entries: blocks as if nothing were shared
    peak_swapped: int = 0
    peak_waiting: int = 0
    busy: float = 0.0
    swapping: float = 0.0
    service_gap: float = 0.0  # the most that two groups' service ever differed


class BlockLedger:
    """Takes the events about blocks; Ledger is made on top of this."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.totals = LedgerTotals()
        self._alive: dict[str, RequestRecord] = {}
        self._tables: dict[tuple[str, int], int] = {}  # (id, sequence) -> table entries
        self._refs: dict[int, int] = {}
        self._entries = 0
        # (id, sequence) -> [tokens computed, the most that ever were]: of groups always, of others once preempted
        self._again: dict[tuple[str, int], list[int]] = {}

    @property
    def used(self) -> int:
        """Blocks of the device pool that somebody holds."""
        return len(self._refs)

    @property
    def entries(self) -> int:
        """Block table entries of everybody on the device."""
        return self._entries

    def _blocks_taken(self, e: ev.BlocksTaken) -> None:
        refs = self._refs
        for block in e.blocks:
            refs[block] = refs.get(block, 0) + 1
        key = e.id, e.seq
        self._tables[key] = self._tables.get(key, 0) + len(e.blocks)
        self._entries += len(e.blocks)

    def _forked(self, e: ev.Forked) -> None:
        self._blocks_taken(ev.BlocksTaken(e.id, e.blocks, e.child))
        parent, child = self._again.get((e.id, e.parent)), self._again.get((e.id, e.child))
        if parent is not None and child is not None:
            shared = parent[0] if e.prompt_tokens is None else e.prompt_tokens
            child[:] = shared, max(shared, child[1])

    def _let_go(self, block: int) -> None:
        left = self._refs[block] - 1
        if left:
            self._refs[block] = left
        else:
            del self._refs[block]

    def _blocks_freed(self, e: ev.BlocksFreed) -> None:
        for block in e.blocks:
            self._let_go(block)
        self._tables[e.id, e.seq] -= len(e.blocks)
        if (known := self._again.get((e.id, e.seq))) is not None:
            known[0] = 0
        self._entries -= len(e.blocks)

    def _merged(self, e: ev.Merged) -> None:
        self._refs[e.into] = self._refs.get(e.into, 0) + 1
        self._let_go(e.block)

    def _copied(self, e: ev.CopiedOnWrite) -> None:
        self._refs[e.target] = self._refs.get(e.target, 0) + 1
        self._let_go(e.source)
        self.totals.copies += 1

    def _evicted(self, e: ev.Evicted) -> None:
        self.totals.evictions += len(e.blocks)

    def _move_out(self, e: ev.SwappedOut) -> None:
        """Let go of the device blocks that the entries of the tables in the host pool were, as often as they occur."""
        device = {host: block for block, host in e.pairs}
        for table in e.tables:
            for host in table:
                self._let_go(device[host])
        for index in range(len(e.tables)):
            self._entries -= self._tables.pop((e.id, index), 0)

    def _move_in(self, e: ev.SwappedIn) -> None:
        for index, table in enumerate(e.tables):
            if table:
                self._blocks_taken(ev.BlocksTaken(e.id, table, index))

    def _forget_computed(self, record: RequestRecord) -> None:
        """What its sequences had computed is lost."""
        for index in range(record.samples):
            if (known := self._again.get((record.id, index))) is not None:
                known[0] = 0

    def _forget_tables(self, record: RequestRecord) -> None:
        for index in range(record.samples):
            self._tables.pop((record.id, index), None)
            self._again.pop((record.id, index), None)

    def _count_again(self, e: ev.Scheduled) -> None:
        """Of what is computed, what had been before: from each sequence's place up to the furthest it ever was."""
        for place, (request_id, tokens) in enumerate(zip(e.ids, e.tokens, strict=True)):
            key = request_id, e.seqs[place] if e.seqs else 0
            known = self._again.get(key)
            if known is None:
                continue
            start, most = known
            self.totals.tokens_recomputed += max(0, min(tokens, most - start))
            known[:] = start + tokens, max(most, start + tokens)
            if start + tokens >= most and self._alive[request_id].samples == 1:
                del self._again[key]  # from here on all is new


BLOCK_HANDLERS: dict[type, Callable[[BlockLedger, Any], None]] = {
    ev.BlocksTaken: BlockLedger._blocks_taken,
    ev.BlocksFreed: BlockLedger._blocks_freed,
    ev.Forked: BlockLedger._forked,
    ev.Merged: BlockLedger._merged,
    ev.CopiedOnWrite: BlockLedger._copied,
    ev.Evicted: BlockLedger._evicted,
}
