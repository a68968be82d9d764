"""TorchExecutor, driven by hand-made plans, against what transformers' own generate gives."""

from __future__ import annotations

import collections.abc
import random
from typing import Any

import pytest
import torch

from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, SampledToken, StepPlan
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.model import load_model
from vtop.engine.request import SamplingParams, Sequence, new_request
from vtop.kernels.api import copy_blocks
from vtop.kernels.plain.paged import TorchPagedAttention
from vtop.kernels.registry import get_backend
from vtop_support.models import FAMILIES, VOCAB, tiny_random

torch.set_num_threads(1)

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)


class Driver:
    """The smallest scheduler: every sequence has its own blocks, chunk sizes are drawn, nothing is ever preempted."""

    def __init__(
        self, model: Any, num_blocks: int = 80, block_size: int = 4, backend: str = "auto", seed: int = 0
    ) -> None:
        loaded = load_model(model, name="test", backend=get_backend(backend))
        self.executor = TorchExecutor(loaded, num_blocks, block_size)
        self.block_size = block_size
        self.rng = random.Random(seed)
        self.free = list(range(num_blocks))
        self.rng.shuffle(self.free)
        self.sequences: list[Sequence] = []
        self.sampled: dict[Sequence, list[Any]] = {}
        self.prompt_logprobs: dict[Sequence, dict[int, Any]] = {}

    def add(self, prompt: list[int], params: SamplingParams = GREEDY, seed: int = 0) -> Sequence:
        request = new_request(
            str(len(self.sequences)), len(self.sequences), prompt, params, arrival=0.0, limit=500, seed=seed
        )
        self.sequences.append(request.sequences[0])
        self.sampled[request.sequences[0]] = []
        self.prompt_logprobs[request.sequences[0]] = {}
        return request.sequences[0]

    def preempt(self, sequence: Sequence) -> None:
        self.free = sequence.blocks + self.free
        sequence.blocks, sequence.num_computed = [], 0

    def step(self, outputs: int, chunk: int | None = None) -> None:
        """One step of everything that has fewer than `outputs` outputs; prompts in chunks of at most `chunk`."""
        plan = StepPlan()
        for sequence in self.sequences:
            if sequence.num_output >= outputs:
                continue
            left = sequence.num_tokens - sequence.num_computed
            count = left if chunk is None else min(left, self.rng.randint(1, chunk))
            end = sequence.num_computed + count
            while len(sequence.blocks) * self.block_size < end:
                sequence.blocks.append(self.free.pop())
            plan.chunks.append(Chunk(sequence, sequence.num_computed, count, sample=end == sequence.num_tokens))
        output = self.executor.execute(plan)
        assert len(output.tokens) == len(plan.chunks)
        for i, (item, token) in enumerate(zip(plan.chunks, output.tokens, strict=True)):
            assert (token is not None) is item.sample
            item.sequence.num_computed = item.start + item.num_tokens
            for position, own, top in output.prompt_logprobs.get(i, []):
                self.prompt_logprobs[item.sequence][position] = (own, top)
            if token is not None:
                item.sequence.token_ids.append(token.token_id)
                self.sampled[item.sequence].append(token)

    def run(self, outputs: int, chunk: int | None = None) -> list[list[int]]:
        while any(sequence.num_output < outputs for sequence in self.sequences):
            self.step(outputs, chunk)
        return [sequence.output_token_ids for sequence in self.sequences]


def generate(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in out[0, len(prompt) :]]


def prompts_of(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_greedy_tokens_are_those_of_generate(family: str, backend: str) -> None:
    """Chunked prefill beside decodes, scattered blocks, prompts longer than the family's window."""
    model = tiny_random(family)
    prompts = prompts_of(1, 13, 30, 22)
    expected = [generate(model, prompt, 12) for prompt in prompts]
    assert len({token for tokens in expected for token in tokens}) > 8, "a constant output would prove nothing"
    driver = Driver(model, backend=backend)
    for prompt in prompts[:2]:
        driver.add(prompt)
    for _ in range(3):
        driver.step(12, chunk=5)
    for prompt in prompts[2:]:
        driver.add(prompt)
    assert driver.run(12, chunk=7) == expected
    driver.executor.close()
    assert [generate(model, prompt, 12) for prompt in prompts] == expected, "the model was not given back as it was"


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8, 16, 32, 64, 128, 256])
def test_block_size_changes_no_token(block_size: int) -> None:
    """Field case E126."""
    model = tiny_random("llama")
    (prompt,) = prompts_of(37)
    driver = Driver(model, num_blocks=60, block_size=block_size)
    driver.add(prompt)
    driver.add(prompt[:5])
    got = driver.run(8, chunk=16)
    driver.executor.close()
    assert got == [generate(model, prompt, 8), generate(model, prompt[:5], 8)]


