"""Paged attention, obviously right: one sequence at a time, nothing clever. What the others are held against."""

from __future__ import annotations

import torch

from vtop.kernels.api import AttentionBatch


class ReferenceAttention:
    """Plain loops over sequences, computed in `compute_dtype` whatever the cache holds. Any device."""

    name = "reference"
    note = ""

    def __init__(self, compute_dtype: torch.dtype = torch.float32) -> None:
        self.compute_dtype = compute_dtype

    def write_kv(self, layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> None:
        for token, slot in enumerate(batch.slots.tolist()):
            block, offset = divmod(slot, batch.block_size)
            layer[block, 0, :, offset] = k[token].to(layer.dtype)
            layer[block, 1, :, offset] = v[token].to(layer.dtype)

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
        out = torch.empty_like(q)
        for i in range(batch.num_sequences):
            first, last = int(batch.query_starts[i]), int(batch.query_starts[i + 1])
            context = int(batch.context_lens[i])
            k, v = self._read(layer, batch.tables[i].tolist(), context, batch.block_size)
            positions = torch.arange(context - (last - first), context, device=q.device)
            out[first:last] = self._attend_one(
                q[first:last], k, v, positions, scale, sliding_window, softcap, sinks
            ).to(q.dtype)
        return out

    def _read(
        self, layer: torch.Tensor, table: list[int], context: int, block_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of tokens 0 … context - 1, each [context, kv_heads, head_dim]. Only written slots are touched."""
        slots = [(table[t // block_size], t % block_size) for t in range(context)]
        k = torch.stack([layer[block, 0, :, offset] for block, offset in slots])
        v = torch.stack([layer[block, 1, :, offset] for block, offset in slots])
        return k.to(self.compute_dtype), v.to(self.compute_dtype)

    def _attend_one(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        heads, kv_heads = q.shape[1], k.shape[1]
        k = k.repeat_interleave(heads // kv_heads, dim=1)
        v = v.repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q.to(self.compute_dtype), k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        keys = torch.arange(len(k), device=q.device)
        visible = keys[None, :] <= positions[:, None]
        if sliding_window is not None:
            visible &= keys[None, :] > positions[:, None] - sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            column = sinks.to(self.compute_dtype)[:, None, None].expand(heads, len(q), 1)
            weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
        else:
            weights = torch.softmax(scores, dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v)
