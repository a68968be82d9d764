"""I4: token for token what transformers' own generate gives, through pools so small that requests are preempted.

Twelve requests of mixed lengths per engine; float32, greedy. The reference runs each prompt alone with the model's
own attention and its own cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.model.build import build_executor
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.model import LoadedModel, load_model
from vtop.engine.model.source import resolve
from vtop.engine.request import SamplingParams
from vtop.kernels.registry import get_backend
from vtop_support.engines import AuditedEngine
from vtop_support.models import FAMILIES, VOCAB, smollm2_path, tiny_random

PROMPTS = [5, 9, 14, 3, 11, 4, 23, 8, 1, 6, 12, 7]
OUTPUTS = [38, 30, 26, 40, 34, 36, 20, 38, 40, 33, 28, 35]
SHAPES = [
    pytest.param({"batching": "chunked", "max_num_batched_tokens": 16}, id="chunked"),
    pytest.param({"batching": "prefill-first", "max_num_batched_tokens": 64}, id="prefill-first"),
]


# One of each way of attending; the others are computed by the slow tests.
_QUICK = ("llama", "gemma3", "gpt2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow]) for name in FAMILIES],
)
def family(request: pytest.FixtureRequest) -> Iterator[tuple[LoadedModel, list[list[int]], list[list[int]]]]:
    model = tiny_random(request.param)
    yield load_reference(model)


def load_reference(model: Any, vocab: int = VOCAB) -> tuple[LoadedModel, list[list[int]], list[list[int]]]:
    """A loaded model, the prompts, and what generate gives for each."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in PROMPTS]
    expected = [reference(model, p, n) for p, n in zip(prompts, OUTPUTS, strict=True)]
    return loaded_model(model), prompts, expected


def loaded_model(model: Any) -> LoadedModel:
    return load_model(model, name="random", backend=get_backend("auto", torch.device("cpu")))


