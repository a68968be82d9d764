"""The real engine over the stub executor, for tests of what is above it: texts in, texts out, no torch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from vtop.engine.clock import Clock, ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.executor import EngineFacts
from vtop.engine.outputs import RequestOutput
from vtop_support.stub import VOCAB, StubExecutor

WORDS = "the cat sat on a mat and saw the moon rise over quiet hills while rain fell softly".split()  # noqa: SIM905
FIRST_ID = 3  # below it are special tokens


class WordTokenizer:
    """A word is a token. Any token is decoded as one of WORDS, with a space before it."""

    def __call__(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[self._id(word) for word in text.split()])

    def _id(self, word: str) -> int:
        return FIRST_ID + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (VOCAB - FIRST_ID)

    def decode(self, ids: Sequence[int], **_options: Any) -> str:
        return "".join(f" {WORDS[token % len(WORDS)]}" for token in ids)


class StubEngine(LLMEngine):
    """Before each step `before_step` is called with its number, from 0, and a ManualClock moves by `step_seconds`.

    Unlike the program it has no prefix cache unless told to, so that the same words ten times are ten prompts.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        clock: Clock | None = None,
        step_seconds: float = 0.02,
        before_step: Callable[[int], None] | None = None,
        **options: Any,
    ) -> None:
        defaults = {
            "block_size": 16,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 128,
            "enable_prefix_caching": False,
        }
        config = EngineConfig(num_gpu_blocks_override=num_blocks, **(defaults | options))
        super().__init__(
            StubExecutor(num_blocks, config.block_size, num_host_blocks=config.num_host_blocks_override or 0),
            config,
            tokenizer=WordTokenizer(),
            clock=clock or ManualClock(),
            facts=EngineFacts(backend="torch", kv_note=f"{num_blocks} blocks of {config.block_size} tokens"),
        )
        self.step_seconds = step_seconds
        self.before_step = before_step

    def step(self) -> list[RequestOutput]:
        if self.before_step is not None:
            self.before_step(self._steps)
        if isinstance(self.clock, ManualClock):
            self.clock.advance(self.step_seconds)
        return super().step()
