"""RateMeter: how fast the executor moves blocks and computes prompts, from the latest steps that did so."""

from __future__ import annotations

from collections import deque
from statistics import median

from vtop.engine.executor import ExecutorRates

REMEMBERED = 31
"""The rates are medians of this many latest measurements, so that one slow step moves nothing."""


class RateMeter:
    """Collects measurements; `rates` tells what they say. `bytes_per_block` is K and V of one block, all layers."""

    def __init__(self, bytes_per_block: int) -> None:
        self.bytes_per_block = bytes_per_block
        self._swaps: deque[float] = deque(maxlen=REMEMBERED)  # bytes per second
        self._prefills: deque[float] = deque(maxlen=REMEMBERED)  # tokens per second

    def swapped(self, blocks: int, seconds: float) -> None:
        """So many blocks were moved between the pools, either way, in so many seconds."""
        if blocks and seconds > 0:
            self._swaps.append(blocks * self.bytes_per_block / seconds)

    def computed(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step's forward pass took so long. It counts when most of its tokens were of prompts."""
        if prefill_tokens > decode_tokens and seconds > 0:
            self._prefills.append((prefill_tokens + decode_tokens) / seconds)

    @property
    def rates(self) -> ExecutorRates:
        return ExecutorRates(
            swap_bytes_per_second=median(self._swaps) if self._swaps else 0.0,
            prefill_tokens_per_second=median(self._prefills) if self._prefills else 0.0,
            bytes_per_block=self.bytes_per_block,
        )
