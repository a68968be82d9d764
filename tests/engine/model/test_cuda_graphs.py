"""Decode graphs without a GPU: buckets, padding, the spare block, and an executor over graphs that run again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.graphs import DecodeGraphs, GraphOptions, bucket_for, buckets, capture, pad_decodes
from vtop.engine.model.model import load_model
from vtop.engine.request import SamplingParams, Sequence, new_request
from vtop.kernels.api import NO_BLOCK, AttentionBatch
from vtop.kernels.registry import get_backend
from vtop_support.models import VOCAB, tiny_random

BLOCK = 4


class FakePlan:
    """Gives the captured batch the contents of the newest one."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.storage = torch.zeros(1, dtype=torch.int32)
        self.captured: AttentionBatch | None = None
        self.newest: AttentionBatch | None = None

    def bind(self, batch: AttentionBatch) -> None:
        self.captured = batch

    def update(self, batch: AttentionBatch) -> None:
        assert batch.num_sequences == self.rows
        self.newest = batch
        if self.captured is not None:
            for name in ("context_lens", "tables", "positions", "slots"):
                setattr(self.captured, name, getattr(batch, name))
            self.captured.derived.clear()


class FakeBackend:
    """The torch backend with plans."""

    def __init__(self) -> None:
        self.plans: list[FakePlan] = []
        self.attention = get_backend("torch")

    def static_plan(self, rows: int, max_context: int, **_: Any) -> FakePlan:
        self.plans.append(FakePlan(rows))
        return self.plans[-1]


class Rerun:
    """A graph that calls the captured function again."""

    replays = 0

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        step()

    def replay(self) -> None:
        Rerun.replays += 1
        self._step()


def executor_of(graphs: bool, rows: int = 4, blocks: int = 40, model: Any = None) -> TorchExecutor:
    backend = FakeBackend()
    loaded = load_model(model or tiny_random("gemma2"), name="test", backend=backend.attention)
    options = GraphOptions(backend, rows, 100, Rerun) if graphs else None
    return TorchExecutor(loaded, blocks, BLOCK, graphs=options)


def sequences_of(count: int, blocks: int) -> list[Sequence]:
    rng = random.Random(1)
    ids = list(range(blocks))
    rng.shuffle(ids)
    found = []
    for i in range(count):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        params = SamplingParams(temperature=0.0, max_tokens=None)
        sequence = new_request(str(i), i, prompt, params, arrival=0.0, limit=99, seed=0).sequences[0]
        sequence.blocks = [ids.pop() for _ in range(6)]
        found.append(sequence)
    return found


def step(executor: TorchExecutor, sequences: list[Sequence]) -> None:
    chunks = [Chunk(s, s.num_computed, s.num_tokens - s.num_computed, True) for s in sequences]
    output = executor.execute(StepPlan(chunks))
    for sequence, token in zip(sequences, output.tokens, strict=True):
        sequence.num_computed = sequence.num_tokens
        assert token is not None
        sequence.token_ids.append(token.token_id)


def tokens_of(executor: TorchExecutor, counts: list[int]) -> list[list[int]]:
    sequences = sequences_of(max(counts), executor.num_blocks)
    for count in counts:
        step(executor, sequences[:count])
    return [sequence.token_ids for sequence in sequences]


def test_buckets_grow_and_end_at_the_largest_batch() -> None:
    assert buckets(1) == [1]
    assert buckets(20) == [1, 2, 4, 8, 16, 20]
    assert buckets(512)[-2:] == [496, 512]
    assert [bucket_for(n, buckets(20)) for n in (1, 3, 8, 9, 17, 20, 21)] == [1, 4, 8, 16, 20, 20, None]


