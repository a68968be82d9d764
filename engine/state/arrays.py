"""Who holds which block: the part of EngineState that is arrays over the two pools."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vtop.engine.state.views import RequestView

FREE = -1  # in `owner`: the block belongs to nobody


class BlockHolders:
    """Counts and owners of blocks; what they mean stands in EngineState, which is made on top of this."""

    def __init__(self, num_blocks: int, num_host_blocks: int) -> None:
        self.ref_count: npt.NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        self.owner: npt.NDArray[np.int32] = np.full(num_blocks, FREE, np.int32)
        self.hashed: npt.NDArray[np.bool_] = np.zeros(num_blocks, np.bool_)  # content can be hit
        self._sharers: dict[int, list[int]] = {}  # of blocks with several holders: their numbers, latest last
        self.used = 0
        self.host_ref_count: npt.NDArray[np.int32] = np.zeros(num_host_blocks, np.int32)
        self.host_owner: npt.NDArray[np.int32] = np.full(num_host_blocks, FREE, np.int32)

    @property
    def num_blocks(self) -> int:
        return len(self.ref_count)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose content can be hit."""
        return int(np.count_nonzero(self.hashed & (self.ref_count == 0)))

    @property
    def free(self) -> int:
        """Blocks that nobody holds and that have no content to hit."""
        return self.available - self.cached

    @property
    def available(self) -> int:
        """Blocks that can be handed out: free or cached."""
        return self.num_blocks - self.used

    @property
    def host_used(self) -> int:
        return int(np.count_nonzero(self.host_ref_count))

    def _hold(self, view: RequestView, block: int) -> None:
        if block < 0:
            raise IndexError(f"block {block}")
        if self.ref_count[block] == 0:
            self.used += 1
        else:
            self._sharers.setdefault(block, [int(self.owner[block])]).append(view.number)
        self.ref_count[block] += 1
        self.owner[block] = view.number

    def _let_go(self, view: RequestView, block: int) -> None:
        if block < 0 or self.ref_count[block] == 0:
            raise IndexError(f"block {block} is not held")
        self.ref_count[block] -= 1
        sharers = self._sharers.get(block)
        if sharers is not None:
            sharers.remove(view.number)
            self.owner[block] = sharers[-1]
            if len(sharers) == 1:
                del self._sharers[block]
        else:
            self.used -= 1
            self.owner[block] = FREE

    def _resize(self, before: int, after: int) -> None:
        keep = min(before, after)
        ref_count, owner, hashed = self.ref_count, self.owner, self.hashed
        self.ref_count = np.zeros(after, np.int32)
        self.owner = np.full(after, FREE, np.int32)
        self.hashed = np.zeros(after, np.bool_)
        self.hashed[:keep] = hashed[:keep]
        self.ref_count[:keep] = ref_count[:keep]
        self.owner[:keep] = owner[:keep]
