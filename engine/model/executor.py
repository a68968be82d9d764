"""The executor that runs a transformers model over paged KV, and the factory that builds one from an EngineConfig."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain, pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, ExecutorRates, StepOutput, StepPlan
from vtop.engine.facts import EngineFacts
from vtop.engine.model.compile import compile_layers, find_compiler, uncompile
from vtop.engine.model.graphs import CudaCapture, DecodeGraphs, GraphOptions, capture, graph_memory
from vtop.engine.model.host_cache import HostCache
from vtop.engine.model.kv_cache import KVCache
from vtop.engine.model.linear import Packing, pack_model
from vtop.engine.model.logit_rows import LogitRows
from vtop.engine.model.model import LoadedModel, load_model
from vtop.engine.model.rates import RateMeter
from vtop.engine.model.sampler import Sampler, each_or_alone, likeliest_of, logprobs_of
from vtop.engine.model.sizing import (
    GpuMemory,
    available_memory,
    bytes_per_block,
    check_resize,
    size_host_pool,
    size_pool,
)
from vtop.engine.model.source import Progress, no_progress, resolve
from vtop.engine.request import Sequence
from vtop.kernels.api import AttentionBatch, IntArray
from vtop.kernels.registry import BackendUnavailable, block_copy, get_backend, warm_up

SMALL_MODEL = 20_000_000  # parameters; below, one thread is fastest on cpu
TRIAL_BLOCKS = 8
MOST_CAPTURED = 512  # sequences; larger batches keep the device busy without graphs
TRIAL_BYTES = 4 << 20  # moved at most, each way, to measure the first swap rate; a block at least


class TorchExecutor:
    """Computes plans with a loaded model. See `Executor` for the contract; one thread at a time.

    Takes over `model` (a `load_model` result): `close` gives the model its own attention back, undoes `packing` (what
    `pack_model` did to it) and drops the KV cache. `graphs`: run decodes as CUDA graphs, over a pool that has one block
    more than `num_blocks`, for padded rows; `graphs_note` says on one line what came of it.
    """

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        packing: Packing | None = None,
        graphs: GraphOptions | None = None,
    ) -> None:
        spec = model.spec
        self._graph_options = graphs
        self._spare_blocks = 0 if graphs is None else 1
        self._graphs: DecodeGraphs | None = None
        self.graphs_note = ""
        self._packing = packing
        self.model = model
        self.block_size = block_size
        self.eos_token_ids = spec.eos_token_ids
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.cache = KVCache(
            num_blocks + self._spare_blocks,
            spec.num_layers,
            spec.num_kv_heads,
            block_size,
            spec.head_dim,
            spec.dtype,
            spec.device,
            block_copy(model.backend),
        )
        self.host_cache = HostCache(num_host_blocks, self.cache.tensor, pin=spec.device.type == "cuda")
        self._meter = RateMeter(self.cache.bytes_per_block)
        self._try_swapping()
        self._try_copying()
        self._sampler = Sampler(spec.eos_token_ids)
        self._closed = False
        model.open()
        self._use_cache()

    @property
    def bytes_per_block(self) -> int:
        return self.cache.bytes_per_block

    @property
    def rates(self) -> ExecutorRates:
        return self._meter.rates

    def execute(self, plan: StepPlan) -> StepOutput:
        """Swap and copy blocks, write K/V of every chunk, and sample where asked.

        Raises whatever the model raises, FloatingPointError when logits are not numbers, and ValueError when a chunk's
        block table does not cover its tokens.
        """
        if self._closed:
            raise RuntimeError("the executor is closed")
        with torch.inference_mode():
            swapped = self._swap(plan.swap_out, plan.swap_in)
            self.cache.copy(plan.copies)
            if not plan.chunks:
                return StepOutput([], swap_seconds=swapped)
            started = perf_counter()
            tokens, batch = self._inputs(plan.chunks)
            self.cache.written(int(batch.slots.max()) // self.block_size)
            rows = LogitRows(plan.chunks, batch)
            index = rows.index(self.model.spec.device)
            prepared = perf_counter()
            logits = self._forward(tokens, batch, index)
            _synchronize(logits)
            computed = perf_counter()
            output = self._sample(plan.chunks, rows, logits)
        output.prepare_seconds = prepared - started
        output.model_seconds = computed - prepared
        output.sample_seconds = perf_counter() - computed
        output.swap_seconds = swapped
        decodes = sum(chunk.num_tokens == 1 for chunk in plan.chunks)
        self._meter.computed(batch.num_tokens - decodes, decodes, output.model_seconds)
        return output

    def _swap(self, out: list[tuple[int, int]], back: list[tuple[int, int]]) -> float:
        """Move blocks to the host, then back from it; returns seconds."""
        if not (out or back):
            return 0.0
        started = perf_counter()
        self.host_cache.swap_out(self.cache.tensor, out)
        self.host_cache.swap_in(self.cache.tensor, back)
        if back:
            self.cache.written(max(target for _, target in back))
        _synchronize(self.cache.tensor)  # only so that the time is known; the order of the stream is enough
        seconds = perf_counter() - started
        self._meter.swapped(len(out) + len(back), seconds)
        return seconds

    def _try_swapping(self) -> None:
        """Measure a first swap rate. The pools hold nothing yet, and the blocks return to where they were."""
        most = max(1, min(TRIAL_BLOCKS, TRIAL_BYTES // self.bytes_per_block))
        blocks = range(min(most, self.num_blocks, self.num_host_blocks))
        pairs = [(block, block) for block in reversed(blocks)]  # downwards, so that each is a copy of its own
        with torch.inference_mode():
            for _ in range(2):  # the first time, pages are touched that never were
                _synchronize(self.cache.tensor)
                started = perf_counter()
                self.host_cache.swap_out(self.cache.tensor, pairs)
                self.host_cache.swap_in(self.cache.tensor, pairs)
        _synchronize(self.cache.tensor)
        self._meter.swapped(2 * len(pairs), perf_counter() - started)

    def _try_copying(self) -> None:
        """Copy a block while the pools hold nothing, so that a copy that is compiled first holds up no step."""
        if self.num_blocks > 1:
            with torch.inference_mode():
                self.cache.copy([(0, 1)])

    def resize(self, num_blocks: int) -> None:
        """Give the pool another size; K/V of blocks below both sizes are kept. Raises BadValue when it does not fit."""
        if num_blocks > self.num_blocks and self.model.spec.device.type == "cpu":
            check_resize(num_blocks, self.bytes_per_block, available_memory())
        elif num_blocks < 1:
            raise BadValue("num_blocks", num_blocks, "give at least 1")
        self._graphs = None  # they read the pool that is about to go
        try:
            self.cache.resize(num_blocks + self._spare_blocks)
        except RuntimeError as error:  # torch's allocators, host or device
            raise BadValue(
                "num_blocks", num_blocks, "cannot be allocated beside the pool there is; give less"
            ) from error
        finally:
            self.num_blocks = self.cache.num_blocks - self._spare_blocks
            self._use_cache()

    def close(self) -> None:
        """Give back memory and hooks. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            uncompile(self.model)
            self.model.close()
            if self._packing is not None:
                self._packing.undo()
            self._graphs = None
            del self.cache, self.host_cache

    def _use_cache(self) -> None:
        """Attend over the pool where it lies now; graphs are captured anew."""
        self.model.use_cache(self.cache.tensor)
        self._graphs, self.graphs_note = capture(self.model, self._graph_options, self.block_size, self.num_blocks)

    def _forward(self, tokens: IntArray, batch: AttentionBatch, index: torch.Tensor | None) -> torch.Tensor:
        """tokens [T] -> logits [R, vocab] of the packed tokens `index` (None: all); a next call may reuse them."""
        if self._graphs is not None and self._graphs.fits(batch):
            logits = self._graphs.run(tokens, batch)
            return logits if index is None else logits.index_select(0, index)
        device = batch.device
        ids, positions = torch.from_numpy(tokens).to(device), torch.from_numpy(batch.positions).to(device)
        return self.model.forward(ids, positions, batch, index)

    def _inputs(self, chunks: list[Chunk]) -> tuple[IntArray, AttentionBatch]:
        device = self.model.spec.device
        batch = AttentionBatch.build(
            [chunk.num_tokens for chunk in chunks],
            [chunk.start + chunk.num_tokens for chunk in chunks],
            [chunk.sequence.blocks for chunk in chunks],
            self.block_size,
            device,
        )
        tokens = np.fromiter(chain.from_iterable(map(_tokens, chunks)), dtype=np.int64, count=batch.num_tokens)
        return tokens, batch

    def _sample(self, chunks: list[Chunk], rows: LogitRows, logits: torch.Tensor) -> StepOutput:
        """logits [R, vocab] of `rows`."""
        output = StepOutput([None] * len(chunks))
        owners: list[int] = []
        sequences: list[Sequence] = []
        places: list[int] = []
        beams: list[tuple[int, int]] = []
        for i, row in rows.sampling:
            chunk = chunks[i]
            if chunk.top:
                beams.append((i, row))
                continue
            for sequence in (chunk.sequence, *chunk.forks):
                owners.append(i)
                sequences.append(sequence)
                places.append(row)
        if sequences:
            drawn = each_or_alone(
                lambda some: self._sampler.sample(
                    _take(logits, [places[j] for j in some]), [sequences[j] for j in some]
                ),
                len(sequences),
            )
            for i, token in zip(owners, drawn, strict=True):
                if output.tokens[i] is None:
                    output.tokens[i] = token
                else:
                    output.forked.setdefault(i, []).append(token)
        if beams:
            found = each_or_alone(
                lambda some: likeliest_of(
                    _take(logits, [beams[j][1] for j in some]), [chunks[beams[j][0]].top for j in some]
                ),
                len(beams),
            )
            for (i, _), token in zip(beams, found, strict=True):
                output.tokens[i] = token
        self._report_prompts(chunks, rows, logits, output)
        return output

    @staticmethod
    def _report_prompts(chunks: list[Chunk], rows: LogitRows, logits: torch.Tensor, output: StepOutput) -> None:
        for i, first, count in rows.prompts:
            chunk = chunks[i]
            wanted = chunk.sequence.request.params.prompt_logprobs or 0
            targets = chunk.sequence.token_ids[chunk.start + 1 : chunk.start + 1 + count]
            found = logprobs_of(logits[first : first + count], targets, [wanted] * count)
            output.prompt_logprobs[i] = [(chunk.start + 1 + j, own, top) for j, (own, top) in enumerate(found)]


def _tokens(chunk: Chunk) -> list[int]:
    if chunk.num_tokens == 1:
        return [chunk.sequence.token_ids[chunk.start]]
    return chunk.sequence.token_ids[chunk.start : chunk.start + chunk.num_tokens]


def _take(logits: torch.Tensor, places: list[int]) -> torch.Tensor:
    """Rows of logits [R, vocab], each as often as it is named."""
    if places == list(range(logits.shape[0])):
        return logits
    return logits.index_select(0, torch.tensor(places, device=logits.device))


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)  # so that what was timed is done


def build_executor(
    config: EngineConfig, progress: Progress | None = None, model: Any | None = None, tokenizer: Any | None = None
) -> tuple[TorchExecutor, Any | None, EngineFacts]:
    """Load `config.model` (or take `model`, a ready transformers model, with its tokenizer) and size the pool.

    Returns (executor, tokenizer or None, facts). `progress(stage, done, total)` is called from this thread. Raises
    BadValue or ModelRefused with one line of text.
    """
    from vtop.engine.model.load import load_pretrained, torch_dtype

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
            if not config.enforce_eager and hasattr(backend, "static_plan"):
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
