"""What EngineState holds, and how it is read: arrays over the two pools, queues, options. fold.py fills them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vtop.engine import events as ev
from vtop.engine.config import default_budget
from vtop.engine.request import Key, order_key
from vtop.engine.state.views import Moves, RequestView, StepView, Totals

FREE = -1  # in `owner`: the block belongs to nobody
KEEP_FINISHED = 1000
KEEP_REFUSED = 200


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


class StateView(BlockHolders):
    """The fields and what is asked of them. What they mean stands in EngineState, which is made on top of this."""

    def __init__(self, meta: ev.Meta, keep_finished: int = KEEP_FINISHED) -> None:
        super().__init__(meta.num_blocks, meta.num_host_blocks)
        self.meta = meta
        self.block_size = meta.block_size
        self.requests: dict[str, RequestView] = {}  # alive ones
        self.waiting: dict[str, RequestView] = {}
        self.running: dict[str, RequestView] = {}
        self.swapped: dict[str, RequestView] = {}
        self.moved_out, self.moved_in, self.copied = Moves(), Moves(), Moves()
        self.finished: deque[RequestView] = deque(maxlen=keep_finished)
        self.refused: deque[ev.Refused] = deque(maxlen=KEEP_REFUSED)
        self.blocked_head: str | None = None
        self.options: dict[str, Any] = dict(meta.config)  # as they are now, after live switches
        self.fair_at = meta.fair_at
        self.counters: dict[str, float] = {}  # virtual token counters by group; what `fair` orders by
        self.lifts: dict[str, ev.Lifted] = {}  # the latest of each group
        self.serial = -1
        self.step = 0
        self.time = meta.engine_time
        self.began = meta.engine_time  # when the decisions of the latest Frame were taken
        self.paused = False
        self.pause_reason = ""
        self.speed: float | None = None
        self.last_step = StepView()
        self.idle_frames = 0  # steps in a row that computed nothing although somebody waits
        self.totals = Totals()
        self._ran: list[RequestView] = []  # those with `scheduled_tokens`

    @property
    def running_sequences(self) -> int:
        """Sequences of running requests that are not ended."""
        if self.totals.sequences == self.totals.arrived:
            return len(self.running)
        return sum(view.num_sequences for view in self.running.values())

    @property
    def filled(self) -> int:
        """Slots of the used blocks of the device pool that hold K/V; the others are internal fragmentation."""
        size, empty, sharers = self.block_size, 0, self._sharers
        shared: dict[int, list[int]] = {}  # block -> slots that each of its holders leaves empty, where any does
        for view in self.running.values():
            for seq in view.sequences:
                blocks, computed = seq.blocks, seq.num_computed
                if not sharers:
                    empty += max(0, len(blocks) * size - computed)
                    continue
                for logical in range(computed // size, len(blocks)):
                    block, left = blocks[logical], min(size, (logical + 1) * size - computed)
                    if block in sharers:
                        shared.setdefault(block, []).append(left)
                    else:
                        empty += left
        empty += sum(min(left) for block, left in shared.items() if len(left) == len(sharers[block]))
        return self.used * size - empty

    def waiting_order(self) -> list[RequestView]:
        """Waiting requests, next one first."""
        return sorted(self.waiting.values(), key=self.order)

    def running_order(self) -> list[RequestView]:
        """Running requests in policy order."""
        return sorted(self.running.values(), key=self.order)

    def swapped_order(self) -> list[RequestView]:
        """Swapped requests, the next one to return first."""
        return sorted(self.swapped.values(), key=self.order)

    @property
    def token_budget(self) -> int:
        """Tokens a step may compute, by the options as they are now."""
        now, then = self.options, self.meta.config
        if all(now.get(name) == then.get(name) for name in ("max_num_batched_tokens", "batching")):
            return self.meta.token_budget
        given: int | None = now.get("max_num_batched_tokens")
        return given or default_budget(str(now.get("batching")), str(now.get("preset")), self.meta.max_model_len)

    @property
    def seats(self) -> int:
        """Sequences of the running requests."""
        return sum(len(view.sequences) for view in self.running.values())

    def order(self, request: RequestView) -> Key:
        """What requests are sorted by now."""
        return order_key(request.key, request.group, self.fair_at, self.counters)

    def copy(self) -> Self:
        """A state that stands still while this one goes on. Finished requests never change, so they are shared."""
        still = copy.copy(self)
        memo: dict[int, Any] = {id(self.meta): self.meta}
        memo.update((id(view), view) for view in self.finished)
        for name, value in vars(self).items():
            setattr(still, name, copy.deepcopy(value, memo))
        return still

    def find(self, request_id: str) -> RequestView | None:
        """A request by id: alive, or the latest finished one of that id that is still kept."""
        found = self.requests.get(request_id)
        if found is None:
            found = next((r for r in reversed(self.finished) if r.id == request_id), None)
        return found

    def holders(self, block: int) -> Iterator[tuple[RequestView, int, int]]:
        """(request, sequence index, logical index) of every table entry that holds `block`."""
        for request in self.requests.values():
            for index, seq in enumerate(request.sequences):
                for logical, held in enumerate(seq.blocks):
                    if held == block:
                        yield request, index, logical