def test_padded_rows_are_ordinary_rows_in_the_spare_block() -> None:
    batch = AttentionBatch.build([1, 1], [9, 2], [[3, 1, 2], [5]], BLOCK)
    padded = pad_decodes(batch, 4, spare_block=7)
    wanted = AttentionBatch.build([1] * 4, [9, 2, 1, 1], [[3, 1, 2], [5], [7], [7]], BLOCK)
    for name in ("query_lens", "context_lens", "tables", "query_starts", "positions", "slots"):
        assert getattr(padded, name).tolist() == getattr(wanted, name).tolist(), name
    assert padded.tables[3].tolist() == [7, NO_BLOCK, NO_BLOCK]
    assert pad_decodes(batch, 2, 7) is batch


@pytest.mark.parametrize("family", ["gemma2", "llama"])
def test_tokens_are_those_without_graphs(family: str) -> None:
    counts = [3, 3, 2, 1, 3, 4, 4, 6, 6, 3]  # prompts, padded and full buckets, and batches that fit in none
    model = tiny_random(family)
    plain = executor_of(False, model=model)
    wanted = tokens_of(plain, counts)
    plain.close()
    graphed = executor_of(True, model=model)
    assert graphed.cache.num_blocks == graphed.num_blocks + 1
    before = Rerun.replays
    assert tokens_of(graphed, counts) == wanted
    assert Rerun.replays - before == 6  # the steps that are decodes only, of at most four sequences
    graphed.close()


def test_padded_rows_write_to_no_block_of_a_sequence() -> None:
    executor = executor_of(True, rows=4)
    sequences = sequences_of(3, executor.num_blocks)
    step(executor, sequences)
    used = {block for sequence in sequences for block in sequence.blocks}
    others = [block for block in range(executor.num_blocks) if block not in used]
    executor.cache.tensor[others] = 7.0
    executor.cache.tensor[executor.num_blocks] = 7.0
    step(executor, sequences)
    assert bool((executor.cache.tensor[others] == 7.0).all())
    assert not bool((executor.cache.tensor[executor.num_blocks] == 7.0).all()), "the spare block takes the padding"
    executor.close()


def test_another_pool_means_other_graphs() -> None:
    model = tiny_random("llama")
    graphed = executor_of(True, model=model)
    sequences = sequences_of(2, graphed.num_blocks)
    step(graphed, sequences)
    step(graphed, sequences)
    graphed.resize(60)
    assert graphed.num_blocks == 60 and graphed.cache.num_blocks == 61
    step(graphed, sequences)
    graphed.close()
    alone = executor_of(False, model=model)
    again = sequences_of(2, alone.num_blocks)
    for _ in range(3):
        step(alone, again)
    assert [s.token_ids for s in sequences] == [s.token_ids for s in again]
    alone.close()


def test_what_cannot_be_captured_runs_without_graphs_and_says_so() -> None:
    def refuse(step: Callable[[], None]) -> Rerun:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    backend = FakeBackend()
    loaded = load_model(tiny_random("llama"), name="test", backend=backend.attention)
    executor = TorchExecutor(loaded, 40, BLOCK, graphs=GraphOptions(backend, 4, 100, refuse))
    assert executor.graphs_note == (
        "no CUDA graphs: decodes cannot be captured (RuntimeError: operation not permitted when stream is capturing)"
    )
    step(executor, sequences_of(2, 40))
    executor.close()
    assert capture(loaded, None, BLOCK, 0) == (None, "no CUDA graphs")


def test_graphs_refuse_what_does_not_fit() -> None:
    backend = FakeBackend()
    executor = executor_of(False)
    with torch.inference_mode():
        graphs = DecodeGraphs(executor.model, GraphOptions(backend, 2, 10, Rerun), BLOCK, 39)
    assert [plan.rows for plan in backend.plans] == [2, 1], "the largest is captured first"
    assert graphs.fits(AttentionBatch.build([1, 1], [10, 1], [[0, 1, 2], [3]], BLOCK))
    assert not graphs.fits(AttentionBatch.build([1], [11], [[0, 1, 2]], BLOCK))
    assert not graphs.fits(AttentionBatch.build([2], [2], [[0]], BLOCK))
    assert not graphs.fits(AttentionBatch.build([1] * 3, [1] * 3, [[0], [1], [2]], BLOCK))
    executor.close()
