"""Everything that only a GPU can show, in one run of less than five minutes: what is right first, then how fast.

    python tests/gpu_check.py            # on a machine with a CUDA device, from the repository's root
    python tests/gpu_check.py --dry      # the checks of correctness, tiny, in Triton's interpreter on the CPU

Kernels are held against float64, the engine against transformers' own generate. Prints one table; the exit code is 1
when a result is wrong. `--only kernels,engine,decode,prefill,steps,throughput` runs some parts; `--budget SECONDS`
skips what would begin later than that.
"""

# ruff: noqa: E402 - triton reads its environment when it is imported

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description="correctness and speed on a GPU")
parser.add_argument("--dry", action="store_true", help="tiny, on the CPU, correctness only")
parser.add_argument("--only", default="", help="parts to run, with commas between them")
parser.add_argument("--budget", type=float, default=270.0, help="seconds after which nothing more is begun")
ARGS = parser.parse_args()
os.environ["VTOP_TEST_DEVICE"] = "cpu" if ARGS.dry else "cuda"
if ARGS.dry:
    os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "kernels" / "gpu"))

import numpy as np
import torch
import torch.nn.functional as F
import triton_interp as cases

from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.executor import EngineFacts
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.graphs import CudaCapture, GraphOptions
from vtop.engine.model.model import load_model
from vtop.engine.request import SamplingParams
from vtop.kernels.api import AttentionBatch
from vtop.kernels.gpu.paged import TritonPagedAttention

DEVICE = torch.device("cpu" if ARGS.dry else "cuda")
STARTED = time.perf_counter()
FAILED: list[str] = []
COPY = [0.0]  # bytes per second that a device copy reads and writes


def row(part: str, name: str, result: str, ok: bool = True) -> None:
    """One line of the table."""
    if not ok:
        FAILED.append(f"{part}: {name}")
    mark = "ok  " if ok else "FAIL"
    print(f"{mark} {time.perf_counter() - STARTED:6.1f}s  {part:10s} {name:58s} {result}", flush=True)


def late() -> bool:
    return time.perf_counter() - STARTED > ARGS.budget


# --- kernels against float64 -----------------------------------------------------------------------------------------


def kernels() -> None:
    mixed = [(0, 7), (20, 1), (33, 5), (63, 1)] if ARGS.dry else [
        (0, 1), (14, 1), (15, 1), (16, 1), (62, 2), (64, 1), (255, 1), (690, 40), (2999, 1), (0, 513), (1000, 129),
    ]  # fmt: skip
    everything = {"window": 21 if ARGS.dry else 100, "softcap": 20.0, "sinks": True}
    features: list[dict[str, Any]] = [{}, everything]
    shapes = [(6, 2, 16)] if ARGS.dry else [(9, 3, 64), (14, 2, 64), (32, 8, 128), (4, 4, 80), (8, 2, 96), (8, 1, 256)]
    dtypes = ["bf16"] if ARGS.dry else ["bf16", "fp16", "fp32"]
    if not ARGS.dry:
        features += [{"window": 1}, {"softcap": 30.0}, {"sinks": True}]
    found: list[cases.Case] = []

    def add(name: str, **more: Any) -> None:
        found.append(cases.Case(name, seed=len(found), tile=16 if ARGS.dry else 0, **more))

    for (heads, kv_heads, dim), dtype, options in itertools.product(shapes, dtypes, features):
        add(f"{heads}/{kv_heads}/{dim} {dtype} {'+'.join(options) or 'plain'}", sequences=mixed, heads=heads,
            kv_heads=kv_heads, head_dim=dim, dtype=dtype, **options)  # fmt: skip
    for size in (3,) if ARGS.dry else (1, 2, 3, 4, 8, 32, 64, 128, 256):
        add(f"blocks of {size}", sequences=mixed, block_size=size, heads=8, head_dim=64, dtype="bf16", window=50)
    decodes = [(0, 1), (15, 1), (130, 1)] if ARGS.dry else [(0, 1), (700, 1), (5000, 1), (33, 1)]
    add("refilled plan", kind="static", sequences=decodes, heads=2, kv_heads=1, head_dim=64)
    add("fixed chunks, bit for bit", kind="alone", sequences=[(520, 1), (33, 1)], heads=2,
        kv_heads=1, head_dim=64, deterministic=True)  # fmt: skip
    add("block copies", kind="copy", dtype="bf16")
    for case in found:
        result = cases.outcome(case)
        row("kernels", case.name, result, result == "ok")
    if not ARGS.dry:
        beyond_32_bits()


