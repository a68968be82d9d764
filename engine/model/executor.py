"""The executor that runs a transformers model over paged KV: a step's inputs, logits and tokens, and the two pools."""

from __future__ import annotations

from collections import deque
from itertools import chain
from statistics import median
from time import perf_counter

import numpy as np
import torch

from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, ExecutorRates, StepOutput, StepPlan
from vtop.engine.model.compile import uncompile
from vtop.engine.model.graphs import DecodeGraphs, GraphOptions, capture
from vtop.engine.model.kv_cache import HostCache, KVCache
from vtop.engine.model.linear import Packing
from vtop.engine.model.model import LoadedModel
from vtop.engine.model.sampler import Sampler, each_or_alone, likeliest_of, logprobs_of
from vtop.engine.model.sizing import available_memory, check_resize
from vtop.engine.request import Sequence
from vtop.kernels.api import AttentionBatch, IntArray
from vtop.kernels.registry import block_copy

TRIAL_BLOCKS = 8
REMEMBERED = 31  # rates are medians of this many latest measurements, so that one slow step moves nothing
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


class LogitRows:
    """Which packed tokens need logits: the last of every sampling chunk, and the prompt tokens that want theirs.

    sampling: (chunk index, row among the logits) of every chunk that samples.
    prompts: (chunk index, first row among the logits, count).
    """

    def __init__(self, chunks: list[Chunk], batch: AttentionBatch) -> None:
        starts = batch.query_starts.tolist()
        sampling = [i for i, chunk in enumerate(chunks) if chunk.sample]
        self.prompts: list[tuple[int, int, int]] = []
        asking = [i for i, chunk in enumerate(chunks) if _prompt_rows(chunk)]
        if not asking:
            self.sampling = [(i, row) for row, i in enumerate(sampling)]
            self._packed = [starts[i + 1] - 1 for i in sampling]
            self._all = len(self._packed) == batch.num_tokens
            return
        packed: list[int] = []
        place: dict[int, int] = {}  # packed token -> row
        for i in asking:
            count = _prompt_rows(chunks[i])
            self.prompts.append((i, len(packed), count))
            for token in range(starts[i], starts[i] + count):
                place[token] = len(packed)
                packed.append(token)
        self.sampling = []
        for i in sampling:
            token = starts[i + 1] - 1
            if token not in place:
                place[token] = len(packed)
                packed.append(token)
            self.sampling.append((i, place[token]))
        self._packed, self._all = packed, False

    def index(self, device: torch.device) -> torch.Tensor | None:
        """[R] packed tokens whose logits are wanted, int64; None means all."""
        if self._all:
            return None
        # A step that samples nothing still needs a valid, small index.
        return torch.tensor(self._packed or [0], dtype=torch.int64).to(device)


def _prompt_rows(chunk: Chunk) -> int:
    """How many of the chunk's tokens predict a prompt token whose log-probability is asked for."""
    if chunk.sequence.request.params.prompt_logprobs is None:
        return 0
    return max(0, min(chunk.num_tokens, chunk.sequence.prompt_len - 1 - chunk.start))


class RateMeter:
    """Collects measurements; `rates` tells what they say. `bytes_per_block` is K and V of one block, all layers."""

    def __init__(self, bytes_per_block: int) -> None:
        self.bytes_per_block = bytes_per_block
        self._swaps: deque[float] = deque(maxlen=REMEMBERED)  # bytes per second
        self._prefills: deque[float] = deque(maxlen=REMEMBERED)  # tokens per second

    def swapped(self, blocks: int, seconds: float) -> None:
        """So many blocks were moved between the pools, either way, in so many seconds."""
        if blocks and seconds > 0:
            self._swaps.append(blocks * self.bytes_per_block / seconds)

    def computed(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step's forward pass took so long. It counts when most of its tokens were of prompts."""
        if prefill_tokens > decode_tokens and seconds > 0:
            self._prefills.append((prefill_tokens + decode_tokens) / seconds)

    @property
    def rates(self) -> ExecutorRates:
        return ExecutorRates(
            swap_bytes_per_second=median(self._swaps) if self._swaps else 0.0,
            prefill_tokens_per_second=median(self._prefills) if self._prefills else 0.0,
            bytes_per_block=self.bytes_per_block,
        )
