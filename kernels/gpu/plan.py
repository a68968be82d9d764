"""What the Triton kernels know of a step: small int32 tensors on the device, and how contexts are cut. No triton here.

Everything a step needs travels in one copy from page-locked memory. `plan_step` makes tensors of the step's own sizes;
a `StaticPlan` keeps its tensors where they are and is refilled by `update`, so that launches captured in a CUDA graph
read the new step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vtop.kernels.api import AttentionBatch, IntArray

KEY = "triton"
"""Where a step's TritonPlan lies in AttentionBatch.derived."""

INFO = 8  # leading numbers: width of the decode tables, chunk lengths (a StaticPlan's), width of the prefill tables
PREFILL_WIDTH = INFO - 1
MOST_WINDOWS = INFO - 2
ALIGNED = 4  # sections begin at multiples of 16 bytes: the kernels are compiled for that once

SHORTEST_CHUNK = 128
MOST_SPLITS = 64
DETERMINISTIC_CHUNK = 512
MOST_PROGRAMS = 16384  # of a captured launch; programs without a chunk cost about a third of a nanosecond each


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How long a chunk of context is. One length serves the whole batch.

    A chunk holds about the batch's tokens (times `programs`, the programs per sequence and chunk) shared out evenly to
    `budget` programs, in whole tiles: with less the device would idle, with more the merge would cost more than it
    brings. `fixed`: that many tokens whatever the batch, so that a sequence's sums never depend on its neighbours.
    """

    programs: int
    budget: int
    tile: int
    fixed: int | None = None

    def spans(self, lens: IntArray, window: int | None) -> IntArray:
        """Tokens that are walked per sequence, from the tile border at or before the window's edge."""
        if window is None:
            return lens
        skipped: IntArray = np.maximum(lens - window, 0) // self.tile * self.tile
        return lens - skipped

    def chunk(self, spans: IntArray, most_splits: int = MOST_SPLITS) -> int:
        """Tokens per chunk, a multiple of the tile."""
        if self.fixed is not None:
            return -(-self.fixed // self.tile) * self.tile
        even = -(-int(spans.sum()) * self.programs // self.budget)
        tokens = max(even, SHORTEST_CHUNK, -(-int(spans.max()) // most_splits))
        return -(-tokens // self.tile) * self.tile

    def most_splits(self, rows: int, longest: int, window: int | None) -> int:
        """Chunks per sequence that a launch for any batch of `rows` sequences of up to `longest` tokens must allow."""
        span = longest if window is None else min(longest, window + self.tile)
        if self.fixed is not None:
            return max(1, -(-span // self.chunk(np.zeros(1, dtype=np.int64))))
        room = max(1, MOST_PROGRAMS // (rows * self.programs))
        return max(1, min(room, MOST_SPLITS, -(-span // SHORTEST_CHUNK)))


@dataclass(slots=True)
class DecodePart:
    """The sequences with one new token.

    rows [B]: their rows of the packed step, None when row i is sequence i. lens [B]: context lengths. tables: block
    ids, [B, info[0]], flat. `captured`: per window, (index in info of the chunk length, chunks that launches allow).
    """

    count: int
    rows: torch.Tensor | None
    lens: torch.Tensor
    tables: torch.Tensor
    info: torch.Tensor
    host_lens: IntArray
    captured: dict[int | None, tuple[int, int]] | None = None
    _splits: dict[Any, tuple[int, int]] = field(default_factory=dict)

    def split(self, rule: SplitRule, window: int | None) -> tuple[int, int]:
        """(chunk, splits) for the kernels: a length, or minus the place in `info` where it lies; and the grid's size.

        Raises KeyError when a StaticPlan was not made for this window.
        """
        if self.captured is not None:
            place, splits = self.captured[window]
            return -place, splits
        found = self._splits.get((rule, window))
        if found is None:
            spans = rule.spans(self.host_lens, window)
            chunk = rule.chunk(spans)
            found = self._splits[rule, window] = chunk, max(1, -(-int(spans.max()) // chunk))
        return found


@dataclass(slots=True)
class PrefillPart:
    """The sequences with several new tokens. tables: block ids, [P, info[0]], flat. chunks [P, 3] on the host: first
    row of the packed step, new tokens, context length."""

    tables: torch.Tensor
    info: torch.Tensor
    chunks: IntArray
    _work: dict[int, torch.Tensor] = field(default_factory=dict)

    def items(self, tokens: int) -> int:
        """How many work items of `tokens` tokens there are."""
        return int((-(-self.chunks[:, 1] // tokens)).sum())

    def work(self, tokens: int) -> torch.Tensor:
        """int32 [items, 8] on the device, the longest first: table row, token in the chunk, the chunk's first row, its
        tokens, its context length."""
        found = self._work.get(tokens)
        if found is None:
            found = self._work[tokens] = upload(work_items(self.chunks, tokens), self.tables.device)
        return found


@dataclass(slots=True)
class TritonPlan:
    """Device tensors of a step. slots [T] int32: where K and V go, negative for nowhere."""

    slots: torch.Tensor
    decode: DecodePart | None
    prefill: PrefillPart | None


def work_items(chunks: IntArray, tokens: int) -> npt.NDArray[np.int32]:
    """Cut chunks [P, 3] (first row, tokens, context) into items of `tokens`; those that see most keys come first."""
    counts = -(-chunks[:, 1] // tokens)
    owner = np.repeat(np.arange(len(chunks)), counts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    items = np.zeros((len(owner), 8), dtype=np.int32)
    items[:, 0] = owner
    items[:, 1] = nth * tokens
    items[:, 2:5] = chunks[owner]
    seen = items[:, 4] - items[:, 3] + items[:, 1]
    return items[np.argsort(-seen, kind="stable")]


def plan_step(batch: AttentionBatch) -> TritonPlan:
    """The plan of a batch, in tensors of its own; one copy to the device."""
    decodes = np.flatnonzero(batch.query_lens == 1)
    prefills = np.flatnonzero(batch.query_lens > 1)
    info = np.zeros(INFO, dtype=np.int64)
    sections: list[IntArray] = [info, batch.slots]
    if len(decodes):
        lens, tables = batch.context_lens[decodes], batch.tables[decodes]
        tables = tables[:, : -(-int(lens.max()) // batch.block_size)]
        info[0] = tables.shape[1]
        sections += [lens, batch.query_starts[decodes], tables]
    if len(prefills):
        info[PREFILL_WIDTH] = batch.tables.shape[1]
        sections.append(batch.tables[prefills])
    on_device = _upload_sections(sections, batch.device)
    header, slots = on_device[:2]
    decode = prefill = None
    if len(decodes):
        rows = None if len(decodes) == batch.num_tokens else on_device[3]
        decode = DecodePart(len(decodes), rows, on_device[2], on_device[4], header, batch.context_lens[decodes])
    if len(prefills):
        firsts, tokens = batch.query_starts[prefills], batch.query_lens[prefills]
        chunks = np.stack((firsts, tokens, batch.context_lens[prefills]), axis=1)
        prefill = PrefillPart(on_device[-1], header[PREFILL_WIDTH:], chunks)
    return TritonPlan(slots, decode, prefill)


class StaticPlan:
    """A plan for `rows` sequences of one new token each whose tensors stay where they are.

    `plan` goes into the `derived` of the batch that is captured (`bind`); `update` refills it for another batch of as
    many sequences, each of at most `max_context` tokens. `windows`: those of the model's layers, None for full
    attention. `storage`: int32 memory to live in, of at least `size` numbers; several plans may share one, as long as
    only one of them is used between two updates.
    """

    def __init__(
        self,
        rows: int,
        max_context: int,
        block_size: int,
        rule: SplitRule,
        windows: Sequence[int | None],
        device: torch.device,
        storage: torch.Tensor | None = None,
    ) -> None:
        self.rows = rows
        self.max_context = max_context
        self._rule = rule
        self._windows = list(dict.fromkeys(windows))
        if len(self._windows) > MOST_WINDOWS:
            raise ValueError(f"{len(self._windows)} kinds of windows, and at most {MOST_WINDOWS} can be planned for")
        self.size = self.size_for(rows, max_context, block_size)
        if storage is None:
            storage = torch.zeros(self.size, dtype=torch.int32, device=device)
        self.storage = storage
        self._column = _aligned(rows)
        self._tables_at = INFO + 2 * self._column
        splits = [rule.most_splits(rows, max_context, window) for window in self._windows]
        self._splits = splits
        captured = {window: (1 + i, splits[i]) for i, window in enumerate(self._windows)}
        slots = storage[INFO : INFO + rows]
        lens = storage[INFO + self._column : INFO + self._column + rows]
        tables = storage[self._tables_at : self.size]
        self.plan = TritonPlan(
            slots, DecodePart(rows, None, lens, tables, storage[:INFO], np.zeros(rows, np.int64), captured), None
        )

    @staticmethod
    def size_for(rows: int, max_context: int, block_size: int) -> int:
        """int32 numbers that a plan takes on the device."""
        return INFO + 2 * _aligned(rows) + rows * -(-max_context // block_size)

    def bind(self, batch: AttentionBatch) -> None:
        """Make `batch` use this plan instead of one of its own."""
        batch.derived[KEY] = self.plan

    def update(self, batch: AttentionBatch) -> None:
        """Take over lengths, slots and tables of `batch`; queues one copy. Raises ValueError when it does not fit."""
        if batch.num_sequences != self.rows or batch.num_tokens != self.rows:
            raise ValueError(f"a plan for {self.rows} decodes got {batch.num_tokens} tokens of {batch.num_sequences}")
        if int(batch.context_lens.max()) > self.max_context:
            raise ValueError(f"a context of {int(batch.context_lens.max())} tokens, planned for {self.max_context}")
        width = batch.tables.shape[1]
        used = self._tables_at + self.rows * width
        host = _host_buffer(used, self.storage.device)
        numbers = host.numpy()
        numbers[0] = width
        for i, (window, splits) in enumerate(zip(self._windows, self._splits, strict=True)):
            numbers[1 + i] = self._rule.chunk(self._rule.spans(batch.context_lens, window), splits)
        numbers[INFO : INFO + self.rows] = batch.slots
        numbers[INFO + self._column : INFO + self._column + self.rows] = batch.context_lens
        numbers[self._tables_at :] = batch.tables.reshape(-1)
        self.storage[:used].copy_(host, non_blocking=True)


def upload(numbers: Any, device: torch.device) -> torch.Tensor:
    """int32 on `device`; the copy is only queued."""
    array = np.asarray(numbers, dtype=np.int32)
    host = _host_buffer(array.size, device)
    host.numpy()[:] = array.reshape(-1)
    return host.to(device, non_blocking=True).view(array.shape)


def _upload_sections(sections: list[IntArray], device: torch.device) -> list[torch.Tensor]:
    """Flat int32 tensors on `device`, one per array, in one copy."""
    starts = np.cumsum([0, *(_aligned(section.size) for section in sections)]).tolist()
    host = _host_buffer(starts[-1], device)
    numbers = host.numpy()
    for start, section in zip(starts, sections, strict=False):
        numbers[start : start + section.size] = section.reshape(-1)
    there = host.to(device, non_blocking=True)
    return [there[start : start + section.size] for start, section in zip(starts, sections, strict=False)]


def _host_buffer(size: int, device: torch.device) -> torch.Tensor:
    """Page-locked where the device copies by itself; torch keeps such memory until the copies from it are done."""
    return torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


Capability = tuple[int, int]
HOPPER: Capability = (9, 0)
LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True)
class KernelShape:
    """`rows` of queries (tokens times heads of a group) meet `tile` tokens of K and V at a time."""

    rows: int
    tile: int
    warps: int
    stages: int


def padded(size: int) -> int:
    """The power of two, 16 or more, that a tile dimension of `size` needs."""
    return max(16, 1 << (size - 1).bit_length())


def heads_per_program(group: int, rows: int) -> int:
    """How many of the `group` query heads of one KV head share a program of `rows` rows."""
    return min(group, rows)


class ShapeTable:
    """The shapes that ship. Replace it to try others: `TritonPagedAttention(shapes=...)`."""

    def decode(self, head_dim: int, group: int, dtype: torch.dtype, capability: Capability = HOPPER) -> KernelShape:
        """One token per sequence: rows are the query heads of one KV head, at most 32 of them in a program."""
        rows = min(padded(group), 32)
        dim = padded(head_dim)
        if dtype is torch.float32:
            return KernelShape(rows, 32 if dim <= 128 else 16, 4 if dim <= 64 else 8, 2)
        if dim <= 128:
            return KernelShape(rows, 64, 4, 3 if dim <= 64 else 2)
        return KernelShape(rows, 32, 4, 2)

    def prefill(
        self, head_dim: int, dtype: torch.dtype, *, windowed: bool = False, small: bool = False, block_size: int = 16,
        capability: Capability = HOPPER,
    ) -> KernelShape:  # fmt: skip
        """Several tokens per sequence. `small`: so little work that half the rows per program keep more of the
        device busy. Blocks of other than 16 tokens can take a few registers more, for addresses."""
        dim = padded(head_dim)
        if dtype is torch.float32:
            if dim <= 64:
                return KernelShape(32 if small else 64, 32, 8, 2)
            return KernelShape(32, 16, 8, 2) if dim <= 128 else KernelShape(16, 16, 8, 2)
        if dim <= 64:
            if small or capability < HOPPER:
                return KernelShape(64, 64, 4, 2)
            return KernelShape(128, 64, 8 if windowed else 4, 2)
        if dim <= 128:
            if (windowed or block_size != 16) and capability < HOPPER:
                return KernelShape(128, 32, 8, 2)
            return KernelShape(64, 64, 4, 2) if small and capability >= HOPPER else KernelShape(128, 64, 8, 2)
        return KernelShape(64, 32, 8, 2)
