"""Blocks as numbers: each cell of the map gets one code, so that what changed is one array comparison.

A code is kind | value | flags. `looks` says how a code looks; nothing here knows about colours.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vtop.app.live.view import Colouring
from vtop.app.widgets.map.pools import DEVICE, DevicePool, Flags, Index, Ints, is_fresh
from vtop.engine.state.fold import FREE, EngineState

# kinds; CACHED: nobody holds it, and its content can be hit
OUTSIDE, EMPTY, FREED, OWNER, USED, OPEN, SHARED, AGE, REFS, CACHED = (n << 20 for n in range(10))
KIND: Final = 0xF << 20
# flags; KEPT: held, and its content can be hit; SEVERAL: several tables hold it
LIT, DIM, MARKED, KEPT, SEVERAL = (1 << n for n in range(24, 29))
# what just moved: a fresh copy on write, swapped out to the host, swapped in from there
COPIED, OUT, IN = (n << 29 for n in range(1, 4))
MOVE: Final = 3 << 29
# value: how full the cell is (0: one block, and full), and a number
LEVEL_SHIFT: Final = 10
NUMBER: Final = (1 << LEVEL_SHIFT) - 1
OWNER_CYCLE: Final = 62 * 6  # letters and colours of owners come round together
MIXED: Final = OWNER_CYCLE  # an aggregate cell with several owners
LEVELS: Final = 8
AGES: Final = 10


class Watch:
    """Compares a pool with the last look at it: what changed, and since which step a block is held or free.

    EngineState has no ages; they are counted from the first look, or from a change seen between two looks.
    `owner` is that of the state, put right where the one who took a shared block last holds it no longer.
    """

    def __init__(self, pool: DevicePool = DEVICE) -> None:
        self.pool = pool
        self._state: EngineState | None = None
        self._step = -1
        self._serial = -1
        self._ref: Ints = np.zeros(0, np.int32)
        self._owner: Ints = np.zeros(0, np.int32)  # as the state said it
        self._hashed: Flags = np.zeros(0, np.bool_)
        self.owner: Ints = np.zeros(0, np.int32)
        self.since: Ints = np.zeros(0, np.int32)
        self.freed: Ints = np.zeros(0, np.int32)  # step in which it went free, -1 when not seen

    def look(self, state: EngineState) -> Index | None:
        """Blocks that changed since the last look; None when everything is new (another state, a step back)."""
        now_owner, now_ref, now_hashed = self.pool.owner(state), self.pool.ref_count(state), self.pool.hashed(state)
        known = state is self._state and state.serial >= self._serial and len(now_owner) == len(self._owner)
        before = self._step
        self._state, self._serial, self._step = state, state.serial, state.step
        if not known:
            self._ref, self._owner, self._hashed = now_ref.copy(), now_owner.copy(), now_hashed.copy()
            self.owner = now_owner.copy()
            self._settle(state, np.flatnonzero(now_ref > 1))
            self.since = np.full(len(self._owner), state.step, np.int32)
            self.freed = np.full(len(self._owner), -1, np.int32)
            return None
        differs = (now_owner != self._owner) | (now_ref != self._ref) | (now_hashed != self._hashed)
        changed: Index = np.flatnonzero(differs)
        shared = (now_ref > 1) | (self._ref > 1)  # whoever holds a block alone is its owner
        unsure: Index = np.flatnonzero((differs & shared) | (self.owner != self._owner))
        if len(changed):
            owner, ref = now_owner[changed], now_ref[changed]
            # a further reference does not make a block young
            young = (owner != self._owner[changed]) & ~((self._ref[changed] > 0) & (ref > 1))
            self.since[changed[young]] = state.step
            self.freed[changed[young & (owner == FREE)]] = state.step
            self._owner[changed], self._ref[changed], self._hashed[changed] = owner, ref, now_hashed[changed]
            self.owner[changed] = owner
        if len(unsure):
            self._settle(state, unsure)
            differs[unsure] = True
        return np.flatnonzero(differs) if before <= state.step else None

    def _settle(self, state: EngineState, blocks: Index) -> None:
        """Owners of these blocks: who took it last, if that request holds it still, else another one that does."""
        pool, owners = self.pool, self.pool.owner(state)
        owner = self.owner[blocks] = owners[blocks]
        claimed = set(np.unique(owner).tolist())
        sure = owners == FREE
        for request in pool.requests(state):
            if request.number in claimed:
                table = pool.blocks_of(request)
                sure[table[owners[table] == request.number]] = True
        left = set(blocks[~sure[blocks]].tolist())
        for request in pool.requests(state) if left else ():
            for seq in request.sequences:
                for block in left.intersection(pool.table(seq)):
                    self.owner[block] = request.number

    def ages(self, step: int) -> Ints:
        """Bucket of every block's age: 0 this step, then doubling, up to AGES - 1."""
        return bucket(step - self.since)


def bucket(age: Ints) -> Ints:
    """0 for 0, 1 for 1, 2 for 2 … 3, 3 for 4 … 7 steps and so on."""
    _, exponent = np.frexp(np.maximum(age, 0).astype(np.float32))
    return np.minimum(exponent, AGES - 1).astype(np.int32)


