"""A model without tensors. Its next token is a function of the whole token history, read back through block tables.

Slots remember which token of which history was written into them, so a lost, shared or overwritten block shows up as
another token or as an error, exactly as it would with real K/V.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from vtop.engine.executor import SampledToken, StepOutput, StepPlan

VOCAB = 1000
END = 2


def next_token(history: list[int], vocab: int = VOCAB) -> int:
    """The stub's greedy next token: 3 … vocab - 1, never the end token."""
    digest = hashlib.blake2b(b",".join(b"%d" % t for t in history), digest_size=8).digest()
    return 3 + int.from_bytes(digest, "big") % (vocab - 3)


def expected_output(prompt: list[int], count: int) -> list[int]:
    """What an undisturbed run gives."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class StubExecutor:
    """Implements Executor. `choose` may replace the next-token function; `seconds` is slept in each step."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        eos: frozenset[int] = frozenset({END}),
        choose: Callable[[list[int]], int] = next_token,
        seconds: float = 0.0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.eos_token_ids = eos
        self.choose = choose
        self.seconds = seconds
        self.slots: dict[tuple[int, int], int] = {}
        self.plans: list[list[tuple[str, int, int]]] = []  # per step: (id, start, tokens)
        self.fail_at: set[int] = set()  # numbers of calls that raise
        self.calls = 0
        self.closed = False

    def execute(self, plan: StepPlan) -> StepOutput:
        self.calls += 1
        if self.seconds:
            time.sleep(self.seconds)
        if self.calls in self.fail_at:
            raise RuntimeError("injected fault")
        self.plans.append([(c.sequence.request.request_id, c.start, c.num_tokens) for c in plan.chunks])
        for source, target in plan.copies:
            for offset in range(self.block_size):
                if (source, offset) in self.slots:
                    self.slots[target, offset] = self.slots[source, offset]
        for chunk in plan.chunks:
            assert chunk.num_tokens >= 1, "a chunk without work"
            assert chunk.start + chunk.num_tokens <= chunk.sequence.num_tokens
            for position in range(chunk.start, chunk.start + chunk.num_tokens):
                self.slots[self._slot(chunk.sequence.blocks, position)] = chunk.sequence.token_ids[position]
        return StepOutput(
            [self._sample(c.sequence.blocks, c.start + c.num_tokens) if c.sample else None for c in plan.chunks]
        )

    def _slot(self, blocks: list[int], position: int) -> tuple[int, int]:
        block = blocks[position // self.block_size]
        assert 0 <= block < self.num_blocks, f"block {block} is outside the pool"
        return block, position % self.block_size

    def _sample(self, blocks: list[int], length: int) -> SampledToken:
        return SampledToken(self.choose([self.slots[self._slot(blocks, p)] for p in range(length)]))

    def resize(self, num_blocks: int) -> None:
        self.slots = {slot: token for slot, token in self.slots.items() if slot[0] < num_blocks}
        self.num_blocks = num_blocks

    def close(self) -> None:
        self.closed = True