def beyond_32_bits() -> None:
    """The last blocks of a cache of more than 2**31 numbers."""
    blocks = 2**31 // (2 * 8 * 16 * 128) + 500
    cache = torch.empty(blocks, 1, 2, 8, 16, 128, dtype=torch.bfloat16, device=DEVICE)
    layer, backend = cache[:, 0], TritonPagedAttention()
    q = torch.randn(400, 32, 128, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn(400, 8, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    outs = []
    for first in (0, blocks - 25):
        table = list(range(first, first + 25))
        batch = AttentionBatch.build([400], [400], [table], 16, DEVICE)
        backend.write_kv(layer, k, v, batch)
        one = AttentionBatch.build([1], [400], [table], 16, DEVICE)
        outs.append((backend.attend(q, layer, batch, 0.1), backend.attend(q[:1], layer, one, 0.1)))
    same = all(torch.equal(a, b) for a, b in zip(*outs, strict=True))
    row("kernels", "cache of more than 2**31 numbers", "same bits in the last blocks" if same else "differs", same)


# --- the engine against transformers ---------------------------------------------------------------------------------


class Rerun:
    """In place of a CUDA graph on the CPU: does the captured work again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


def random_llama(hidden: int, layers: int, heads: int, kv_heads: int, dim: int, vocab: int, dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 7 // 2 // 64 * 64, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, vocab_size=vocab,
        max_position_embeddings=65536, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(DEVICE):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(previous)
    model.generation_config.eos_token_id = None
    return model


def engine_of(model: Any, blocks: int, *, graphs: bool, rows: int = 64, longest: int = 2048, hosts: int = 0,
              **options: Any) -> LLMEngine:  # fmt: skip
    backend = TritonPagedAttention()
    loaded = load_model(model, name="random", backend=backend)
    maker = Rerun if ARGS.dry else CudaCapture()
    how = GraphOptions(backend, rows, longest, maker) if graphs else None
    executor = TorchExecutor(loaded, blocks, 16, hosts, graphs=how)
    if graphs and executor._graphs is None:
        row("engine", "capture", executor.graphs_note, False)
    config = EngineConfig(
        num_gpu_blocks_override=blocks, num_host_blocks_override=hosts, block_size=16, max_num_seqs=rows, **options
    )
    return LLMEngine(executor, config, facts=EngineFacts(max_model_len=longest, num_host_blocks=hosts))


def generated(engine: LLMEngine, prompts: list[list[int]], count: int) -> list[list[int]]:
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, SamplingParams(temperature=0.0, max_tokens=count))
    done: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = list(output.outputs[0].token_ids)
    return [done[str(i)] for i in range(len(prompts))]


def own(model: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=DEVICE)
        out = model.generate(ids, max_new_tokens=count, do_sample=False)
        found.append(out[0, len(prompt) :].tolist())
    return found


def agreement(a: list[list[int]], b: list[list[int]]) -> float:
    """Share of tokens before the first difference."""
    same = 0
    for one, other in zip(a, b, strict=True):
        equal = [x == y for x, y in zip(one, other, strict=True)]
        same += equal.index(False) if False in equal else len(equal)
    return same / sum(map(len, a))


def engine() -> None:
    size = (32, 1, 2, 1, 16, 128) if ARGS.dry else (512, 4, 8, 2, 64, 2000)
    count, lengths = (3, [3, 20]) if ARGS.dry else (48, [3, 17, 64, 100, 333, 700, 9, 15])
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, size[-1], n).tolist() for n in lengths]
    model = random_llama(*size, torch.float32)
    for parameter in model.parameters():  # far enough from flat that rounding decides no token
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.2 if ARGS.dry else 0.06)
    wanted = own(model, prompts, count)
    needs = [-(-(n + count) // 16) for n in lengths]
    tight = max(needs) + 1  # so few blocks that sequences push one another out
    variants: list[tuple[str, int, dict[str, Any]]] = [
        ("greedy, fp32, no graphs", sum(needs), {"graphs": False}),
        ("greedy, fp32, graphs", sum(needs), {"graphs": True}),
        ("chunks of 16 tokens", sum(needs), {"graphs": False, "max_num_batched_tokens": 16}),
        ("preemption by recomputing", tight, {"graphs": True}),
        ("preemption by swapping", tight, {"graphs": True, "preemption_mode": "swap", "hosts": sum(needs)}),
    ]
    for name, blocks, options in variants[1::3] if ARGS.dry else variants:
        served = engine_of(model, blocks, rows=2 if ARGS.dry else 8, longest=1024, **options)
        got = generated(served, prompts, count)
        served.close()
        row("engine", name, f"{agreement(wanted, got):.0%} as generate", got == wanted)
    if ARGS.dry:
        return
    half = model.to(torch.bfloat16)
    served = engine_of(half, sum(needs), graphs=True, rows=8, longest=1024)
    got = generated(served, prompts, count)
    served.close()
    share = agreement(own(half, prompts, count), got)
    row("engine", "greedy, bf16, graphs", f"{share:.0%} as generate before the first difference", share > 0.6)


# --- speed of the kernels --------------------------------------------------------------------------------------------


def timed(work: Callable[[int], Any], calls: int) -> float:
    """Seconds per call, the median of replays of a graph of `calls` calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            work(i)
    seconds = []
    for _ in range(7):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        seconds.append(first.elapsed_time(last) / calls * 1e-3)
    return sorted(seconds)[len(seconds) // 2]


def ceilings() -> None:
    source = torch.empty(1 << 30, dtype=torch.float32, device=DEVICE)
    target = torch.empty_like(source)
    COPY[0] = 2 * source.nbytes / timed(lambda _: target.copy_(source), 2)
    row("ceiling", "device copy, read and write", f"{COPY[0] / 1e12:.2f} TB/s")
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    row("ceiling", "bf16 product 8192", f"{2 * 8192**3 / timed(lambda _: a @ a, 2) / 1e12:.0f} TFLOP/s")


def batch_of(counts: list[int], contexts: list[int], block_size: int, sets: int) -> tuple[list[AttentionBatch], int]:
    """`sets` batches over different shuffled blocks, so that the L2 cache holds none of them; and the blocks needed."""
    needs = [-(-n // block_size) for n in contexts]
    ids = np.random.default_rng(0).permutation(sets * sum(needs))
    ends = np.cumsum(needs)
    batches = []
    for s in range(sets):
        mine = ids[s * sum(needs) : (s + 1) * sum(needs)]
        tables = [mine[end - need : end].tolist() for end, need in zip(ends, needs, strict=True)]
        batches.append(AttentionBatch.build(counts, contexts, tables, block_size, DEVICE))
    return batches, len(ids)


def decode() -> None:
    ceilings()
    for (heads, kv_heads), context, rows in itertools.product(
        ((32, 4), (32, 8)), (1024, 8192, 32768), (1, 16, 64, 256)
    ):
        read = rows * context * 2 * kv_heads * 128 * 2
        if read > 40 << 30 or late():
            continue
        decode_row(heads, kv_heads, 128, [context] * rows, f"{rows} x {context}")
    for block_size in (1, 16, 64, 256):
        decode_row(32, 8, 128, [4096] * 64, "64 x 4096", block_size)
    ragged = np.random.default_rng(1).integers(64, 8192, 64).tolist()
    decode_row(32, 8, 128, ragged, "64 of 64 … 8192")
    decode_row(9, 3, 64, [2048] * 256, "256 x 2048")
    decode_row(14, 2, 64, [2048] * 64, "64 x 2048")


def decode_row(heads: int, kv_heads: int, dim: int, contexts: list[int], name: str, block_size: int = 16) -> None:
    read = sum(contexts) * 2 * kv_heads * dim * 2
    sets = max(1, min(16, -(-(256 << 20) // read)))
    batches, blocks = batch_of([1] * len(contexts), contexts, block_size, sets)
    layer = torch.randn(blocks, 2, kv_heads, block_size, dim, device=DEVICE, dtype=torch.bfloat16)
    q = torch.randn(len(contexts), heads, dim, device=DEVICE, dtype=torch.bfloat16)
    backend = TritonPagedAttention()
    for batch in batches:  # plans are copied to the device outside of the capture
        backend.attend(q, layer, batch, dim**-0.5)
    seconds = timed(lambda i: backend.attend(q, layer, batches[i % sets], dim**-0.5), 2 * sets)
    share = read / seconds / COPY[0]
    row("decode", f"{heads}/{kv_heads}/{dim} {name}, blocks of {block_size}",
        f"{seconds * 1e6:9.1f} us {read / seconds / 1e12:6.2f} TB/s {share:5.0%} of copy")  # fmt: skip


def prefill() -> None:
    for (heads, kv_heads, dim), tokens in itertools.product(((32, 8, 128), (14, 2, 64)), (512, 4096, 16384)):
        if not late():
            prefill_row(heads, kv_heads, dim, tokens)


def prefill_row(heads: int, kv_heads: int, dim: int, tokens: int) -> None:
    [batch], blocks = batch_of([tokens], [tokens], 16, 1)
    layer = torch.randn(blocks, 2, kv_heads, 16, dim, device=DEVICE, dtype=torch.bfloat16)
    q = torch.randn(tokens, heads, dim, device=DEVICE, dtype=torch.bfloat16)
    backend = TritonPagedAttention()
    backend.attend(q, layer, batch, dim**-0.5)
    work = 2 * heads * dim * tokens * tokens  # two products, half of each masked
    calls = 8 if tokens < 1000 else 2
    seconds = timed(lambda _: backend.attend(q, layer, batch, dim**-0.5), calls)
    dq, dk, dv = [torch.randn(1, h, tokens, dim, device=DEVICE, dtype=q.dtype) for h in (heads, kv_heads, kv_heads)]
    sdpa = timed(lambda _: F.scaled_dot_product_attention(dq, dk, dv, is_causal=True, enable_gqa=True), calls)
    speed = f"{seconds * 1e6:9.1f} us {work / seconds / 1e12:5.0f} TFLOP/s"
    row("prefill", f"{heads}/{kv_heads}/{dim} {tokens} tokens", f"{speed}; SDPA, dense {work / sdpa / 1e12:5.0f}")


# --- speed of the engine ---------------------------------------------------------------------------------------------


SMALL = (896, 24, 14, 2, 64, 151936)  # 0.5B
LARGE = (4096, 32, 32, 8, 128, 128256)  # 8B


def steps() -> None:
    for name, size in (("0.5B", SMALL), ("8B", LARGE)):
        if late():
            return
        model = random_llama(*size, torch.bfloat16)
        for graphs in (False, True):
            served = engine_of(model, 5000, graphs=graphs, rows=64, longest=2048, max_num_batched_tokens=8192)
            for rows in (1, 64):
                step_row(served, rows, f"{name}, {rows} sequences, {'graphs' if graphs else 'no graphs'}")
            row("steps", f"{name} graphs", served.executor.graphs_note)  # type: ignore[attr-defined]
            served.close()
        del model
        torch.cuda.empty_cache()


def step_row(served: LLMEngine, rows: int, name: str) -> None:
    for i in range(rows):
        served.add_request(f"s{i}", [7 + i] * 512, SamplingParams(temperature=0.0, max_tokens=60))
    inside: list[float] = []
    original = served.executor.execute

    def execute(plan: Any) -> Any:
        output = original(plan)
        inside.append(output.model_seconds)
        return output

    served.executor.execute = execute  # type: ignore[method-assign]
    whole: list[float] = []
    while served.has_unfinished_requests():
        started = time.perf_counter()
        served.step()
        whole.append(time.perf_counter() - started)
    served.executor.execute = original  # type: ignore[method-assign]
    step, model = sorted(whole)[len(whole) // 2], sorted(inside)[len(inside) // 2]
    row(
        "steps", name, f"{step * 1e3:7.2f} ms, of it model {model * 1e3:7.2f} ms, engine {(step - model) * 1e6:6.0f} us"
    )


def throughput() -> None:
    from transformers import GenerationConfig

    model = random_llama(*SMALL, torch.bfloat16)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, int(n)).tolist() for n in rng.integers(16, 256, 256)]
    count = 128
    served = engine_of(model, 8000, graphs=True, rows=256, longest=1024, max_num_batched_tokens=8192)
    generated(served, prompts[:2], 4)
    started = time.perf_counter()
    generated(served, prompts, count)
    ours = len(prompts) * count / (time.perf_counter() - started)
    served.close()
    row("throughput", "0.5B, 256 sequences", f"{ours:9.0f} tokens/s")
    if late():
        return
    model.set_attn_implementation("sdpa")
    config = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
    started = time.perf_counter()
    out = model.generate_batch(inputs=prompts, generation_config=config)
    theirs = sum(len(one.generated_tokens) for one in out.values()) / (time.perf_counter() - started)
    row(
        "throughput",
        "the same by transformers' continuous batching",
        f"{theirs:9.0f} tokens/s, we {ours / theirs:.1f} x",
    )


PARTS: dict[str, Callable[[], None]] = {
    "kernels": kernels,
    "engine": engine,
    "decode": decode,
    "prefill": prefill,
    "steps": steps,
    "throughput": throughput,
}
SPEED = ("decode", "prefill", "steps", "throughput")


def main() -> int:
    if not ARGS.dry and not torch.cuda.is_available():
        print("no CUDA device; --dry checks the script on the CPU")
        return 2
    if not ARGS.dry:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    wanted = ARGS.only.split(",") if ARGS.only else list(PARTS)
    for name in wanted:
        if (ARGS.dry and name in SPEED) or late():
            continue
        try:
            with torch.inference_mode():
                PARTS[name]()
        except Exception:
            traceback.print_exc()
            row(name, "an exception", traceback.format_exc().strip().splitlines()[-1][:120], False)
        if not ARGS.dry:
            torch.cuda.empty_cache()
    print(f"{len(FAILED)} wrong" + "".join(f"\n  {name}" for name in FAILED))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