def reference(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy output of transformers' generate for one prompt alone."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def tight_pool(block_size: int) -> int:
    """Blocks for the longest request alone and little more."""
    longest = max(p + n for p, n in zip(PROMPTS, OUTPUTS, strict=True))
    return -(-longest // block_size) + (1 if block_size == 16 else 48 // block_size)


def engine_over(loaded: LoadedModel, num_blocks: int, **options: Any) -> AuditedEngine:
    executor = TorchExecutor(loaded, num_blocks, options.get("block_size", 4))
    return AuditedEngine(num_blocks, executor=executor, max_model_len=loaded.spec.max_model_len, **options)


@pytest.mark.parametrize("block_size", [1, pytest.param(8, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_equals_generate(
    family: tuple[LoadedModel, list[list[int]], list[list[int]]], shape: dict[str, Any], block_size: int
) -> None:
    loaded, prompts, expected = family
    engine = engine_over(loaded, tight_pool(block_size), block_size=block_size, **shape)
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, OUTPUTS[i], ignore_eos=True)
    engine.run()
    assert len(engine.events(ev.Preempted)) >= 10, "the pool was meant to be too small"
    assert [engine.output(f"r{i}") for i in range(len(prompts))] == expected


@pytest.mark.parametrize("mode", ["swap", "hybrid"])
@pytest.mark.parametrize("policy", ["priority", "fair", "sjf", "mlfq", "priority+fair"])
def test_greedy_equals_generate_under_every_policy_and_mode(mode: str, policy: str) -> None:
    """Real K/V through the host pool and back, and prompts that share a beginning."""
    model = tiny_random("llama")
    prompts = [[5, 9, 11, 3, 40, 7, 8, 2, 1][: 4 + i % 6] + [20 + i] * (i % 4) for i in range(8)]
    expected = [reference(model, p, 30) for p in prompts]
    executor = TorchExecutor(loaded_model(model), 24, 4, num_host_blocks=30)
    engine = AuditedEngine(
        24, executor=executor, preemption_mode=mode, scheduling_policy=policy, max_num_batched_tokens=16
    )
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 30, ignore_eos=True, priority=i % 3, group=f"g{i % 2}")
    engine.run()
    assert engine.state.totals.preemptions > 0
    assert mode == "hybrid" or engine.state.totals.swapped_out_blocks > 0
    assert [engine.output(f"r{i}") for i in range(len(prompts))] == expected


def test_samples_equal_independent_seeded_runs() -> None:
    """Sample i of a request with seed s is the one output of a request with seed s + i; through preemptions too."""
    loaded = loaded_model(tiny_random("llama"))
    prompts = [[5, 9, 11, 3, 40, 7], [8, 2, 1, 30, 31, 32, 33, 34]]
    params: dict[str, Any] = {"temperature": 0.9, "ignore_eos": True}
    alone: dict[tuple[int, int], list[int]] = {}
    for which, prompt in enumerate(prompts):
        for index in range(3):
            engine = engine_over(loaded, 64, block_size=4)
            engine.add("a", prompt, 24, seed=100 * which + index, **params)
            engine.run()
            alone[which, index] = engine.output("a")
    for blocks, mode in ((64, "recompute"), (30, "recompute"), (30, "swap")):
        executor = TorchExecutor(loaded, blocks, 4, num_host_blocks=60)
        engine = AuditedEngine(blocks, executor=executor, preemption_mode=mode, max_num_batched_tokens=16)
        for which, prompt in enumerate(prompts):
            engine.add(f"r{which}", prompt, 24, n=3, seed=100 * which, **params)
        engine.run()
        assert (engine.state.totals.preemptions > 0) == (blocks == 30)
        assert {(w, i): engine.output(f"r{w}", i) for w in range(2) for i in range(3)} == alone
    assert len(set(map(tuple, alone.values()))) == 6


def test_best_of_returns_the_likeliest_samples() -> None:
    loaded = loaded_model(tiny_random("llama"))
    engine = engine_over(loaded, 64, block_size=4)
    engine.add("all", [5, 9, 11, 3], 8, n=4, seed=7, temperature=1.0, logprobs=0, ignore_eos=True)
    engine.add("best", [5, 9, 11, 3], 8, n=2, best_of=4, seed=7, temperature=1.0, ignore_eos=True)
    engine.run()
    every = sorted(engine.outputs["all"].outputs, key=lambda sample: -(sample.cumulative_logprob or 0))
    best = engine.outputs["best"].outputs
    assert [sample.token_ids for sample in best] == [sample.token_ids for sample in every[:2]]


def test_seeded_sampling_is_the_same_alone_in_a_batch_and_through_preemptions() -> None:
    """Noise depends on (seed, position) only, not on what else runs."""
    loaded = loaded_model(tiny_random("llama"))
    sampling: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.1}
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in PROMPTS]

    def run(num_blocks: int, which: list[int]) -> dict[int, list[int]]:
        engine = engine_over(loaded, num_blocks, block_size=4, max_num_batched_tokens=16)
        for i in which:
            engine.add(f"r{i}", prompts[i], OUTPUTS[i], seed=100 + i, ignore_eos=True, **sampling)
        engine.run()
        preempted.append(len(engine.events(ev.Preempted)))
        return {i: engine.output(f"r{i}") for i in which}

    preempted: list[int] = []
    everything = list(range(len(prompts)))
    together = run(400, everything)
    tight = run(tight_pool(4), everything)
    alone = {i: run(400, [i])[i] for i in everything}
    assert together == tight == alone
    assert preempted[0] == 0 and preempted[1] >= 10
    assert len({tuple(tokens[:8]) for tokens in alone.values()}) == len(prompts), "seeds were meant to matter"


def test_log_probabilities_survive_a_preemption() -> None:
    """E052 and E047: prompt log-probs have one entry per token, and both kinds equal an undisturbed run."""
    loaded = loaded_model(tiny_random("qwen2"))

    def run(num_blocks: int) -> AuditedEngine:
        engine = engine_over(loaded, num_blocks, block_size=4, max_num_batched_tokens=8)
        for i, size in enumerate(PROMPTS[:6]):
            engine.add(f"r{i}", [3 + (i * 31 + 7 * j) % 120 for j in range(size)], 20, logprobs=2, prompt_logprobs=1)
        engine.run()
        return engine

    calm, tight = run(300), run(14)
    assert not calm.events(ev.Preempted) and tight.events(ev.Preempted)
    for request_id, output in calm.outputs.items():
        other = tight.outputs[request_id]
        assert other.outputs[0].token_ids == output.outputs[0].token_ids
        assert output.prompt_logprobs is not None and other.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
        for mine, theirs in zip(output.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            assert close(mine, theirs)
        assert output.outputs[0].logprobs is not None and other.outputs[0].logprobs is not None
        assert len(output.outputs[0].logprobs) == 20
        for mine, theirs in zip(output.outputs[0].logprobs, other.outputs[0].logprobs, strict=True):
            assert close(mine, theirs)
        assert output.outputs[0].cumulative_logprob == pytest.approx(other.outputs[0].cumulative_logprob, abs=1e-3)


def close(mine: Any, theirs: Any) -> bool:
    return mine is not None and all(
        theirs[token].logprob == pytest.approx(entry.logprob, abs=1e-4) for token, entry in mine.items()
    )


REAL_PROMPTS = [
    "To be, or not to be",
    "KING HENRY:",
    "In the beginning God created the heaven and the earth. And the earth was without form",
    "Enter a messenger",
    "Once more",
    "The quality of mercy is not strain'd, it droppeth as the gentle rain from heaven",
]


def assert_real_model_equals_generate(name: str, count: int, block_size: int, pool: int) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve(name).location
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [tokenizer(text).input_ids for text in REAL_PROMPTS]
    expected = [reference(model, p, count) for p in prompts]
    options: dict[str, Any] = {"block_size": block_size, "max_num_batched_tokens": 32}
    executor, _, facts = build_executor(EngineConfig(num_gpu_blocks_override=pool, **options), None, model, tokenizer)
    engine = AuditedEngine(pool, executor=executor, tokenizer=tokenizer, max_model_len=facts.max_model_len, **options)
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, count, ignore_eos=True, skip_special_tokens=False)
    engine.run()
    assert len(engine.events(ev.Preempted)) >= 3
    assert [engine.output(f"r{i}") for i in range(len(prompts))] == expected
    for i in range(len(prompts)):
        view = engine.state.find(f"r{i}")
        assert view is not None
        assert view.text == tokenizer.decode(expected[i], skip_special_tokens=False)
    engine.engine.close()


def test_tiny_equals_generate() -> None:
    assert_real_model_equals_generate("tiny", 70, block_size=8, pool=20)


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["chunked", "prefill-first"])
@pytest.mark.parametrize("mode", ["recompute", "swap", "hybrid"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair+fcfs"])
def test_tiny_equals_generate_under_everything(
    tiny_reference: tuple[LoadedModel, list[list[int]], list[list[int]]], policy: str, mode: str, batching: str
) -> None:
    """I4 for every policy, mode and way of batching, on the bundled model."""
    loaded, prompts, expected = tiny_reference
    executor = TorchExecutor(loaded, 20, 8, num_host_blocks=30)
    engine = AuditedEngine(
        20,
        executor=executor,
        block_size=8,
        scheduling_policy=policy,
        preemption_mode=mode,
        batching=batching,
        max_num_batched_tokens=64,
        max_model_len=loaded.spec.max_model_len,
    )
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 60, ignore_eos=True, priority=i % 3, group=f"g{i % 2}", timeout=9999.0 - i)
    engine.run()
    assert engine.state.totals.preemptions > 0
    assert [engine.output(f"r{i}") for i in range(len(prompts))] == expected


@pytest.fixture(scope="module")
def tiny_reference() -> tuple[LoadedModel, list[list[int]], list[list[int]]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve("tiny").location
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [tokenizer(text).input_ids for text in REAL_PROMPTS]
    expected = [reference(model, prompt, 60) for prompt in prompts]
    return loaded_model(model), prompts, expected


@pytest.mark.slow
def test_smollm2_equals_generate() -> None:
    assert_real_model_equals_generate(str(smollm2_path()), 20, block_size=8, pool=9)


def test_the_model_is_as_before_after_close() -> None:
    """E123: generate outside the engine gives the same before, and after the engine was closed."""
    model = tiny_random("llama")
    before = reference(model, [5, 6, 7], 12)
    implementation = model.config._attn_implementation
    engine = engine_over(loaded_model(model), 32, block_size=4)
    engine.add("a", [5, 6, 7], 12)
    engine.run()
    engine.engine.close()
    assert engine.output("a") == before == reference(model, [5, 6, 7], 12)
    assert model.config._attn_implementation == implementation


def test_params_are_checked_where_they_are_made() -> None:
    wrong: dict[str, Any] = {"temperature": -1.0, "top_p": 0.0, "max_tokens": 0, "stop": ("",), "min_tokens": -1}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: value})
