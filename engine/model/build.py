"""From an EngineConfig to a TorchExecutor: device, threads, backend, model, and pools that fit beside it."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.executor import EngineFacts
from vtop.engine.model.compile import compile_layers, find_compiler, uncompile
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.graphs import CudaCapture, GraphOptions, PlansAhead, graph_memory
from vtop.engine.model.kv_cache import KVCache
from vtop.engine.model.linear import pack_model
from vtop.engine.model.load import load_pretrained, torch_dtype
from vtop.engine.model.model import LoadedModel, load_model
from vtop.engine.model.sizing import (
    GpuMemory,
    available_memory,
    bytes_per_block,
    size_host_pool,
    size_pool,
)
from vtop.engine.model.source import Progress, no_progress, resolve
from vtop.kernels.api import AttentionBatch
from vtop.kernels.registry import BackendUnavailable, get_backend, warm_up

SMALL_MODEL = 20_000_000  # parameters; below, one thread is fastest on cpu
MOST_CAPTURED = 512  # sequences; larger batches keep the device busy without graphs


def build_executor(
    config: EngineConfig, progress: Progress | None = None, model: Any | None = None, tokenizer: Any | None = None
) -> tuple[TorchExecutor, Any | None, EngineFacts]:
    """Load `config.model` (or take `model`, a ready transformers model, with its tokenizer) and size the pool.

    Returns (executor, tokenizer or None, facts). `progress(stage, done, total)` is called from this thread. Raises
    BadValue or ModelRefused with one line of text.
    """
    progress = progress or no_progress
    device = pick_device(config.device)
    try:
        backend = get_backend(config.attention_backend, device)
    except BackendUnavailable as error:
        raise BadValue("attention_backend", config.attention_backend, error.remedy) from None
    if model is None:
        source = resolve(config.model, progress=progress)
        name = source.name
        model, tokenizer = load_pretrained(source, torch_dtype(config.dtype, device), device, progress)
    else:
        device = model.device
        name = getattr(model.config, "_name_or_path", "") or type(model).__name__
    if device.type == "cpu":
        set_threads(model, config)
    progress("preparing attention kernels", 0, None)  # compiles, the first time on a machine
    try:
        strict = config.attention_backend != "auto"
        backend = warm_up(backend, head_size(model.config), model.dtype, strict=strict)
    except BackendUnavailable as error:
        raise BadValue("attention_backend", config.attention_backend, error.remedy) from None
    progress("checking the model", 0, None)
    # layers to be compiled are left as torch knows them: our kernels would cut every graph into pieces
    compiling = config.compile and find_compiler() is not None
    pack = config.cpu_pack_weights and device.type == "cpu" and not compiling
    packing = pack_model(model.eval()) if pack else None
    try:
        loaded = load_model(model, name=name, backend=backend, tokenizer=tokenizer)
    except BaseException:
        if packing is not None:
            packing.undo()
        raise
    try:
        spec = loaded.spec
        limit = spec.max_model_len
        if config.max_model_len is not None and config.max_model_len > limit:
            raise BadValue("max_model_len", config.max_model_len, f"{name} goes up to {limit}; give at most that")
        max_model_len = config.max_model_len or limit
        block_bytes = bytes_per_block(
            spec.num_layers, spec.num_kv_heads, spec.head_dim, config.block_size, spec.dtype.itemsize
        )
        gpu = graphs = None
        compiled = ""
        if config.compile:
            progress("compiling the layers", 0, None)
            compiled = compile_layers(loaded, config.block_size)
        if device.type == "cuda":
            progress("measuring memory", 0, None)
            gpu = profile_gpu(loaded, config, max_model_len)
            if not config.enforce_eager and isinstance(backend, PlansAhead):
                graphs = GraphOptions(backend, min(config.max_num_seqs, MOST_CAPTURED), max_model_len, CudaCapture())
                reserved = graph_memory(loaded, graphs, config.block_size)
                gpu = replace(gpu, activations=gpu.activations + reserved)
        available = available_memory()
        sizing = size_pool(config, block_bytes, max_model_len, available=available, gpu=gpu)
        if available is not None and gpu is None:
            available -= sizing.num_blocks * block_bytes
        host = size_host_pool(config, block_bytes, max_model_len, available=available, pinned=gpu is not None)
        progress("allocating the KV pools", 0, None)
        executor = TorchExecutor(loaded, sizing.num_blocks, config.block_size, host.num_blocks, packing, graphs)
    except BaseException:
        uncompile(loaded)
        loaded.close()
        if packing is not None:
            packing.undo()
        raise
    facts = EngineFacts(
        model=name,
        device=str(device),
        dtype=str(spec.dtype).removeprefix("torch."),
        backend=loaded.backend.name,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        kv_note="; ".join(filter(None, (sizing.explanation, executor.graphs_note if graphs else ""))),
        compile_note=compiled,
        num_host_blocks=host.num_blocks,
        host_note=host.explanation if host.num_blocks else "no host pool",
        backend_note=loaded.backend.note,
    )
    return executor, tokenizer, facts


def head_size(config: Any) -> int:
    """Numbers per attention head as a transformers config has it, or a guess; no layer was seen yet."""
    config = config.get_text_config()
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return size


def set_threads(model: Any, config: EngineConfig) -> None:
    """Choose how many threads torch uses in this thread's calls.

    A small model's matrices are too small to share out: its steps wait for the slower of two threads, and longer the
    busier the machine is.
    """
    threads = config.cpu_threads
    if threads is None and "OMP_NUM_THREADS" not in os.environ and model.num_parameters() < SMALL_MODEL:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)


def pick_device(name: str) -> torch.device:
    """`auto` takes cuda when there is one. Raises BadValue when cuda is asked for and absent."""
    if name == "cuda" and not torch.cuda.is_available():
        raise BadValue("device", name, "torch finds no CUDA device; use cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def profile_gpu(loaded: LoadedModel, config: EngineConfig, max_model_len: int) -> GpuMemory:
    """Measure the activations of the largest step (a full token budget, every row sampled that can be)."""
    spec = loaded.spec
    tokens = config.token_budget(max_model_len)
    count = min(config.max_num_seqs, tokens)
    bounds = np.linspace(0, tokens, count + 1).astype(np.int64).tolist()
    lengths = [min(end - start, max_model_len) for start, end in pairwise(bounds)]
    needs = [-(-length // config.block_size) for length in lengths]
    firsts = np.cumsum([0, *needs]).tolist()
    tables = [list(range(first, first + need)) for first, need in zip(firsts, needs, strict=False)]
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(spec.device)
    cache = KVCache(
        sum(needs), spec.num_layers, spec.num_kv_heads, config.block_size, spec.head_dim, spec.dtype, spec.device
    )
    loaded.use_cache(cache.tensor)
    torch.cuda.reset_peak_memory_stats(spec.device)
    before = torch.cuda.memory_allocated(spec.device)
    batch = AttentionBatch.build(lengths, lengths, tables, config.block_size, spec.device)
    with torch.inference_mode():
        ids = torch.zeros(batch.num_tokens, dtype=torch.int64, device=spec.device)
        rows = torch.from_numpy(batch.query_starts[1:] - 1).to(spec.device)
        logits = loaded.forward(ids, torch.from_numpy(batch.positions).to(spec.device), batch, rows)
        torch.softmax(logits.float(), dim=-1)  # the sampler's copies of the logits
    torch.cuda.synchronize(spec.device)
    peak = torch.cuda.max_memory_allocated(spec.device) - before
    del cache, logits
    torch.cuda.empty_cache()
    return GpuMemory(total, free, peak)
