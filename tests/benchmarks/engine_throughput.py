"""Output tokens per second of vtop beside transformers (and vLLM or llama.cpp where they are installed), on SmolLM2.

    python tests/benchmarks/engine_throughput.py [--workloads a b c] [--dtype bfloat16] [--repeats 3]
        [--engines vtop generate continuous] [--vllm-python PATH] [--llama-cpp FILE.gguf] [--profile]

Workloads: (a) one request of 128 tokens in and 128 out; (b) 16 of them; (c) 64 at once, 32-512 in and 16-256 out, one
seed. Token ids are random and new in each repeat; greedy, the end token ignored, no prefix cache. Each engine runs in
a process of its own, one after the other, in this process's group; medians over repeats. transformers' continuous
batching takes many minutes for (c); `--continuous-repeats 1` measures it once. `--profile` says where vtop's time goes
instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

Work = list[tuple[list[int], int]]
"""(prompt ids, output tokens) of each request."""
Run = Callable[[Work], int]
"""Runs a workload to its end; returns the number of tokens that came out."""

PLAIN_IDS = (100, 49000)  # of SmolLM2's vocabulary: no special tokens
PARTS = ("linear", "attention", "norms and rotary", "rest of the model", "sampling", "inputs", "scheduler and events")


def workload(name: str, repeat: int) -> Work:
    """Repeat r has ids of its own, so that no run finds another's prefixes; lengths are the same in all."""
    rng, lengths = random.Random(f"{name}-{repeat}"), random.Random(20240607)
    if name == "c":
        sizes = [(lengths.randint(32, 512), lengths.randint(16, 256)) for _ in range(64)]
    else:
        sizes = [(128, 128)] * {"a": 1, "b": 16}[name]
    return [([rng.randrange(*PLAIN_IDS) for _ in range(prompt)], out) for prompt, out in sizes]


def measure(run: Run, names: list[str], repeats: Callable[[str], int]) -> dict[str, list[float]]:
    """Tokens per second of each repeat, after a small warm-up."""
    found: dict[str, list[float]] = {}
    for name in names:
        run([(ids[:64], 8) for ids, _ in workload(name, 0)[:16]])
        found[name] = []
        for repeat in range(1, repeats(name) + 1):
            work = workload(name, repeat)
            began = time.perf_counter()
            tokens = run(work)
            found[name].append(tokens / (time.perf_counter() - began))
            print(f"({name}) run {repeat}: {found[name][-1]:.1f} tokens/s", file=sys.stderr, flush=True)
            if tokens != sum(out for _, out in work):
                raise RuntimeError(f"{tokens} tokens came out of workload {name}")
    return found


def vtop_llm(options: argparse.Namespace) -> Any:
    from vtop.engine.llm import LLM

    return LLM(
        model="smollm2",
        device="cpu",
        dtype=options.dtype,
        enable_prefix_caching=False,
        kv_cache_memory=2.0,
        cpu_pack_weights=not options.plain_linears,
    )


