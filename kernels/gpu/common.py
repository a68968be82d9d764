# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,unused-ignore"
"""What the Triton kernels share. Importing this module imports triton; no module that is imported eagerly does."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634
LOG2E_IN_KERNEL = tl.constexpr(LOG2E)

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Whether kernels run on CPU tensors, statement by statement: TRITON_INTERPRET=1 when triton was imported."""


def widened(dtype: torch.dtype) -> bool:
    """Whether matrix products must be computed in float32: the interpreter multiplies the bits of bfloat16 numbers."""
    return INTERPRETED and dtype is torch.bfloat16


def precision(dtype: torch.dtype) -> str:
    """Triton's `input_precision`; float32 is never shortened to tf32, half precision ignores it."""
    return "ieee" if dtype is torch.float32 else "tf32"


def score_factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """(factor of q·k, cap) as `base2_scores` takes them."""
    if softcap is None:
        return scale * LOG2E, 0.0
    return scale * 2.0 * LOG2E / softcap, softcap * LOG2E


@triton.jit
def product(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """Matrix product with float32 accumulation."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def base2_scores(products, factor, cap, CAPPED: tl.constexpr):
    """Scores times log2(e), so that exp2 makes weights of them.

    Capped: c * tanh(s / c) with the exponential of a number that is never positive, so nothing overflows.
    """
    scores = products * factor
    if CAPPED:
        small = tl.exp2(-tl.abs(scores))
        ratio = (1.0 - small) / (1.0 + small)
        scores = tl.where(scores < 0, -ratio, ratio) * cap
    return scores


@triton.jit
def add_sink(top, total, acc, sink):
    """One further logit per row that takes weight and gives no value. `sink` is in base 2."""
    new_top = tl.maximum(top, sink)
    shrink = tl.exp2(top - new_top)
    return total * shrink + tl.exp2(sink - new_top), acc * shrink[:, None]