def open_blocks(state: EngineState, pool: DevicePool) -> tuple[list[int], list[int]]:
    """Blocks that are held and not full, and the level of each: 1 for nearly nothing, 7 for nearly full."""
    blocks: list[int] = []
    levels: list[int] = []
    size = state.block_size
    for request in pool.requests(state):
        for seq in request.sequences:
            computed = seq.num_computed
            first = computed // size
            for logical, block in enumerate(pool.table(seq)[first:], first):
                filled = max(0, computed - logical * size)
                blocks.append(block)
                levels.append(max(1, filled * LEVELS // size))
    return blocks, levels


def single_codes(state: EngineState, watch: Watch, colouring: Colouring) -> Ints:
    """One code per block. The level tells how full it is; 0 means full."""
    pool = watch.pool
    ref, hashed = pool.ref_count(state), pool.hashed(state)
    owner = watch.owner
    free = pool.owner(state) == FREE
    codes: Ints
    if colouring == "owner":
        codes = OWNER + owner % OWNER_CYCLE
    elif colouring == "state":
        codes = np.where(ref > 1, SHARED, USED).astype(np.int32)
    elif colouring == "age":
        codes = AGE + watch.ages(state.step)
    else:
        codes = REFS + np.minimum(ref, NUMBER)
    codes[hashed] |= KEPT
    if colouring in ("owner", "age"):  # the others say it anyway
        codes[ref > 1] |= SEVERAL
    codes[free] = EMPTY
    if colouring == "state":
        codes[free & (watch.freed == state.step)] = FREED
    codes[free & hashed] = CACHED
    if colouring in ("owner", "state"):
        found, levels = open_blocks(state, pool)
        blocks, level = np.array(found, np.intp), np.array(levels, np.int32) << LEVEL_SHIFT
        # A shared block is as full as its fullest holder made it, and only full ones can be hit.
        alone = (ref[blocks] == 1) & ~hashed[blocks]
        if colouring == "state":
            codes[blocks[alone]] = OPEN
        codes[blocks[alone]] |= level[alone]
    return codes.astype(np.int32, copy=False)


class Aggregate:
    """Codes of cells of `per_cell` blocks; after the first time only cells with changed blocks are counted again."""

    def __init__(self, blocks: int, per_cell: int) -> None:
        self.blocks, self.per_cell = blocks, per_cell
        cells = -(-blocks // per_cell)
        self.used: Ints = np.zeros(cells, np.int32)
        self.cached: Ints = np.zeros(cells, np.int32)
        self.lowest: Ints = np.zeros(cells, np.int32)  # owner number; the highest when nobody holds any
        self.highest: Ints = np.zeros(cells, np.int32)
        self.refs: Ints = np.zeros(cells, np.int32)
        self.newest: Ints = np.zeros(cells, np.int32)

    def count(self, state: EngineState, watch: Watch, changed: Index | None) -> None:
        if changed is None:
            cells: Index = np.arange(len(self.used))
        elif len(changed):
            cells = np.unique(changed // self.per_cell)
        else:
            return
        index = cells[:, None] * self.per_cell + np.arange(self.per_cell)
        inside = index < self.blocks
        index = np.minimum(index, self.blocks - 1)  # the last cell repeats the last block: harmless for min and max
        owner = watch.owner[index]
        held = owner != FREE
        self.used[cells] = (held & inside).sum(axis=1)
        self.cached[cells] = (~held & inside & watch.pool.hashed(state)[index]).sum(axis=1)
        self.highest[cells] = owner.max(axis=1)
        self.lowest[cells] = np.where(held, owner, np.iinfo(np.int32).max).min(axis=1)
        self.refs[cells] = watch.pool.ref_count(state)[index].max(axis=1)
        self.newest[cells] = np.where(held, watch.since[index], -1).max(axis=1)

    def codes(self, state: EngineState, colouring: Colouring) -> Ints:
        """Level by the share of blocks held: any at all is 1, all of them is 8. CACHED: none held, some cached."""
        used = self.used
        sizes = np.full(len(used), self.per_cell)
        sizes[-1] = self.blocks - self.per_cell * (len(used) - 1)
        level = np.maximum(1, used * LEVELS // sizes) << LEVEL_SHIFT
        if colouring == "owner":
            one = self.lowest == self.highest
            codes = OWNER + level + np.where(one, self.highest % OWNER_CYCLE, MIXED)
        elif colouring == "state":
            codes = np.where(self.refs > 1, SHARED, USED) + level
        elif colouring == "age":
            codes = AGE + level + bucket(state.step - self.newest)
        else:
            codes = REFS + level + np.minimum(self.refs, NUMBER)
        codes[used == 0] = EMPTY
        codes[(used == 0) & (self.cached > 0)] = CACHED
        out: Ints = codes.astype(np.int32, copy=False)
        return out


def mark_moves(codes: Ints, state: EngineState, pool: DevicePool, per_cell: int) -> None:
    """Put the flag of the latest move on cells whose blocks moved a moment ago. A copy that is free again has none."""
    found: list[tuple[int, int, list[int]]] = []
    copied = pool.copied(state)
    if copied is not None and is_fresh(copied, state):
        ref = pool.ref_count(state)
        targets = [move.target for move in copied.made]
        found.append((copied.step, COPIED, [block for block in targets if block < len(ref) and ref[block]]))
    if is_fresh(state.moved_out, state):
        found.append((state.moved_out.step, OUT, [pool.out_block(move) for move in state.moved_out.made]))
    if is_fresh(state.moved_in, state):
        found.append((state.moved_in.step, IN, [pool.in_block(move) for move in state.moved_in.made]))
    for _, flag, blocks in sorted(found):
        cells = np.array(blocks, np.intp) // per_cell
        cells = cells[cells < len(codes)]  # the pool may have shrunk since
        codes[cells] = codes[cells] & ~MOVE | flag