def vtop_run(llm: Any) -> Run:
    from vtop.engine.request import SamplingParams

    def run(work: Work) -> int:
        params = [SamplingParams(temperature=0, max_tokens=out, ignore_eos=True) for _, out in work]
        outputs = llm.generate([ids for ids, _ in work], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def transformers_model(options: argparse.Namespace, attention: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from vtop.engine.model.source import resolve

    model: Any = AutoModelForCausalLM.from_pretrained(
        resolve("smollm2").location, dtype=getattr(torch, options.dtype), attn_implementation=attention
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def generate_run(options: argparse.Namespace) -> Run:
    """transformers' generate over one static batch; it takes no mixed lengths."""
    import torch

    model = transformers_model(options, "sdpa")

    def run(work: Work) -> int:
        ids, count = torch.tensor([ids for ids, _ in work]), work[0][1]
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
                pad_token_id=2,
            )  # fmt: skip
        return int(out.numel() - ids.numel())

    return run


def continuous_run(options: argparse.Namespace) -> Run:
    """transformers' continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = transformers_model(options, "paged|sdpa")
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=2),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=32, num_blocks=1600, max_batch_tokens=512, allow_block_sharing=False, use_cuda_graph=False
        ),
    )
    manager.start()

    def run(work: Work) -> int:
        waiting = {manager.add_request(ids, max_new_tokens=out, eos_token_id=-1) for ids, out in work}
        tokens = 0
        while waiting:
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has died")
            elif result.is_finished():
                tokens += len(result.generated_tokens)
                waiting.discard(result.request_id)
        return tokens

    return run


def vllm_run(options: argparse.Namespace) -> Run:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its worker process was seen to wait for ever
    import vllm

    llm = vllm.LLM(
        options.model_folder, dtype=options.dtype, enforce_eager=True, max_model_len=1024, enable_prefix_caching=False
    )

    def run(work: Work) -> int:
        params = [vllm.SamplingParams(temperature=0, max_tokens=out, ignore_eos=True) for _, out in work]
        outputs = llm.generate([{"prompt_token_ids": ids} for ids, _ in work], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def llama_cpp_run(options: argparse.Namespace) -> Run:
    """One request after the other through llama-cpp-python, which has no batches of its own; for workload (a)."""
    import llama_cpp

    llm = llama_cpp.Llama(options.llama_cpp, n_ctx=1024, n_threads=os.cpu_count(), verbose=False)

    def run(work: Work) -> int:
        tokens = 0
        for ids, out in work:
            llm.reset()
            for made, _ in enumerate(llm.generate(ids, temp=0.0, top_k=1), 1):
                if made == out:
                    break
            tokens += made
        return tokens

    return run


@contextmanager
def timed(times: dict[str, float], owner: Any, name: str, part: str, stack: list[str]) -> Iterator[None]:
    """Count the time in a function as `part`, and not as the part that called it."""
    inner = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        stack.append(part)
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            spent = time.perf_counter() - began
            stack.pop()
            times[part] += spent
            if stack:
                times[stack[-1]] -= spent

    with mock.patch.object(owner, name, wrapper):
        yield


def patched(patches: ExitStack, times: dict[str, float], stack: list[str], owner: Any, name: str, part: str) -> None:
    patches.enter_context(timed(times, owner, name, part, stack))


def profile(options: argparse.Namespace) -> None:
    """Milliseconds per step by part. Modules are told apart by what they are; times of the parts do not overlap."""
    from rich.console import Console
    from rich.table import Table
    from torch import nn
    from transformers.models.llama import modeling_llama

    from vtop.engine.engine import LLMEngine
    from vtop.engine.model import linear as pack_linear
    from vtop.engine.model.executor import TorchExecutor
    from vtop.kernels.cpu.linear import LinearTask, RMSNorm

    llm = vtop_llm(options)
    run = vtop_run(llm)
    executor = llm.engine.executor
    table = Table("workload", "steps", *PARTS, "step", title=f"milliseconds per step, {options.dtype}")
    for name in options.workloads:
        run([(ids[:64], 8) for ids, _ in workload(name, 0)[:16]])
        times: dict[str, float] = defaultdict(float)
        stack: list[str] = []
        steps = [0]
        with ExitStack() as patches:
            patch = partial(patched, patches, times, stack)
            for module in executor.model.model.modules():
                kind = type(module).__name__
                if type(module) is nn.Linear and "forward" not in module.__dict__:
                    patch(module, "forward", "linear")
                elif "Rotary" in kind or ("RMSNorm" in kind and "forward" not in module.__dict__):
                    patch(module, "forward", "norms and rotary")
            patch(LinearTask, "__call__", "linear")
            patch(RMSNorm, "__call__", "norms and rotary")
            patch(pack_linear, "rotate", "norms and rotary")
            patch(modeling_llama, "apply_rotary_pos_emb", "norms and rotary")
            patch(executor.model._paged, "run", "attention")
            patch(executor.model, "forward", "rest of the model")
            patch(TorchExecutor, "_sample", "sampling")
            patch(TorchExecutor, "execute", "inputs")
            patch(LLMEngine, "step", "scheduler and events")
            execute = executor.execute

            def counted(plan: Any, execute: Any = execute, steps: list[int] = steps) -> Any:
                steps[0] += 1
                return execute(plan)

            patches.enter_context(mock.patch.object(executor, "execute", counted))
            run(workload(name, 1))
        cells = [f"{1e3 * times[part] / steps[0]:.2f}" for part in PARTS]
        table.add_row(name, str(steps[0]), *cells, f"{1e3 * sum(times.values()) / steps[0]:.2f}")
    Console(width=160).print(table)
    llm.close()


def worker(options: argparse.Namespace) -> None:
    """Measure one engine in this process; the last line of output is JSON."""
    makers: dict[str, Callable[[argparse.Namespace], Run]] = {
        "vtop": lambda o: vtop_run(vtop_llm(o)),
        "generate": generate_run,
        "continuous": continuous_run,
        "vllm": vllm_run,
        "llama.cpp": llama_cpp_run,
    }
    engine = options.worker
    names = [
        name
        for name in options.workloads
        if not (name == "c" and engine == "generate") and not (name != "a" and engine == "llama.cpp")
    ]

    def repeats(name: str) -> int:
        return (engine == "continuous" and options.continuous_repeats) or options.repeats  # type: ignore[no-any-return]

    found = measure(makers[engine](options), names, repeats)
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # engines leave threads and processes behind that would be waited for


def run_worker(engine: str, python: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Start `worker` for an engine and wait for it; empty when it fails or takes too long."""
    command = [python, __file__, *sys.argv[1:], "--worker", engine, "--model-folder", options.model_folder]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        print(f"{engine}: not done within {options.timeout:g} s", file=sys.stderr)
        return {}
    if done.returncode:
        print(f"{engine}: failed with status {done.returncode}", file=sys.stderr)
        return {}
    found: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from vtop.engine.model.source import resolve

    options.model_folder = resolve("smollm2").location
    engines = [(name, sys.executable) for name in options.engines]
    if options.vllm_python:
        engines.append(("vllm", options.vllm_python))
    if options.llama_cpp:
        engines.append(("llama.cpp", sys.executable))
    results = {name: run_worker(name, python, options) for name, python in engines}
    title = f"output tokens/s, {options.dtype} (medians; in brackets vtop's as a multiple)"
    table = Table("engine", *[f"({name})" for name in options.workloads], title=title)
    own = {name: statistics.median(rates) for name, rates in results.get("vtop", {}).items()}
    for engine, found in results.items():
        cells = []
        for name in options.workloads:
            rate = statistics.median(found[name]) if found.get(name) else None
            text = "-" if rate is None else f"{rate:.1f}"
            if rate is not None and engine != "vtop" and name in own:
                text += f" ({own[name] / rate:.2f}x)"
            cells.append(text)
        table.add_row(engine, *cells)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=["a", "b", "c"], default=["a", "b", "c"])
    parser.add_argument("--engines", nargs="+", default=["vtop", "generate", "continuous"])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--continuous-repeats", type=int, help="for continuous batching (else as --repeats)")
    parser.add_argument("--plain-linears", action="store_true", help="vtop with torch's own linear layers")
    parser.add_argument("--vllm-python", help="python of an environment with vLLM for CPU")
    parser.add_argument("--llama-cpp", metavar="GGUF", help="measure llama-cpp-python with this file, workload a")
    parser.add_argument("--profile", action="store_true", help="where vtop's time goes, instead of the comparison")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one engine")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--model-folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
    elif options.profile:
        profile(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
