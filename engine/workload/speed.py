"""How long a decode step takes on this machine, so that a scenario's times can be stretched to it."""

from __future__ import annotations

import statistics
import time
from collections import deque

from vtop.engine import events as ev
from vtop.engine.executor import Chunk, Executor, StepPlan
from vtop.engine.request import SamplingParams, Sequence, new_request

SCENARIO_STEP = 0.0176  # seconds of a decode step on the card that the scenarios were made for
ROWS = 4
TOKENS = 24  # of each row; its prompt is half of them
TOKEN = 3


def decode_seconds(executor: Executor, block_size: int, max_model_len: int) -> float:
    """Seconds of a decode step of a few sequences, measured now. The pool must hold nothing: its first blocks are used.

    Raises whatever the executor raises.
    """
    per_row = min(-(-TOKENS // block_size), executor.num_blocks)
    tokens = min(TOKENS, per_row * block_size, max_model_len)
    prompt = max(1, tokens // 2)
    rows = [
        _row(number, list(range(number * per_row, (number + 1) * per_row)), prompt)
        for number in range(max(1, min(ROWS, executor.num_blocks // per_row)))
    ]
    seconds = []
    while rows[0].num_tokens <= tokens:
        started = time.perf_counter()
        chunks = [Chunk(seq, seq.num_computed, seq.num_tokens - seq.num_computed, sample=True) for seq in rows]
        output = executor.execute(StepPlan(chunks))
        seconds.append(time.perf_counter() - started)
        for seq, sampled in zip(rows, output.tokens, strict=True):
            seq.num_computed = seq.num_tokens
            seq.token_ids.append(TOKEN if sampled is None else sampled.token_id)
    decodes = seconds[1:] or seconds
    return statistics.median(decodes[len(decodes) // 2 :])  # the first ones warm up


def _row(number: int, blocks: list[int], prompt: int) -> Sequence:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    request = new_request(f"speed{number}", number, [TOKEN] * prompt, params, arrival=0.0, limit=2 * TOKENS, seed=0)
    seq = request.sequences[0]
    seq.blocks = blocks
    return seq


class StepMeter:
    """Remembers how long the latest steps took; those that only decode go before others."""

    def __init__(self, keep: int = 64) -> None:
        self._decodes: deque[float] = deque(maxlen=keep)
        self._others: deque[float] = deque(maxlen=keep)

    def take(self, frame: ev.Frame) -> None:
        """Look at the next Frame."""
        if not frame.ran or frame.began is None:
            return
        for event in frame.events:
            if type(event) is ev.Scheduled:
                if event.ids:
                    kept = self._decodes if max(event.tokens) == 1 else self._others
                    kept.append(frame.time - frame.began)
                return

    @property
    def seconds(self) -> float | None:
        """The median of what was seen; None when nothing was."""
        seen = self._decodes or self._others
        return statistics.median(seen) if seen else None
