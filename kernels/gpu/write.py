# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,unused-ignore"
"""Moves in Triton: new K and V into their slots, and whole blocks from one place to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from vtop.kernels.gpu.plan import upload

WORDS_AT_ONCE = 4096


@triton.jit
def write_kernel(
    k_ptr,  # [T, KV_HEADS, HEAD_DIM]
    v_ptr,
    cache_ptr,  # [blocks, 2, KV_HEADS, BLOCK, HEAD_DIM]
    slots_ptr,  # int32 [T]; negative: written nowhere
    k_token,
    k_head,
    v_token,
    v_head,
    cache_block,
    cache_kv,
    cache_head,
    cache_slot,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr,
):
    """Grid: (T,)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    head = tl.arange(0, HEADS_PADDED)[:, None]
    column = tl.arange(0, DIM)[None, :]
    wanted = (head < KV_HEADS) & (column < HEAD_DIM)
    k = tl.load(k_ptr + token * k_token + head * k_head + column, mask=wanted)
    v = tl.load(v_ptr + token * v_token + head * v_head + column, mask=wanted)
    block = (slot // BLOCK).to(tl.int64)
    place = cache_ptr + block * cache_block + (slot % BLOCK) * cache_slot + head * cache_head + column
    tl.store(place, k.to(cache_ptr.dtype.element_ty), mask=wanted)
    tl.store(place + cache_kv, v.to(cache_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def copy_kernel(source_ptr, target_ptr, pairs_ptr, source_row, target_row, words, WORDS: tl.constexpr):
    """Grid: (pairs, ceil(words / WORDS)). Rows of `words` numbers, row pairs[i, 0] to row pairs[i, 1]."""
    pair = pairs_ptr + tl.program_id(0) * 2
    source = tl.load(pair).to(tl.int64) * source_row
    target = tl.load(pair + 1).to(tl.int64) * target_row
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    wanted = word < words
    tl.store(target_ptr + target + word, tl.load(source_ptr + source + word, mask=wanted), mask=wanted)


def write(layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Store k, v [T, kv_heads, head_dim] in `slots` [T] (int32; a negative one is skipped) of a layer's cache view."""
    if k.stride(-1) != 1:
        k = k.contiguous()
    if v.stride(-1) != 1:
        v = v.contiguous()
    tokens, kv_heads, head_dim = k.shape
    heads_padded, dim = triton.next_power_of_2(kv_heads), triton.next_power_of_2(head_dim)
    write_kernel[(tokens,)](
        k, v, layer, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        layer.stride(0), layer.stride(1), layer.stride(2), layer.stride(3),
        KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK=layer.shape[3], HEADS_PADDED=heads_padded, DIM=dim,
        num_warps=4 if heads_padded * dim >= 1024 else 1,
    )  # fmt: skip


def copy(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, `source[a]` to `target[b]` for pairs (a, b); both [blocks, …] with contiguous blocks.

    The tensors may be one and the same. Every source is read before any target is written: a source may occur more
    than once and may be a target too, a target may occur only once. Raises IndexError for a block that is not there.
    """
    if not pairs:
        return
    for a, b in pairs:
        if not (0 <= a < source.shape[0] and 0 <= b < target.shape[0]):
            raise IndexError(f"copy of block {a} of {source.shape[0]} to block {b} of {target.shape[0]}")
    from_words, to_words = _words(source), _words(target)
    index = upload(pairs, target.device)
    if source.data_ptr() == target.data_ptr() and {a for a, _ in pairs} & {b for _, b in pairs}:
        # Programs run in any order, so a block that is read and written goes through a copy.
        rows = index.long()
        to_words.index_copy_(0, rows[:, 1], from_words.index_select(0, rows[:, 0]))
        return
    words = from_words.shape[1]
    copy_kernel[(len(pairs), triton.cdiv(words, WORDS_AT_ONCE))](
        from_words, to_words, index, from_words.stride(0), to_words.stride(0), words, WORDS=WORDS_AT_ONCE, num_warps=4
    )


def _words(blocks: torch.Tensor) -> torch.Tensor:
    """[blocks, words] over the same memory, in the widest integers that blocks are a multiple of."""
    rows = blocks.view(blocks.shape[0], -1)
    size = rows.shape[1] * rows.element_size()
    return rows.view(next(d for d in (torch.int32, torch.int16, torch.uint8) if size % d.itemsize == 0))
