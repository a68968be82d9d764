"""StateView: what EngineState knows, and how it is read."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

from vtop.engine import events as ev
from vtop.engine.config import default_budget
from vtop.engine.order import Key, order_key
from vtop.engine.state.arrays import BlockHolders
from vtop.engine.state.views import Moves, RequestView, StepView, Totals

KEEP_FINISHED = 1000
KEEP_REFUSED = 200


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
