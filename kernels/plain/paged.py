"""Paged attention in plain torch operators: gather, then scaled_dot_product_attention.

Everything that depends on the step but not on the layer (which pieces to gather, which slots to clear, masks) is
derived once, on first use, and kept in the batch; a layer costs about five operator calls per group of decodes.

Reading: a block's K (or V) of one head is one contiguous piece of block_size * head_dim numbers, so gathering pieces
in the order (sequence, K/V, head, block) yields [B, 2, kv_heads, slots, head_dim] with a single index_select. The query
heads that share a KV head become rows of one small matrix instead of repeating K and V: SDPA's own enable_gqa is
several times slower on CPU in half precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vtop.kernels.api import AttentionBatch
from vtop.kernels.plain.plan import ChunkPlan, DecodeGroup, Geometry, WindowPlan, plan_window, write_rows


class TorchPagedAttention:
    """Any device, dtype, block size and head size that torch has."""

    name = "torch"
    note = ""

    def write_kv(self, layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> None:
        geometry = Geometry.of(layer)
        key = ("write", geometry)
        rows = batch.derived.get(key)
        if rows is None:
            rows = batch.derived[key] = write_rows(batch, geometry)
        values = torch.stack((k, v), dim=1).view(-1, geometry.head_dim)
        if values.dtype is not layer.dtype:
            values = values.to(layer.dtype)
        geometry.token_rows(layer).index_copy_(0, rows, values)

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
        geometry = Geometry.of(layer)
        key = (geometry, sliding_window, q.dtype)
        plan: WindowPlan | None = batch.derived.get(key)
        if plan is None:
            plan = batch.derived[key] = plan_window(batch, geometry, sliding_window, q.dtype)
        pieces = geometry.pieces(layer)
        if plan.whole_group is not None:
            return self._decode(q, pieces, plan.whole_group, geometry, scale, softcap, sinks)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for group in plan.groups:
            part = self._decode(q.index_select(0, group.tokens), pieces, group, geometry, scale, softcap, sinks)
            out.index_copy_(0, group.tokens, part)
        for chunk in plan.chunks:
            out[chunk.first : chunk.last] = self._chunk(
                q[chunk.first : chunk.last], pieces, chunk, geometry, scale, softcap, sinks
            )
        return out

    def _decode(
        self,
        q: torch.Tensor,
        pieces: torch.Tensor,
        group: DecodeGroup,
        geometry: Geometry,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """One query per sequence: q [B, heads, D] -> [B, heads, D]."""
        gathered = pieces.index_select(0, group.pieces)
        if group.clear is not None:  # a masked slot still meets 0 * NaN, so unwritten ones are cleared in the copy
            gathered.view(-1, geometry.head_dim).index_fill_(0, group.clear, 0)
        size, heads = q.shape[0], q.shape[1]
        kv = gathered.view(size, 2, geometry.kv_heads, group.slots, geometry.head_dim)
        if group.keep is not None:
            kv = kv[:, :, :, group.keep[0] : group.keep[1]]
        k, v = kv[:, 0], kv[:, 1]
        if k.dtype is not q.dtype:
            k, v = k.to(q.dtype), v.to(q.dtype)
        folded = q.reshape(size, geometry.kv_heads, heads // geometry.kv_heads, geometry.head_dim)
        if softcap is None and sinks is None:
            mask = None if group.mask is None else group.mask.expand(-1, -1, folded.shape[2], -1)
            out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
        else:
            by_head = None if sinks is None else sinks.view(geometry.kv_heads, -1, 1)
            out = _explicit(folded, k, v, group.mask, scale, softcap, by_head)
        return out.reshape(size, heads, geometry.head_dim)

    def _chunk(
        self,
        q: torch.Tensor,
        pieces: torch.Tensor,
        chunk: ChunkPlan,
        geometry: Geometry,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Several queries of one sequence: q [Q, heads, D] -> [Q, heads, D]."""
        gathered = pieces.index_select(0, chunk.pieces)
        kv = gathered.view(2, geometry.kv_heads, 1, chunk.slots, geometry.head_dim)
        kv = kv[:, :, :, chunk.keep[0] : chunk.keep[1]]  # leaves out every slot that holds no token
        if kv.dtype is not q.dtype:
            kv = kv.to(q.dtype)
        count, heads = q.shape[0], q.shape[1]
        per_kv = heads // geometry.kv_heads
        # KV heads take the batch axis; K and V are repeated over the group by stride 0, without a copy.
        grouped = q.view(count, geometry.kv_heads, per_kv, geometry.head_dim).permute(1, 2, 0, 3)
        k = kv[0].expand(-1, per_kv, -1, -1)
        v = kv[1].expand(-1, per_kv, -1, -1)
        if softcap is None and sinks is None:
            out = F.scaled_dot_product_attention(
                grouped, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale
            )
        else:
            mask = chunk.explicit_mask(q.dtype, q.device)
            by_head = None if sinks is None else sinks.view(geometry.kv_heads, per_kv, 1, 1)
            out = _explicit(grouped, k, v, mask, scale, softcap, by_head)
        return out.permute(2, 0, 1, 3).reshape(count, heads, geometry.head_dim)


def _explicit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with the scores in hand, for what SDPA has no argument for. Scores and softmax in float32: half
    precision would round a score of 30 by 0.06, and have no number for q·k past 65504.

    q [..., Q, D], k, v [..., N, D]; mask is additive and sinks broadcasts to [..., Q, 1].
    """
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.float().expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights.to(v.dtype), v)
