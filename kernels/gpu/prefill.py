# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,unused-ignore"
"""Prefill in Triton: several query tokens per sequence over paged K/V, context of earlier steps included.

A work item is a run of consecutive tokens of one sequence; its rows are those tokens times the query heads that share
a KV head. The item walks the keys it may see: tiles that every row sees whole first, without a mask, then the ones
that the diagonal (or a window's edge) crosses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vtop.kernels.gpu.common import (
    LOG2E_IN_KERNEL,
    add_sink,
    base2_scores,
    precision,
    product,
    score_factors,
    widened,
)
from vtop.kernels.gpu.plan import KernelShape, PrefillPart, heads_per_program, padded


@triton.jit
def attend_tile(
    q,
    top,
    total,
    acc,
    tile,
    first,
    end,
    seen_from,
    seen_to,
    keys,
    values,
    table,
    cache_block,
    cache_slot,
    factor,
    cap,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of keys. A row sees positions seen_from … seen_to; slots outside first … end - 1 are not touched."""
    offset = tl.arange(0, TILE)
    column = tl.arange(0, DIM)
    is_column = column < HEAD_DIM
    position = tile + offset
    if BLOCK % TILE == 0:  # one block per tile
        place = tl.load(table + tile // BLOCK).to(tl.int64) * cache_block + (tile % BLOCK + offset) * cache_slot
    else:
        if MASKED:
            live_block = (position >= first) & (position < end)
            blocks = tl.load(table + position // BLOCK, mask=live_block, other=0)
        else:
            blocks = tl.load(table + position // BLOCK)
        place = blocks.to(tl.int64) * cache_block + (position % BLOCK) * cache_slot
    k_places = keys + place[None, :] + column[:, None]
    v_places = values + place[:, None] + column[None, :]
    if MASKED:
        live = (position >= first) & (position < end)
        k = tl.load(k_places, mask=live[None, :] & is_column[:, None], other=0.0)
        v = tl.load(v_places, mask=live[:, None] & is_column[None, :], other=0.0)
    elif HEAD_DIM == DIM:
        k = tl.load(k_places)
        v = tl.load(v_places)
    else:
        k = tl.load(k_places, mask=is_column[:, None], other=0.0)
        v = tl.load(v_places, mask=is_column[None, :], other=0.0)
    scores = base2_scores(product(q, k.to(q.dtype), PRECISION, WIDEN), factor, cap, CAPPED)
    if MASKED:
        seen = (position[None, :] >= seen_from[:, None]) & (position[None, :] <= seen_to[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    anchor = new_top
    if MASKED:
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(top - anchor)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None] + product(weights.to(q.dtype), v.to(q.dtype), PRECISION, WIDEN)
    return new_top, total, acc


@triton.jit(do_not_specialize=["window"])
def prefill_kernel(
    q_ptr,  # [T, heads, HEAD_DIM]
    cache_ptr,  # [blocks, 2, kv_heads, BLOCK, HEAD_DIM]
    out_ptr,  # [T, heads, HEAD_DIM]
    work_ptr,  # int32 [items, 8]: table row, token in the chunk, chunk's first row of q, chunk's length, context
    tables_ptr,  # int32 [P, info[0]]
    info_ptr,  # int32: width of tables
    sinks_ptr,  # [heads], if SINKS
    factor,
    cap,
    window,
    q_token,
    q_head,
    out_token,
    out_head,
    cache_block,
    cache_kv,
    cache_head,
    cache_slot,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Grid: (items, kv_heads * ceil(GROUP / PACK)). An item has ROWS // PACK tokens, the last of a chunk maybe less."""
    item = work_ptr + tl.program_id(0) * 8
    sequence = tl.load(item)
    token_0 = tl.load(item + 1)
    row_0 = tl.load(item + 2)
    count = tl.load(item + 3)
    context = tl.load(item + 4)
    before = context - count

    TOKENS: tl.constexpr = ROWS // PACK
    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    kv_head = tl.program_id(1) // PACKS
    row = tl.arange(0, ROWS)
    token = token_0 + row // PACK
    member = (tl.program_id(1) % PACKS) * PACK + row % PACK
    head = kv_head * GROUP + member
    is_row = (row < TOKENS * PACK) & (token < count) & (member < GROUP)
    column = tl.arange(0, DIM)
    wanted = is_row[:, None] & (column < HEAD_DIM)[None, :]
    q_row = (row_0 + token).to(tl.int64)[:, None]
    q = tl.load(q_ptr + q_row * q_token + head[:, None] * q_head + column[None, :], mask=wanted, other=0.0)

    table = tables_ptr + sequence.to(tl.int64) * tl.load(info_ptr)
    keys = cache_ptr + kv_head * cache_head
    values = keys + cache_kv
    seen_to = before + token
    seen_from = seen_to * 0
    end = before + tl.minimum(token_0 + TOKENS, count)  # keys from here on are seen by no row
    whole_to = ((before + token_0 + 1) // TILE) * TILE  # tiles before this end are seen whole by all rows ...
    first = 0
    whole_from = 0  # ... from here on
    if WINDOWED:
        seen_from = tl.maximum(seen_to - window + 1, 0)
        first = tl.maximum(before + token_0 - window + 1, 0)
        whole_from = tl.cdiv(tl.maximum(end - window, 0), TILE) * TILE

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    if WINDOWED:
        for tile in range((first // TILE) * TILE, tl.minimum(whole_from, end), TILE):
            top, total, acc = attend_tile(
                q, top, total, acc, tile, first, end, seen_from, seen_to, keys, values, table, cache_block, cache_slot,
                factor, cap, HEAD_DIM, DIM, BLOCK, TILE, True, CAPPED, PRECISION, WIDEN,
            )  # fmt: skip
    for tile in range(whole_from, whole_to, TILE):
        top, total, acc = attend_tile(
            q, top, total, acc, tile, first, end, seen_from, seen_to, keys, values, table, cache_block, cache_slot,
            factor, cap, HEAD_DIM, DIM, BLOCK, TILE, False, CAPPED, PRECISION, WIDEN,
        )  # fmt: skip
    for tile in range(tl.maximum(whole_from, whole_to), end, TILE):
        top, total, acc = attend_tile(
            q, top, total, acc, tile, first, end, seen_from, seen_to, keys, values, table, cache_block, cache_slot,
            factor, cap, HEAD_DIM, DIM, BLOCK, TILE, True, CAPPED, PRECISION, WIDEN,
        )  # fmt: skip

    if SINKS:
        sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32) * LOG2E_IN_KERNEL
        total, acc = add_sink(top, total, acc, sink)
    total = tl.where(total > 0, total, 1.0)
    place = out_ptr + q_row * out_token + head[:, None] * out_head + column[None, :]
    tl.store(place, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=wanted)


def prefill(
    q: torch.Tensor,
    layer: torch.Tensor,
    out: torch.Tensor,
    part: PrefillPart,
    shape: KernelShape,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """Attend for the chunks of `part`; q and out [T, heads, head_dim], layer as in `AttentionBackend.attend`."""
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads = layer.shape[2]
    group = heads // kv_heads
    pack = heads_per_program(group, shape.rows)
    work = part.work(shape.rows // pack)
    factor, cap = score_factors(scale, softcap)
    prefill_kernel[(work.shape[0], kv_heads * -(-group // pack))](
        q, layer, out, work, part.tables, part.info, out if sinks is None else sinks,
        factor, cap, window or 0,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        layer.stride(0), layer.stride(1), layer.stride(2), layer.stride(3),
        GROUP=group, PACK=pack, HEAD_DIM=head_dim, DIM=padded(head_dim), BLOCK=layer.shape[3],
        ROWS=shape.rows, TILE=shape.tile, WINDOWED=window is not None, CAPPED=softcap is not None,
        SINKS=sinks is not None, PRECISION=precision(q.dtype), WIDEN=widened(q.dtype),
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