def test_nan_in_unused_blocks_and_stale_slots_changes_nothing() -> None:
    """Field case E077: what an earlier owner left behind is never read."""
    model = tiny_random("mistral")
    prompts = prompts_of(21, 9, 3)
    driver = Driver(model)
    driver.executor.cache.tensor.fill_(float("nan"))
    first = driver.add(prompts_of(60, seed=9)[0])
    driver.run(3)
    driver.preempt(first)
    driver.sequences.clear()
    driver.executor.cache.tensor.fill_(float("nan"))
    for prompt in prompts:
        driver.add(prompt)
    got = driver.run(9, chunk=6)
    driver.executor.close()
    assert got == [generate(model, prompt, 9) for prompt in prompts]


def test_recomputing_after_a_preemption_continues_as_before() -> None:
    model = tiny_random("qwen2")
    prompts = prompts_of(17, 8)
    driver = Driver(model)
    for prompt in prompts:
        driver.add(prompt)
    for _ in range(6):
        driver.step(12)
    driver.preempt(driver.sequences[0])
    got = driver.run(12, chunk=9)
    driver.executor.close()
    assert got == [generate(model, prompt, 12) for prompt in prompts]


def test_resizing_keeps_blocks_below_both_sizes() -> None:
    model = tiny_random("llama")
    (prompt,) = prompts_of(10)
    driver = Driver(model, num_blocks=12)
    driver.free = [11, 10, 9, 8, 7, 6, 2, 1, 0]  # taken from the end
    driver.add(prompt)
    driver.step(9)
    driver.executor.resize(3)
    assert driver.executor.num_blocks == 3
    driver.executor.resize(9)
    driver.free = [8, 7, 6]
    assert driver.run(9) == [generate_after(driver, model, prompt, 9)]
    with pytest.raises(BadValue, match="num_blocks = 0"):
        driver.executor.resize(0)
    with pytest.raises(BadValue, match="available"):
        driver.executor.resize(1 << 40)
    assert driver.executor.num_blocks == 9


def generate_after(driver: Driver, model: Any, prompt: list[int], count: int) -> list[int]:
    driver.executor.model.close()
    try:
        return generate(model, prompt, count)
    finally:
        driver.executor.model.open()


def test_copied_blocks_serve_another_sequence() -> None:
    model = tiny_random("llama")
    (prompt,) = prompts_of(11)
    driver = Driver(model, num_blocks=20)
    one = driver.add(prompt)
    driver.step(1)
    two = driver.add(prompt)
    two.token_ids.append(one.token_ids[-1])
    two.blocks = [driver.free.pop() for _ in one.blocks]
    two.num_computed = one.num_computed
    driver.executor.execute(StepPlan(copies=list(zip(one.blocks, two.blocks, strict=True))))
    driver.executor.cache.tensor[one.blocks] = float("nan")
    driver.sequences.remove(one)
    got = driver.run(8)[0]
    driver.executor.close()
    assert got == generate(model, prompt, 8)


