"""The attention interface: what a backend is given, and what it must compute.

The KV cache is one tensor per pool, block first:

    cache  [num_blocks, layers, 2, kv_heads, block_size, head_dim]      (index 0 of the third axis is K, 1 is V)
    layer  = cache[:, i]: [num_blocks, 2, kv_heads, block_size, head_dim], a strided view

so that one block, over all layers, is one contiguous piece for copies and swaps. Token t of a sequence lies in slot
`table[t // block_size] * block_size + t % block_size`. Slots that hold no token may contain anything, NaN included;
no backend lets them reach a result.

A step is packed: its T tokens lie one after the other, sequence after sequence, and `AttentionBatch` says which is
which. It is built once per step and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]

NO_BLOCK = -1
"""Fills the unused tail of a row in a padded block table; no backend follows it."""


@dataclass(slots=True)
class AttentionBatch:
    """The layout of one packed step. Arrays are on the host, int64; `device` is where tensors are wanted.

    query_lens [S]: new tokens of each sequence, at least 1 each; their sum is T.
    context_lens [S]: tokens whose K/V exist after this step's are written (new ones included).
    tables [S, max_blocks]: block ids, padded with NO_BLOCK.
    query_starts [S + 1]: where each sequence's tokens begin among the T packed ones.
    positions [T]: position of each token in its sequence.  slots [T]: where its K/V go.
    derived: a backend's own tensors for this step, keyed by what they depend on; empty at first.
    """

    query_lens: IntArray
    context_lens: IntArray
    tables: IntArray
    query_starts: IntArray
    positions: IntArray
    slots: IntArray
    block_size: int
    device: torch.device
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        tables: Sequence[Sequence[int]],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> AttentionBatch:
        """Lay out a step. `tables[i]` must cover `context_lens[i]` tokens; further ids in it are dropped.

        Raises ValueError when a table is too short, names a negative block, or a length is impossible.
        """
        q_lens = np.asarray(query_lens, dtype=np.int64)
        contexts = np.asarray(context_lens, dtype=np.int64)
        if block_size < 1:
            raise ValueError(f"blocks of {block_size} tokens; give at least 1")
        if not len(q_lens) == len(contexts) == len(tables):
            raise ValueError(f"{len(q_lens)} query lengths, {len(contexts)} context lengths, {len(tables)} tables")
        if len(q_lens) == 0 or q_lens.min() < 1 or (contexts < q_lens).any():
            raise ValueError(f"impossible lengths: queries {list(query_lens)}, contexts {list(context_lens)}")
        needed = -(-contexts // block_size)
        lengths = np.fromiter(map(len, tables), dtype=np.int64, count=len(q_lens))
        if (lengths < needed).any():
            raise ValueError(f"block tables of {lengths.tolist()} blocks, but {needed.tolist()} are needed")
        padded = _pad_tables(tables, lengths, needed)
        starts = np.zeros(len(q_lens) + 1, dtype=np.int64)
        np.cumsum(q_lens, out=starts[1:])
        if starts[-1] == len(q_lens):  # one token each: the usual decode step
            positions = contexts - 1
            blocks = padded[np.arange(len(q_lens)), positions // block_size]
        else:
            owner = np.repeat(np.arange(len(q_lens)), q_lens)
            positions = np.arange(starts[-1]) + (contexts - q_lens - starts[:-1])[owner]
            blocks = padded[owner, positions // block_size]
        slots = blocks * block_size + positions % block_size
        return cls(q_lens, contexts, padded, starts, positions, slots, block_size, torch.device(device))


def _pad_tables(tables: Sequence[Sequence[int]], lengths: IntArray, needed: IntArray) -> IntArray:
    """[S, max(needed)] with the first `needed` ids of each table, NO_BLOCK after them."""
    flat = np.fromiter(chain.from_iterable(tables), dtype=np.int64, count=int(lengths.sum()))
    firsts = np.cumsum(lengths) - lengths
    columns = np.arange(int(needed.max()))
    used = columns[None, :] < needed[:, None]
    padded = np.full(used.shape, NO_BLOCK, dtype=np.int64)
    ids = flat[(firsts[:, None] + columns[None, :])[used]]
    if ids.min() < 0:
        raise ValueError("a block table names a negative block id")
    padded[used] = ids
    return padded


BlockCopy = Callable[[torch.Tensor, torch.Tensor, Sequence[tuple[int, int]]], None]
"""Copies whole blocks; called and behaving like `copy_blocks`."""


class BackendUnavailable(ValueError):
    """The backend exists and cannot run here. `remedy` says in one line why, and what to choose."""

    def __init__(self, name: str, remedy: str) -> None:
        self.name = name
        self.remedy = remedy
        super().__init__(f"attention backend {name!r}: {remedy}")


class AttentionBackend(Protocol):
    """One way to compute paged attention. Stateless: everything about a step is in the batch.

    A backend may have more, which is looked for by name: `copy_blocks`, a BlockCopy that is used in place of the
    function here; `warm_up(head_dim, dtype)`, see `registry.warm_up`; `static_plan`, see TritonPagedAttention.
    """

    name: str
    note: str
    """Why torch computes all or some of it in place of a faster backend, in one line; empty when it does not."""

    def write_kv(self, layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> None:
        """Store this step's K and V.

        layer [num_blocks, 2, kv_heads, block_size, head_dim], a view of the cache; k, v [T, kv_heads, head_dim],
        any strides, converted to the cache's dtype.
        """
        ...

    def attend(
        self,
        q: torch.Tensor,
        layer: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        *,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of this step's tokens over what is written; returns [T, heads, head_dim] in q's dtype.

        q [T, heads, head_dim], any strides; `heads` is a multiple of kv_heads, and query head h reads KV head
        h // (heads / kv_heads). scale, above 0, multiplies q·k. sliding_window w >= 1: position p sees p - w + 1 … p.
        softcap c > 0: scores s become c * tanh(s / c). sinks [heads]: a further logit per head that takes probability
        and gives no value.
        """
        ...


def allocate_cache(
    num_blocks: int,
    num_layers: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> torch.Tensor:
    """A cache of undefined contents, [num_blocks, layers, 2, kv_heads, block_size, head_dim].

    Not zeroed: on CPU that would take the memory of the whole pool, and seconds, before the first token is written.
    """
    return torch.empty(num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim, dtype=dtype, device=device)


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, all layers: `source[a]` to `target[b]` for pairs (a, b), on one device.

    source, target [blocks, …], equal but for the number of blocks; they may be one and the same tensor. Every source
    is read before any target is written. A source may occur more than once, a target may not.
    """
    if not pairs:
        return
    index = torch.tensor(pairs, dtype=torch.int64).to(target.device)
    target.index_copy_(0, index[:, 1], source.index_select(0, index[:, 0]))
