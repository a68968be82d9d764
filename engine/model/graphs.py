"""Decode steps as CUDA graphs: one launch per step instead of some ten per layer.

A graph is captured per bucket of batch size. A step takes the smallest bucket that holds it and fills it up with padded
rows: sequences of one token in a spare block that belongs to nobody, so that every row is an ordinary one. Inputs and
the attention's plan lie in tensors that stay where they are; a step refills them, replays, and reads the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from vtop.engine.model.model import LoadedModel
from vtop.kernels.api import NO_BLOCK, AttentionBatch, IntArray, allocate_cache

BYTES_PER_GRAPH = 4 << 20  # what a further graph takes beside the memory it shares, for sizing the KV pool


class Graph(Protocol):
    """What was captured."""

    def replay(self) -> None:
        """Do it again, on the tensors that are in it."""
        ...


MakeGraph = Callable[[Callable[[], None]], Graph]
"""Captures what a function does on the device. The function may be called before, to warm up."""


class StaticPlan(Protocol):
    """A backend's tensors for steps of one size; see kernels/gpu/plan.py."""

    storage: torch.Tensor

    def bind(self, batch: AttentionBatch) -> None:
        """Make the captured batch use this plan."""
        ...

    def update(self, batch: AttentionBatch) -> None:
        """Take another batch of the same size."""
        ...


@runtime_checkable
class PlansAhead(Protocol):
    """An attention backend whose steps can be captured (see TritonPagedAttention)."""

    def static_plan(
        self,
        rows: int,
        max_context: int,
        *,
        block_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        windows: Sequence[int | None],
        storage: torch.Tensor | None,
    ) -> StaticPlan:
        """A plan for steps of `rows` decodes; `windows` are those of all layers (None: full attention)."""
        ...


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How to capture. `max_context` is in tokens."""

    backend: PlansAhead
    max_rows: int
    max_context: int
    make_graph: MakeGraph


class CudaCapture:
    """Captures CUDA graphs that share one memory pool; only one of them may be in use at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], None]) -> Graph:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are compiled and libraries set up outside of the capture
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        replayable: Graph = graph
        return replayable


def buckets(max_rows: int) -> list[int]:
    """Batch sizes that are captured: 1, 2, 4, multiples of 8 up to 256, of 16 up to 512, and `max_rows`."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return sorted({size for size in sizes if size < max_rows} | {max_rows})


def bucket_for(rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending `sizes` that holds `rows`; None when none does."""
    return next((size for size in sizes if size >= rows), None)


def pad_decodes(batch: AttentionBatch, rows: int, spare_block: int) -> AttentionBatch:
    """A batch of decodes with padded rows up to `rows`: one token each, in the first slot of `spare_block`."""
    extra = rows - batch.num_sequences
    if extra == 0:
        return batch
    ones = np.ones(extra, dtype=np.int64)
    tables = np.full((extra, batch.tables.shape[1]), NO_BLOCK, dtype=np.int64)
    tables[:, 0] = spare_block

    def longer(array: IntArray, tail: IntArray) -> IntArray:
        return np.concatenate((array, tail))

    return AttentionBatch(
        query_lens=longer(batch.query_lens, ones),
        context_lens=longer(batch.context_lens, ones),
        tables=np.concatenate((batch.tables, tables)),
        query_starts=np.arange(rows + 1, dtype=np.int64),
        positions=longer(batch.positions, ones - 1),
        slots=longer(batch.slots, ones * spare_block * batch.block_size),
        block_size=batch.block_size,
        device=batch.device,
    )


@dataclass(slots=True)
class _Captured:
    graph: Graph
    plan: StaticPlan


