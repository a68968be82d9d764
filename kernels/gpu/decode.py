# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,unused-ignore"
"""Decode in Triton: one query token per sequence over paged K/V, the context cut into chunks that run side by side.

All sequences of a batch are cut at one chunk length. A sequence that fits in one chunk writes its output at once; the
chunks of a longer one leave normalised partial outputs and base-2 log-sum-exps, which `merge_kernel` joins. Whoever
has no chunk leaves first thing, so a grid may be larger than the batch needs, as in a captured CUDA graph.
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
from vtop.kernels.gpu.plan import DecodePart, KernelShape, heads_per_program, padded

MERGED_AT_ONCE = 32
"""Partial outputs per step of the merge. Fixed, so that the order of its sums depends on the sequence alone."""


@triton.jit
def chunk_length(chunk, info_ptr):
    """A positive `chunk` is the length; otherwise the length lies on the device, in info[-chunk]."""
    length = chunk
    if chunk <= 0:
        length = tl.load(info_ptr - chunk)
    return length


@triton.jit
def first_token(length, window, TILE: tl.constexpr, WINDOWED: tl.constexpr):
    """(first token that is seen, the tile border at or before it)."""
    first = 0
    if WINDOWED:
        first = tl.maximum(length - window, 0)
    return first, (first // TILE) * TILE


@triton.jit(do_not_specialize=["window", "chunk"])
def decode_kernel(
    q_ptr,  # [T, HEADS, HEAD_DIM]
    cache_ptr,  # [blocks, 2, kv_heads, BLOCK, HEAD_DIM]
    out_ptr,  # [T, HEADS, HEAD_DIM]
    part_ptr,  # float32 [B, HEADS, chunks, HEAD_DIM]
    lse_ptr,  # float32 [B, HEADS, chunks]
    rows_ptr,  # int32 [B]: rows of q, if INDEXED
    lens_ptr,  # int32 [B]
    tables_ptr,  # int32 [B, info[0]]
    info_ptr,  # int32: width of tables, chunk lengths
    sinks_ptr,  # [HEADS], if SINKS
    factor,
    cap,
    window,
    chunk,
    q_token,
    q_head,
    out_token,
    out_head,
    cache_block,
    cache_kv,
    cache_head,
    cache_slot,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PACK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    INDEXED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Grid: (sequences, kv_heads * ceil(GROUP / PACK), chunks)."""
    sequence = tl.program_id(0)
    part = tl.program_id(2)
    length = tl.load(lens_ptr + sequence)
    step = chunk_length(chunk, info_ptr)
    first, base = first_token(length, window, TILE, WINDOWED)
    chunks = tl.cdiv(length - base, step)
    if part >= tl.maximum(chunks, 1):
        return
    start = base + part * step
    end = tl.minimum(start + step, length)

    PACKS: tl.constexpr = (GROUP + PACK - 1) // PACK
    kv_head = tl.program_id(1) // PACKS
    row = tl.arange(0, ROWS)
    member = (tl.program_id(1) % PACKS) * PACK + row
    head = kv_head * GROUP + member
    is_row = (row < PACK) & (member < GROUP)
    column = tl.arange(0, DIM)
    is_column = column < HEAD_DIM
    wanted = is_row[:, None] & is_column[None, :]
    offset = tl.arange(0, TILE)

    token = sequence.to(tl.int64)
    if INDEXED:
        token = tl.load(rows_ptr + sequence).to(tl.int64)
    q = tl.load(q_ptr + token * q_token + head[:, None] * q_head + column[None, :], mask=wanted, other=0.0)
    table = tables_ptr + sequence.to(tl.int64) * tl.load(info_ptr)
    keys = cache_ptr + kv_head * cache_head
    values = keys + cache_kv

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for tile in range(start, end, TILE):
        position = tile + offset
        live = position < end
        if WINDOWED:
            live = live & (position >= first)
        if BLOCK % TILE == 0:  # one block per tile
            block = tl.load(table + tile // BLOCK).to(tl.int64)
            place = block * cache_block + (tile % BLOCK + offset) * cache_slot
        else:
            blocks = tl.load(table + position // BLOCK, mask=live, other=0).to(tl.int64)
            place = blocks * cache_block + (position % BLOCK) * cache_slot
        k = tl.load(keys + place[None, :] + column[:, None], mask=live[None, :] & is_column[:, None], other=0.0)
        v = tl.load(values + place[:, None] + column[None, :], mask=live[:, None] & is_column[None, :], other=0.0)
        scores = base2_scores(product(q, k.to(q.dtype), PRECISION, WIDEN), factor, cap, CAPPED)
        scores = tl.where(live[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(top - anchor)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + product(weights.to(q.dtype), v.to(q.dtype), PRECISION, WIDEN)
        top = new_top

    if chunks <= 1:
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32) * LOG2E_IN_KERNEL
            total, acc = add_sink(top, total, acc, sink)
        total = tl.where(total > 0, total, 1.0)
        place_out = out_ptr + token * out_token + head[:, None] * out_head + column[None, :]
        tl.store(place_out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=wanted)
    else:
        total = tl.where(total > 0, total, 1.0)
        index = (sequence.to(tl.int64) * HEADS + head) * tl.num_programs(2) + part
        tl.store(part_ptr + index[:, None] * HEAD_DIM + column[None, :], acc / total[:, None], mask=wanted)
        tl.store(lse_ptr + index, top + tl.log2(total), mask=is_row)


@triton.jit(do_not_specialize=["window", "chunk", "most"])
def merge_kernel(
    part_ptr,  # float32 [B, HEADS, most, HEAD_DIM]
    lse_ptr,  # float32 [B, HEADS, most]
    out_ptr,  # [T, HEADS, HEAD_DIM]
    rows_ptr,
    lens_ptr,
    info_ptr,
    sinks_ptr,
    window,
    chunk,
    most,
    out_token,
    out_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    COUNT: tl.constexpr,
    INDEXED: tl.constexpr,
    WINDOWED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Grid: (sequences, HEADS). COUNT partial outputs at a time."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(lens_ptr + sequence)
    step = chunk_length(chunk, info_ptr)
    _, base = first_token(length, window, TILE, WINDOWED)
    chunks = tl.cdiv(length - base, step)
    if chunks <= 1:  # its only chunk has written the output
        return
    index = (sequence.to(tl.int64) * HEADS + head) * most
    lane = tl.arange(0, COUNT)
    column = tl.arange(0, DIM)
    is_column = column < HEAD_DIM

    tops = tl.full([COUNT], float("-inf"), tl.float32)
    for start in range(0, chunks, COUNT):
        live = start + lane < chunks
        tops = tl.maximum(tops, tl.load(lse_ptr + index + start + lane, mask=live, other=float("-inf")))
    top = tl.max(tops, 0)
    total = 0.0
    if SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E_IN_KERNEL
        top = tl.maximum(top, sink)
        total = tl.exp2(sink - top)
    acc = tl.zeros([DIM], tl.float32)
    for start in range(0, chunks, COUNT):
        live = start + lane < chunks
        weights = tl.exp2(tl.load(lse_ptr + index + start + lane, mask=live, other=float("-inf")) - top)
        places = part_ptr + (index + start + lane)[:, None] * HEAD_DIM + column[None, :]
        parts = tl.load(places, mask=live[:, None] & is_column[None, :], other=0.0)
        total += tl.sum(weights, 0)
        acc += tl.sum(parts * weights[:, None], 0)

    token = sequence.to(tl.int64)
    if INDEXED:
        token = tl.load(rows_ptr + sequence).to(tl.int64)
    place = out_ptr + token * out_token + head * out_head + column
    tl.store(place, (acc / total).to(out_ptr.dtype.element_ty), mask=is_column)


def decode(
    q: torch.Tensor,
    layer: torch.Tensor,
    out: torch.Tensor,
    part: DecodePart,
    shape: KernelShape,
    *,
    chunk: int,
    splits: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """Attend for the rows of `part`; q and out [T, heads, head_dim], layer as in `AttentionBackend.attend`.

    `chunk` and `splits`: what DecodePart.split gives. Queues up to two launches and synchronises nothing.
    """
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads = layer.shape[2]
    group = heads // kv_heads
    pack = heads_per_program(group, shape.rows)
    count = part.count
    factor, cap = score_factors(scale, softcap)
    rows = part.lens if part.rows is None else part.rows
    if splits > 1:
        partial = torch.empty(count, heads, splits, head_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(count, heads, splits, dtype=torch.float32, device=q.device)
    else:
        partial = lse = out
    decode_kernel[(count, kv_heads * -(-group // pack), splits)](
        q, layer, out, partial, lse, rows, part.lens, part.tables, part.info, out if sinks is None else sinks,
        factor, cap, window or 0, chunk,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        layer.stride(0), layer.stride(1), layer.stride(2), layer.stride(3),
        HEADS=heads, GROUP=group, PACK=pack, HEAD_DIM=head_dim, DIM=padded(head_dim), BLOCK=layer.shape[3],
        ROWS=shape.rows, TILE=shape.tile, INDEXED=part.rows is not None, WINDOWED=window is not None,
        CAPPED=softcap is not None, SINKS=sinks is not None, PRECISION=precision(q.dtype), WIDEN=widened(q.dtype),
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    if splits > 1:
        merge_kernel[(count, heads)](
            partial, lse, out, rows, part.lens, part.info, out if sinks is None else sinks,
            window or 0, chunk, splits, out.stride(0), out.stride(1),
            HEADS=heads, HEAD_DIM=head_dim, DIM=padded(head_dim), TILE=shape.tile, COUNT=MERGED_AT_ONCE,
            INDEXED=part.rows is not None, WINDOWED=window is not None, SINKS=sinks is not None, num_warps=4,
        )  # fmt: skip
