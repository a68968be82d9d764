"""The two pools as the block maps see them: arrays with one entry per block, who holds blocks, and what just moved."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from vtop.engine.state.fold import EngineState, Move, Moves, RequestView, SequenceView

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

MARKED_STEPS: Final = 4  # a move is marked for so many steps: one would be gone before it is seen
MARKED_SECONDS: Final = 0.5  # and for so long, when steps are quick


class DevicePool:
    """The pool that the model reads. Only running requests hold blocks of it."""

    title = "KV BLOCKS"
    word = "block"

    def ref_count(self, state: EngineState) -> Ints:
        return state.ref_count

    def owner(self, state: EngineState) -> Ints:
        return state.owner

    def hashed(self, state: EngineState) -> Flags:
        """Blocks whose content can be hit."""
        return state.hashed

    def used(self, state: EngineState) -> int:
        return state.used

    def cached(self, state: EngineState) -> int:
        return state.cached

    def requests(self, state: EngineState) -> Collection[RequestView]:
        """Those that may hold blocks."""
        return state.running.values()

    def table(self, sequence: SequenceView) -> list[int]:
        return sequence.blocks

    def blocks_of(self, request: RequestView | None) -> Index:
        """Every block in the tables of a request."""
        if request is None:
            return np.zeros(0, np.intp)
        return np.concatenate([np.array(self.table(seq), np.intp) for seq in request.sequences])

    def holders(self, state: EngineState, block: int) -> Iterator[tuple[RequestView, int, int]]:
        """(request, sequence, logical index) of each table entry that holds `block`."""
        for request in self.requests(state):
            for index, seq in enumerate(request.sequences):
                table = self.table(seq)
                if block in table:
                    yield request, index, table.index(block)

    def copied(self, state: EngineState) -> Moves | None:
        """Copies on write inside this pool."""
        return state.copied

    def out_block(self, move: Move) -> int:
        """The end of a swap out that lies in this pool."""
        return move.source

    def in_block(self, move: Move) -> int:
        """The end of a swap in that lies in this pool."""
        return move.target


class HostPool(DevicePool):
    """Where the K/V of swapped requests waits. Nothing in it can be hit, and nobody writes to it."""

    title = "HOST POOL"
    word = "host block"

    def ref_count(self, state: EngineState) -> Ints:
        return state.host_ref_count

    def owner(self, state: EngineState) -> Ints:
        return state.host_owner

    def hashed(self, state: EngineState) -> Flags:
        return np.zeros(len(state.host_owner), np.bool_)

    def used(self, state: EngineState) -> int:
        return state.host_used

    def cached(self, state: EngineState) -> int:
        return 0

    def requests(self, state: EngineState) -> Collection[RequestView]:
        return state.swapped.values()

    def table(self, sequence: SequenceView) -> list[int]:
        return sequence.host_blocks

    def copied(self, state: EngineState) -> Moves | None:
        return None

    def out_block(self, move: Move) -> int:
        return move.target

    def in_block(self, move: Move) -> int:
        return move.source


DEVICE: Final = DevicePool()
HOST: Final = HostPool()


def is_fresh(moves: Moves, state: EngineState) -> bool:
    """They are marked still."""
    if moves.step < 0:
        return False
    return state.step - moves.step < MARKED_STEPS or state.time - moves.time < MARKED_SECONDS