class DecodeGraphs:
    """All graphs of a model over one cache, captured when this is made (in inference mode).

    `spare_block`: a block of the cache that no sequence gets. Valid until the cache moves; `bytes` is the device
    memory that graphs, inputs and logits take. `sizes`: ascending batch sizes, by default `buckets`. Raises whatever
    the model or the capture raises.
    """

    def __init__(
        self,
        model: LoadedModel,
        options: GraphOptions,
        block_size: int,
        spare_block: int,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._model = model
        self._options = options
        self._block_size = block_size
        self._spare = spare_block
        self._captured: dict[int, _Captured] = {}
        self._logits: torch.Tensor | None = None
        self.sizes = list(sizes) if sizes is not None else buckets(options.max_rows)
        device = model.spec.device
        before = _free(device)
        self._inputs = torch.zeros(2 * options.max_rows, dtype=torch.int64, device=device)  # ids, then positions
        storage: torch.Tensor | None = None
        with torch.inference_mode():
            for rows in reversed(self.sizes):  # the largest first: the others fit into its memory
                captured = self._captured[rows] = self._capture(rows, storage)
                storage = captured.plan.storage
        self.bytes = max(0, before - _free(device))

    def fits(self, batch: AttentionBatch) -> bool:
        """Whether the step is one of decodes that some graph holds."""
        return (
            batch.num_tokens == batch.num_sequences
            and batch.num_sequences <= self.sizes[-1]
            and int(batch.context_lens.max()) <= self._options.max_context
        )

    def run(self, tokens: IntArray, batch: AttentionBatch) -> torch.Tensor:
        """One step: tokens [S] on the host -> logits [S, vocab], overwritten by the next run."""
        rows = bucket_for(batch.num_sequences, self.sizes)
        if rows is None or self._logits is None:
            raise ValueError(f"{batch.num_sequences} decodes fit in no graph; ask `fits` first")
        captured = self._captured[rows]
        padded = pad_decodes(batch, rows, self._spare)
        captured.plan.update(padded)
        host = torch.zeros(2 * rows, dtype=torch.int64, pin_memory=self._inputs.device.type == "cuda")
        numbers = host.numpy()
        numbers[: len(tokens)] = tokens
        numbers[rows:] = padded.positions
        self._inputs[: 2 * rows].copy_(host, non_blocking=True)
        captured.graph.replay()
        return self._logits[: batch.num_sequences]

    def _capture(self, rows: int, storage: torch.Tensor | None) -> _Captured:
        spec = self._model.spec
        plan = self._options.backend.static_plan(
            rows, self._options.max_context, block_size=self._block_size, heads=spec.num_heads,
            kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, dtype=spec.dtype, device=spec.device,
            windows=[None, *sorted(spec.windows)], storage=storage,
        )  # fmt: skip
        batch = AttentionBatch.build(
            [1] * rows, [1] * rows, [[self._spare]] * rows, self._block_size, spec.device
        )  # fmt: skip
        plan.update(batch)
        plan.bind(batch)
        ids, positions = self._inputs[:rows], self._inputs[rows : 2 * rows]
        if self._logits is None:
            self._logits = torch.empty_like(self._model.forward(ids, positions, batch, None))
        logits = self._logits[:rows]

        def step() -> None:
            logits.copy_(self._model.forward(ids, positions, batch, None))

        return _Captured(self._options.make_graph(step), plan)


def capture(
    model: LoadedModel, options: GraphOptions | None, block_size: int, spare_block: int
) -> tuple[DecodeGraphs | None, str]:
    """(graphs or None, one line about them). A model that cannot be captured runs as it is, and the line says why."""
    if options is None:
        return None, "no CUDA graphs"
    try:
        graphs = DecodeGraphs(model, options, block_size, spare_block)
    except Exception as error:  # of the model's own code, of the driver, out of memory: all are survivable
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return None, f"no CUDA graphs: decodes cannot be captured ({reason[:160]})"
    note = f"CUDA graphs for up to {options.max_rows} decodes, {graphs.bytes / (1 << 20):.0f} MiB"
    return graphs, note


def graph_memory(model: LoadedModel, options: GraphOptions, block_size: int) -> int:
    """Estimated bytes of all graphs, from capturing the largest over a cache of one block; 0 when it fails.

    Changes the model's cache: `use_cache` must be called afterwards.
    """
    spec = model.spec
    model.use_cache(
        allocate_cache(1, spec.num_layers, spec.num_kv_heads, block_size, spec.head_dim, spec.dtype, spec.device)
    )
    try:
        taken = DecodeGraphs(model, options, block_size, 0, [options.max_rows]).bytes
    except Exception:  # told when the real ones are captured
        return 0
    return taken + BYTES_PER_GRAPH * (len(buckets(options.max_rows)) - 1)


def _free(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])