def test_prompt_logprobs_and_logprobs_are_those_of_the_model() -> None:
    model = tiny_random("llama")
    (prompt, other) = prompts_of(12, 6)
    driver = Driver(model)
    params = SamplingParams(temperature=0.0, max_tokens=None, logprobs=2, prompt_logprobs=3)
    sequence = driver.add(prompt, params)
    driver.add(other)
    driver.run(4, chunk=5)
    driver.executor.close()
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([sequence.token_ids])).logits[0].double(), dim=-1)
    entries = driver.prompt_logprobs[sequence]
    assert sorted(entries) == list(range(1, len(prompt)))
    for position, (own, top) in entries.items():
        row = table[position - 1]
        assert own.token_id == prompt[position]
        assert own.logprob == pytest.approx(float(row[own.token_id]), abs=1e-4)
        assert own.rank == 1 + int((row > row[own.token_id]).sum())
        assert [entry.token_id for entry in top] == row.topk(3).indices.tolist()
        assert [entry.rank for entry in top] == [1, 2, 3]
    for i, token in enumerate(driver.sampled[sequence]):
        row = table[len(prompt) - 1 + i]
        assert token.logprob == pytest.approx(float(row.max()), abs=1e-4)
        assert len(token.top) == 2 and token.top[0].token_id == token.token_id


def test_random_sampling_does_not_depend_on_the_batch_or_on_preemption() -> None:
    model = tiny_random("llama")
    prompts = prompts_of(7, 12, 5, 9)
    params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=None)

    def alone(i: int) -> list[int]:
        driver = Driver(model)
        driver.add(prompts[i], params, seed=i)
        got = driver.run(15)[0]
        driver.executor.close()
        return got

    driver = Driver(model)
    for i, prompt in enumerate(prompts):
        driver.add(prompt, params, seed=i)
    for _ in range(6):
        driver.step(15, chunk=4)
    driver.preempt(driver.sequences[1])
    together = driver.run(15, chunk=8)
    driver.executor.close()
    assert together == [alone(i) for i in range(len(prompts))]
    assert len({tuple(tokens) for tokens in together}) == len(prompts)


def test_a_failing_model_leaves_the_executor_usable() -> None:
    model = tiny_random("llama")
    (prompt,) = prompts_of(6)
    driver = Driver(model)
    bad = driver.add([VOCAB + 5, 1])  # outside of the embedding
    with pytest.raises(IndexError):
        driver.step(1)
    driver.sequences.remove(bad)
    driver.add(prompt)
    got = driver.run(5)[0]
    driver.executor.close()
    driver.executor.close()
    assert got == generate(model, prompt, 5)
    with pytest.raises(RuntimeError, match="closed"):
        driver.executor.execute(StepPlan())


def test_logits_that_are_no_numbers_are_a_fault_of_their_row_and_no_token() -> None:
    """The row beside it gets the token it gets alone."""
    model = tiny_random("llama")
    driver = Driver(model)
    good, bad = driver.add([1, 2, 3]), driver.add([4, 5, 6])
    alone = Driver(tiny_random("llama"))
    alone.add([1, 2, 3])
    alone.step(1)
    sample = driver.executor._sampler.sample

    def spoilt(logits: torch.Tensor, sequences: list[Sequence]) -> list[SampledToken]:
        logits = logits.clone()
        for row, sequence in enumerate(sequences):
            if sequence is bad:
                logits[row] = float("nan")
        return sample(logits, sequences)

    driver.executor._sampler.sample = spoilt  # type: ignore[method-assign, assignment]
    driver.step(1)
    assert "not finite numbers" in driver.sampled[bad][0].fault
    assert driver.sampled[good][0].token_id == alone.sampled[alone.sequences[0]][0].token_id
    driver.executor.close()
    alone.executor.close()


class Copying(TorchPagedAttention):
    """Copies blocks itself, and remembers which."""

    def __init__(self) -> None:
        self.copied: list[tuple[int, int]] = []

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: collections.abc.Sequence[tuple[int, int]]
    ) -> None:
        self.copied += pairs
        copy_blocks(source, target, pairs)


def test_blocks_are_copied_by_the_backend_where_it_copies() -> None:
    backend = Copying()
    executor = TorchExecutor(load_model(tiny_random("llama"), name="test", backend=backend), 6, 4)
    executor.cache.tensor.copy_(torch.arange(6.0).view(6, 1, 1, 1, 1, 1))
    backend.copied.clear()  # the trial before the first step
    executor.execute(StepPlan(copies=[(5, 1), (1, 3)]))
    assert backend.copied == [(5, 1), (1, 3)]
    assert executor.cache.tensor[:, 1, 1, 0, 2, 0].tolist() == [0.0, 5.0, 2.0, 1.0, 4.0, 5.0]
    executor.close()
