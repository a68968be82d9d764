"""Swaps between the pools: exact bytes, the order within a step, the field cases that lost data (E046, E082)."""

from __future__ import annotations

import random
from collections.abc import Sequence as Several
from typing import Any

import pytest
import torch

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.model.build import build_executor
from vtop.engine.model.executor import TRIAL_BLOCKS, TorchExecutor
from vtop.engine.model.kv_cache import HostCache, KVCache, runs
from vtop.engine.model.model import load_model
from vtop.engine.request import SamplingParams, Sequence, new_request
from vtop.kernels.registry import get_backend
from vtop_support.models import VOCAB, tiny_random

torch.set_num_threads(1)

BLOCK = 4


def executor_of(num_blocks: int, num_host_blocks: int, model: Any = None) -> TorchExecutor:
    loaded = load_model(model or tiny_random("llama"), name="test", backend=get_backend("auto"))
    return TorchExecutor(loaded, num_blocks, BLOCK, num_host_blocks)


def garbage(shape: torch.Size, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bits at all, NaN of every kind among them."""
    generator = torch.Generator().manual_seed(seed)
    count = shape.numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def bits(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.uint8)


def sequence(prompt: list[int], blocks: list[int], seed: int = 0, **params: Any) -> Sequence:
    params.setdefault("temperature", 0.0)
    request = new_request("r", 0, prompt, SamplingParams(max_tokens=None, **params), arrival=0, limit=500, seed=seed)
    request.sequences[0].blocks = blocks
    return request.sequences[0]


def compute(executor: TorchExecutor, seq: Sequence, **moves: Any) -> None:
    """One step: all that the sequence still lacks, after the moves of blocks given."""
    start = seq.num_computed
    output = executor.execute(StepPlan([Chunk(seq, start, seq.num_tokens - start, True)], **moves))
    seq.num_computed = seq.num_tokens
    assert output.tokens[0] is not None
    seq.token_ids.append(output.tokens[0].token_id)


def alone(model: Any, prompt: list[int], count: int) -> list[int]:
    executor = executor_of(20, 0, model)
    seq = sequence(prompt, list(range(20)))
    for _ in range(count):
        compute(executor, seq)
    executor.close()
    return seq.output_token_ids


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_block_returns_bit_for_bit(dtype: torch.dtype) -> None:
    cache = KVCache(9, 3, 2, BLOCK, 5, dtype, "cpu")
    host = HostCache(6, cache.tensor)
    cache.tensor.copy_(garbage(cache.tensor.shape, dtype, 1))
    host.tensor.copy_(garbage(host.tensor.shape, dtype, 2))
    before, untouched = cache.tensor.clone(), host.tensor.clone()
    host.swap_out(cache.tensor, [(8, 0), (3, 4), (4, 5), (0, 2)])
    assert torch.equal(bits(cache.tensor), bits(before)), "what is swapped out stays where it was"
    assert torch.equal(bits(host.tensor[[0, 4, 5, 2]]), bits(before[[8, 3, 4, 0]]))
    assert torch.equal(bits(host.tensor[[1, 3]]), bits(untouched[[1, 3]]))
    cache.tensor.copy_(garbage(cache.tensor.shape, dtype, 3))
    now = cache.tensor.clone()
    host.swap_in(cache.tensor, [(2, 7), (0, 1), (4, 2), (5, 3)])
    assert torch.equal(bits(cache.tensor[[7, 1, 2, 3]]), bits(before[[0, 8, 3, 4]]))
    assert torch.equal(bits(cache.tensor[[0, 4, 5, 6, 8]]), bits(now[[0, 4, 5, 6, 8]]))


def test_neighbours_move_together() -> None:
    assert list(runs([])) == []
    assert list(runs([(3, 1)])) == [(3, 1, 1)]
    assert list(runs([(3, 1), (4, 2), (5, 3), (5, 4), (6, 6), (1, 7), (0, 8)])) == [
        (3, 1, 3), (5, 4, 1), (6, 6, 1), (1, 7, 1), (0, 8, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("pair", [(9, 0), (-1, 0), (0, 6), (0, -1)])
def test_a_block_that_does_not_exist_is_an_error_and_moves_nothing(pair: tuple[int, int]) -> None:
    cache = KVCache(9, 1, 1, BLOCK, 2, torch.float32, "cpu")
    host = HostCache(6, cache.tensor)
    host.tensor.fill_(7.0)
    with pytest.raises(IndexError, match="swap of block"):
        host.swap_out(cache.tensor, [(1, 1), pair])
    assert bool((host.tensor == 7.0).all())


def test_there_may_be_no_host_pool() -> None:
    executor = executor_of(8, 0)
    assert executor.num_host_blocks == 0 and executor.rates.swap_bytes_per_second == 0
    with pytest.raises(IndexError):
        executor.execute(StepPlan(swap_out=[(0, 0)]))
    executor.close()


def test_blocks_swapped_out_and_overwritten_in_the_same_step() -> None:
    """E046: the victim's blocks go to a newcomer at once; the copy that was saved is the victim's."""
    model = tiny_random("llama")
    first, second = prompt_of(10, 1), prompt_of(12, 2)
    expected = alone(model, first, 8), alone(model, second, 1)
    executor = executor_of(3, 3, model)
    executor.host_cache.tensor.fill_(float("nan"))
    victim = sequence(first, [2, 0, 1])
    for _ in range(2):
        compute(executor, victim)
    newcomer = sequence(second, [1, 2, 0])
    compute(executor, newcomer, swap_out=[(2, 1), (0, 2), (1, 0)])
    assert newcomer.output_token_ids == expected[1]
    executor.cache.tensor[:] = float("nan")
    victim.blocks = [0, 1, 2]
    compute(executor, victim, swap_in=[(1, 0), (2, 1), (0, 2)])
    assert victim.output_token_ids == expected[0][:3]
    executor.resize(6)  # what came back counts as written
    executor.cache.tensor[3:] = float("nan")
    victim.blocks.append(5)
    for _ in range(2):
        compute(executor, victim)
    for _ in range(3):
        victim.blocks = victim.blocks if len(victim.blocks) * BLOCK >= victim.num_tokens else [*victim.blocks, 4]
        compute(executor, victim)
    assert victim.output_token_ids == expected[0]
    executor.close()


def test_the_order_of_moves_in_a_step_is_out_in_copies() -> None:
    """One step exchanges two sequences in the same blocks, takes a host block that was free, and then copies."""
    executor = executor_of(4, 4)
    pool, host = executor.cache.tensor, executor.host_cache.tensor
    pool[:] = torch.arange(4.0).view(4, 1, 1, 1, 1, 1)
    host[:] = torch.arange(10.0, 14.0).view(4, 1, 1, 1, 1, 1)
    output = executor.execute(
        StepPlan(swap_out=[(0, 3), (1, 2), (1, 1)], swap_in=[(0, 0)], copies=[(0, 1), (2, 0), (3, 3)])
    )
    assert output.tokens == [] and output.swap_seconds > 0
    assert pool[:, 0, 0, 0, 0, 0].tolist() == [2.0, 10.0, 2.0, 3.0]
    assert host[:, 0, 0, 0, 0, 0].tolist() == [10.0, 1.0, 1.0, 0.0]
    executor.close()


def test_host_blocks_of_an_aborted_request_are_reused_without_a_trace() -> None:
    """E082."""
    model = tiny_random("llama")
    prompts = [prompt_of(7 + i, 20 + i) for i in range(4)]
    expected = [alone(model, prompt, 6) for prompt in prompts]
    executor = executor_of(12, 9, model)
    gone = sequence(prompts[0], [0, 1])
    compute(executor, gone)
    executor.execute(StepPlan(swap_out=[(0, 4), (1, 5)]))  # and then it is aborted: 4 and 5 are free
    places = [[4, 5, 0], [5, 4, 1], [2, 5, 4]]
    for prompt, wanted, host_blocks in zip(prompts[1:], expected[1:], places, strict=True):
        seq = sequence(prompt, [0, 1, 2])
        for _ in range(2):
            compute(executor, seq)
        executor.execute(StepPlan(swap_out=list(zip(seq.blocks, host_blocks, strict=True))))
        executor.cache.tensor[:] = float("nan")
        seq.blocks = [11, 9, 10]
        executor.execute(StepPlan(swap_in=list(zip(host_blocks, seq.blocks, strict=True))))
        seq.blocks = [*seq.blocks, 3, 4]
        while seq.num_output < 6:
            compute(executor, seq)
        assert seq.output_token_ids == wanted
    executor.close()


def test_checksums_hold_over_a_hundred_random_steps() -> None:
    """E046: every step writes new content over what was swapped out in it, and exchanges blocks both ways."""
    executor = executor_of(10, 14)
    pool, host = executor.cache.tensor, executor.host_cache.tensor
    rng = random.Random(5)
    loaded: dict[int, torch.Tensor] = {}  # device block -> what it must hold
    saved: dict[int, torch.Tensor] = {}
    moved = 0
    for step in range(100):
        plan = StepPlan()
        for place in (loaded, saved):  # requests end, on the device or swapped out
            for block in [b for b in place if rng.random() < 0.15]:
                del place[block]
        free_host = [block for block in range(14) if block not in saved]
        for block in rng.sample(sorted(loaded), rng.randint(0, min(len(loaded), len(free_host), 4))):
            target = free_host.pop(rng.randrange(len(free_host)))
            plan.swap_out.append((block, target))
            saved[target] = loaded.pop(block)
        sent = {target for _, target in plan.swap_out}
        back = rng.sample(sorted(set(saved) - sent), rng.randint(0, min(len(saved) - len(sent), 3)))
        for block in back:
            free = [b for b in range(10) if b not in loaded]
            if free:
                target = rng.choice(free)
                plan.swap_in.append((block, target))
                loaded[target] = saved.pop(block)
        for source in rng.sample(sorted(loaded), min(len(loaded), rng.randint(0, 2))):
            free = [b for b in range(10) if b not in loaded]
            if free:
                target = rng.choice(free)
                plan.copies.append((source, target))
                loaded[target] = loaded[source]
        executor.execute(plan)
        moved += len(plan.swap_out) + len(plan.swap_in)
        for block, content in loaded.items():
            assert torch.equal(bits(pool[block]), bits(content)), f"device block {block} in step {step}"
        for block, content in saved.items():
            assert torch.equal(bits(host[block]), bits(content)), f"host block {block} in step {step}"
        for block in [b for b in range(10) if b not in loaded]:  # a newcomer writes into what is free
            pool[block] = garbage(pool[block].shape, pool.dtype, 1000 * step + block)
            if rng.random() < 0.6:
                loaded[block] = pool[block].clone()
    assert moved > 150
    executor.close()


def test_real_sequences_through_random_swaps_give_what_they_give_alone() -> None:
    model = tiny_random("mistral")
    prompts = [prompt_of(length, length) for length in (9, 14, 5, 20)]
    expected = [alone(model, prompt, 14) for prompt in prompts]
    executor = executor_of(14, 30, model)
    executor.cache.tensor.fill_(float("nan"))
    executor.host_cache.tensor.fill_(float("nan"))
    rng = random.Random(1)
    free, free_host = list(range(14)), list(range(30))
    sequences = [sequence(prompt, []) for prompt in prompts]
    outside = set(sequences)  # not on the device: not begun, or swapped out
    steps = 0
    while any(seq.num_output < 14 for seq in sequences):
        steps += 1
        plan = StepPlan()
        rng.shuffle(free)
        rng.shuffle(free_host)
        entering = []
        for seq in sequences:
            if seq.num_output >= 14:
                free += seq.blocks
                seq.blocks = []
                continue
            need = -(-seq.num_tokens // BLOCK) - len(seq.blocks)
            if seq in outside:
                if need <= len(free):
                    entering.append(seq)
                    outside.discard(seq)
                    seq.blocks = [free.pop() for _ in range(need)]
                    plan.swap_in += zip(seq.host_blocks, seq.blocks, strict=False)
            elif need > len(free) or rng.random() < 0.2:
                seq.host_blocks = [free_host.pop() for _ in seq.blocks]
                plan.swap_out += zip(seq.blocks, seq.host_blocks, strict=True)
                free += seq.blocks
                seq.blocks = []
                outside.add(seq)
            else:
                seq.blocks += [free.pop() for _ in range(need)]
        running = [seq for seq in sequences if seq.blocks]
        plan.chunks = [Chunk(s, s.num_computed, s.num_tokens - s.num_computed, True) for s in running]
        output = executor.execute(plan)
        for seq, token in zip(running, output.tokens, strict=True):
            seq.num_computed = seq.num_tokens
            assert token is not None
            seq.token_ids.append(token.token_id)
        for seq in entering:
            free_host += seq.host_blocks
            seq.host_blocks = []
        executor.cache.tensor[free] = float("nan")
        assert steps < 400
    assert [seq.output_token_ids for seq in sequences] == expected
    executor.close()


def test_a_failing_model_has_swapped_and_copied_nonetheless() -> None:
    executor = executor_of(6, 2)
    executor.cache.tensor[0] = 5.0
    bad = sequence([VOCAB + 5, 1], [3])
    with pytest.raises(IndexError):
        executor.execute(StepPlan([Chunk(bad, 0, 2, True)], copies=[(0, 1)], swap_out=[(0, 1)]))
    assert bool((executor.cache.tensor[1] == 5.0).all() and (executor.host_cache.tensor[1] == 5.0).all())
    executor.close()


def test_rates_are_there_at_once_and_follow_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_random("llama")
    loaded = load_model(model, name="test", backend=get_backend("auto"))
    moved: list[int] = []
    swap_out = HostCache.swap_out

    def counted(cache: HostCache, tensor: torch.Tensor, pairs: Several[tuple[int, int]]) -> None:
        moved.append(len(pairs))
        swap_out(cache, tensor, pairs)

    monkeypatch.setattr(HostCache, "swap_out", counted)
    executor = TorchExecutor(loaded, 5000, 16, 100_000)
    assert moved and max(moved) <= TRIAL_BLOCKS  # a trial of a few blocks, however large the pools
    rates = executor.rates
    assert rates.bytes_per_block == executor.bytes_per_block == executor.host_cache.tensor[0].nbytes
    assert 1e6 < rates.swap_bytes_per_second < 1e12 and rates.prefill_tokens_per_second == 0
    compute(executor, sequence(prompt_of(200, 1), list(range(13))))
    assert 100 < executor.rates.prefill_tokens_per_second < 1e8
    executor.close()


def test_the_factory_makes_the_host_pool_and_tells() -> None:
    config = EngineConfig(device="cpu", num_gpu_blocks_override=10, num_host_blocks_override=12)
    executor, _, facts = build_executor(config, model=tiny_random("llama"))
    assert executor.num_host_blocks == facts.num_host_blocks == executor.host_cache.num_blocks == 12
    assert facts.host_note.startswith("12 blocks of 8 KiB = 96 KiB")
    executor.close()
    none = EngineConfig(device="cpu", num_gpu_blocks_override=10, swap_space=0)
    executor, _, facts = build_executor(none, model=tiny_random("llama"))
    assert executor.num_host_blocks == facts.num_host_blocks == 0 and facts.host_note == "no host pool"
    executor.close()
    model = tiny_random("llama")
    before = model.config._attn_implementation
    with pytest.raises(BadValue, match="swap_space"):
        build_executor(EngineConfig(device="cpu", num_gpu_blocks_override=10, swap_space=1e6), model=model)
    assert model.config._attn_implementation == before, "a refusal gives the model back as it was"


def test_pages_of_the_host_pool_are_not_touched_before_use() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    before = resident()
    executor = executor_of(8, (1 << 30) // 2048)  # blocks of 2 KiB: 1 GiB
    assert executor.host_cache.tensor.nbytes == 1 << 30
    assert resident() - before < 64 << 20
    executor.close()
