"""The CPU linear kernel, RMS norm and rotary embedding against float64 and against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vtop.kernels.cpu import linear as linear_cpu
from vtop.kernels.cpu.linear import LinearTask, RMSNorm, Scratch, rotate, supports, supports_rows

pytestmark = pytest.mark.skipif(linear_cpu.kernel() is None, reason="no kernel for this machine, or no numba")

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 2, 3, 5, 7, 16, 49, 101]  # both sides of a tile, of widening, of a block of rows
BOUND = {torch.float32: 2e-6, torch.bfloat16: 5e-3}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest error, relative to the results' usual size."""
    return float((got.double() - wanted).abs().max() / (wanted.abs().max() + 1e-9))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "size"), [(1, 64), (7, 64), (192, 576), (96, 1536), (130, 32)])
def test_linear_equals_float64(columns: int, size: int, dtype: torch.dtype) -> None:
    weights = [random(columns, size, dtype=dtype, seed=1), random(columns + 3, size, dtype=dtype, seed=2)]
    bias = random(columns, dtype=dtype, seed=3)
    task = LinearTask(weights, [bias, None], Scratch())
    for rows in ROWS:
        x = random(rows, size, dtype=dtype)
        wanted = [x.double() @ weight.double().T for weight in weights]
        first, second = task(x)
        assert first.dtype == second.dtype == dtype
        assert off(first, wanted[0] + bias.double()) < BOUND[dtype]
        assert off(second, wanted[1]) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_equals_float64(dtype: torch.dtype) -> None:
    gate, up = random(75, 128, dtype=dtype, seed=1), random(75, 128, dtype=dtype, seed=2)
    task = LinearTask([gate, up], [None, None], Scratch(), gated=True)
    for rows in ROWS:
        x = random(rows, 128, dtype=dtype)
        wanted = F.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)
        (got,) = task(x)
        assert off(got, wanted) < BOUND[dtype]


def test_gate_at_the_ends_of_the_exponential() -> None:
    size = 32
    gate, up = torch.zeros(8, size), torch.zeros(8, size)
    gate[:, 0] = torch.tensor([-1e4, -200.0, -90.0, -1e-8, 0.0, 1e-8, 90.0, 1e4])
    up[:, 0] = 1.0
    x = torch.zeros(1, size)
    x[0, 0] = 1.0
    (got,) = LinearTask([gate, up], [None, None], Scratch(), gated=True)(x)
    torch.testing.assert_close(got[0], F.silu(gate[:, 0]), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    weight = random(66, 192, dtype=dtype)
    task = LinearTask([weight], [None], Scratch())
    x = random(101, 192, dtype=dtype)
    together = task(x)[0]
    for rows in ROWS:
        assert torch.equal(task(x[-rows:])[0], together[-rows:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_shapes_of_the_input(threads: int, dtype: torch.dtype) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight = random(500, 576, dtype=dtype)
        task = LinearTask([weight], [None], Scratch())
        wide = random(2, 3, 1152, dtype=dtype)
        x = wide[..., ::2]  # not contiguous
        assert off(task(x)[0], x.double() @ weight.double().T) < BOUND[dtype]
        assert task(x)[0].shape == (2, 3, 500)
        assert task(x[:0])[0].shape == (0, 3, 500)
    finally:
        torch.set_num_threads(before)


def test_not_a_number_stays_one() -> None:
    for dtype in DTYPES:
        x = torch.full((1, 64), float("nan"), dtype=dtype)
        assert LinearTask([random(5, 64, dtype=dtype)], [None], Scratch())(x)[0].isnan().all()


def test_what_is_refused() -> None:
    assert supports(torch.zeros(4, 64))
    assert not supports(torch.zeros(4, 33))
    assert not supports(torch.zeros(64, 4).T)
    assert not supports(torch.zeros(4, 64, dtype=torch.float16))
    with pytest.raises(ValueError):
        LinearTask([torch.zeros(4, 33)], [None], Scratch())
    with pytest.raises(ValueError):
        LinearTask([torch.zeros(4, 64), torch.zeros(4, 32)], [None, None], Scratch())
    with pytest.raises(ValueError):
        LinearTask([torch.zeros(4, 64), torch.zeros(5, 64)], [None, None], Scratch(), gated=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm(dtype: torch.dtype) -> None:
    x, weight = random(2, 5, 96, dtype=dtype) * 3, random(96, dtype=dtype)
    scaled = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(dtype)
    got = RMSNorm(weight, 1e-5)(x)
    torch.testing.assert_close(got, scaled * weight, rtol=8e-3 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary(dtype: torch.dtype) -> None:
    x = random(1, 5, 3, 64, dtype=dtype).transpose(1, 2)
    cos, sin = random(1, 5, 64, dtype=dtype, seed=1), random(1, 5, 64, dtype=dtype, seed=2)
    turned = torch.cat((-x[..., 32:], x[..., :32]), -1)
    wanted = x.double() * cos.double() + turned.double() * sin.double()
    got = rotate(x, cos, sin)
    assert got.shape == x.shape
    assert off(got, wanted) < BOUND[dtype]
    assert supports_rows(32, dtype)
    assert not supports_rows(31, dtype)
