"""Every backend against a dense float64 computation that knows nothing of blocks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine.config import BackendName, EngineConfig
from vtop.engine.errors import BadValue
from vtop.kernels.api import NO_BLOCK, AttentionBatch, allocate_cache, copy_blocks
from vtop.kernels.registry import BACKEND_NAMES as ALL_BACKENDS
from vtop.kernels.registry import UnknownBackend, get_backend

BACKEND_NAMES = tuple(name for name in ALL_BACKENDS if name != "triton")  # needs a GPU, or its interpreter
BLOCK_SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass
class Case:
    """Sequences as (context before the step, new tokens)."""

    sequences: list[tuple[int, int]]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    layers: int = 2
    seed: int = 0
    magnitude: float = 1.0  # of queries and keys


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, scale: float, case: Case, sinks: torch.Tensor | None
) -> torch.Tensor:
    """q [Q, heads, D] at positions start …, k, v [N, kv_heads, D]: per head and query, sums written out in float64."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros_like(q)
    for head in range(case.heads):
        kv_head = head // (case.heads // case.kv_heads)
        for i in range(len(q)):
            position = start + i
            first = 0 if case.window is None else max(0, position - case.window + 1)
            scores = k[first : position + 1, kv_head] @ q[i, head] * scale
            if case.softcap is not None:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            top = scores.max()
            weights = torch.exp(scores - top)
            total = weights.sum()
            if sinks is not None:
                total = total + torch.exp(sinks[head].double() - top)
            out[i, head] = (weights / total) @ v[first : position + 1, kv_head]
    return out


def run(case: Case, backend_name: str, poison: float = math.nan) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the backend computes, what is right), each [T, heads, D]. Every slot without a token is poisoned."""
    generator = torch.Generator().manual_seed(case.seed)
    rng = random.Random(case.seed)
    size = case.block_size
    needs = [-(-(context + new) // size) for context, new in case.sequences]
    num_blocks = sum(needs) + 3
    ids = list(range(num_blocks))
    rng.shuffle(ids)
    tables: list[list[int]] = []
    for need in needs:
        stale = rng.randrange(2)  # a table may be longer than what is attended
        tables.append([ids.pop() for _ in range(need)] + ids[:stale])
    cache = allocate_cache(num_blocks, case.layers, case.kv_heads, size, case.head_dim, case.dtype, "cpu")
    cache.fill_(poison)
    layer = cache[:, case.layers - 1]
    backend = get_backend(backend_name)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(case.dtype)

    new_counts = [new for _, new in case.sequences]
    contexts = [context + new for context, new in case.sequences]
    keys = [draw(n, case.kv_heads, case.head_dim) * case.magnitude for n in contexts]
    values = [draw(n, case.kv_heads, case.head_dim) for n in contexts]
    history = [i for i, (context, _) in enumerate(case.sequences) if context]
    if history:
        before = [case.sequences[i][0] for i in history]
        batch = AttentionBatch.build(before, before, [tables[i] for i in history], size)
        old_k = torch.cat([keys[i][: case.sequences[i][0]] for i in history])
        old_v = torch.cat([values[i][: case.sequences[i][0]] for i in history])
        backend.write_kv(layer, old_k, old_v, batch)
    batch = AttentionBatch.build(new_counts, contexts, tables, size)
    q = draw(case.heads, sum(new_counts), case.head_dim).transpose(0, 1) * case.magnitude  # strided, as models pass it
    new_k = torch.cat([k[context:] for k, (context, _) in zip(keys, case.sequences, strict=True)])
    new_v = torch.cat([v[context:] for v, (context, _) in zip(values, case.sequences, strict=True)])
    backend.write_kv(layer, new_k, new_v, batch)
    sinks = draw(case.heads) if case.sinks else None
    scale = case.head_dim**-0.5
    got = backend.attend(q, layer, batch, scale, sliding_window=case.window, softcap=case.softcap, sinks=sinks)
    wanted, first = [], 0
    for i, (context, new) in enumerate(case.sequences):
        wanted.append(dense(q[first : first + new], keys[i], values[i], context, scale, case, sinks))
        first += new
    if case.layers > 1 and math.isnan(poison):
        assert cache[:, 0].isnan().all(), "another layer was written"
    return got, torch.cat(wanted)


def check(case: Case, backend_name: str) -> None:
    got, wanted = run(case, backend_name)
    assert got.dtype is case.dtype and got.shape == wanted.shape
    torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE[case.dtype], rtol=TOLERANCE[case.dtype])


MIXED = [(0, 7), (20, 1), (33, 5), (0, 1), (15, 1), (16, 16), (63, 1)]
FEATURES = [
    {},
    {"window": 6},
    {"window": 1},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 9, "softcap": 5.0, "sinks": True},
]


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "+".join(f) or "plain")
@pytest.mark.parametrize("shape", [(4, 4, 16), (9, 3, 64), (14, 2, 8), (4, 1, 80)], ids=str)
def test_heads_features_and_a_mixed_batch(
    backend: str, features: dict[str, object], shape: tuple[int, int, int]
) -> None:
    heads, kv_heads, head_dim = shape
    case = Case(MIXED, heads=heads, kv_heads=kv_heads, head_dim=head_dim, **features)  # type: ignore[arg-type]
    check(case, backend)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("window", [None, 5])
def test_block_sizes(backend: str, block_size: int, window: int | None) -> None:
    check(Case(MIXED, block_size=block_size, window=window), backend)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "+".join(f) or "plain")
def test_half_precision(backend: str, dtype: torch.dtype, features: dict[str, object]) -> None:
    check(Case(MIXED, heads=6, dtype=dtype, **features), backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize(("dtype", "magnitude"), [(torch.bfloat16, 4), (torch.float16, 60)], ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "+".join(f) or "plain")
def test_large_scores_in_half_precision(
    backend: str, dtype: torch.dtype, magnitude: float, features: dict[str, object]
) -> None:
    """Scores are neither rounded to bfloat16 nor past float16's largest number."""
    check(Case(MIXED, heads=6, head_dim=128, dtype=dtype, magnitude=magnitude, **features), backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("window", [None, 40])
def test_decodes_of_very_different_lengths(backend: str, window: int | None) -> None:
    """Long beside short, so that a padded gather of all at once would be wasteful and groups form."""
    sequences = [(n, 1) for n in (0, 1, 700, 2, 690, 15, 16, 17, 300, 3)]
    check(Case(sequences, heads=6, kv_heads=3, head_dim=64, window=window), backend)


@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(
        st.tuples(st.integers(0, 40), st.one_of(st.just(1), st.integers(1, 20))), min_size=1, max_size=6
    ),
    block_size=st.sampled_from(BLOCK_SIZES),
    window=st.one_of(st.none(), st.integers(1, 50)),
    softcap=st.sampled_from([None, 3.0]),
    sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_lengths(
    sequences: list[tuple[int, int]], block_size: int, window: int | None, softcap: float | None, sinks: bool, seed: int
) -> None:
    case = Case(sequences, 4, 2, 8, block_size, window, softcap, sinks, seed=seed)
    for backend in BACKEND_NAMES:
        check(case, backend)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_two_sequences_share_their_first_blocks(backend: str) -> None:
    generator = torch.Generator().manual_seed(1)
    case = Case([], heads=4, kv_heads=2, head_dim=8, block_size=4)
    cache = allocate_cache(6, 1, 2, 4, 8, torch.float32, "cpu").fill_(math.nan)
    layer, attention = cache[:, 0], get_backend(backend)
    k, v = (torch.randn(8, 2, 8, generator=generator) for _ in range(2))
    attention.write_kv(layer, k, v, AttentionBatch.build([8], [8], [[3, 1]], 4))
    q, new_k, new_v = (torch.randn(3, n, 8, generator=generator) for n in (4, 2, 2))
    batch = AttentionBatch.build([1, 2], [9, 10], [[3, 1, 5], [3, 1, 0]], 4)
    attention.write_kv(layer, new_k, new_v, batch)
    got = attention.attend(q, layer, batch, 0.5)
    first = dense(q[:1], torch.cat((k, new_k[:1])), torch.cat((v, new_v[:1])), 8, 0.5, case, None)
    second = dense(q[1:], torch.cat((k, new_k[1:])), torch.cat((v, new_v[1:])), 8, 0.5, case, None)
    torch.testing.assert_close(got.double(), torch.cat((first, second)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_what_lies_in_unused_slots_changes_nothing(backend: str) -> None:
    case = Case(MIXED, window=7, sinks=True)
    assert torch.equal(run(case, backend, poison=math.nan)[0], run(case, backend, poison=1e30)[0])


def test_padded_tables_end_in_a_sentinel() -> None:
    """A row taken over from a longer sequence must not keep that one's ids (field case E077)."""
    batch = AttentionBatch.build([1, 1], [20, 7], [[5, 6, 7, 8, 9], [1, 2, 3, 4]], 4)
    assert batch.tables.tolist() == [[5, 6, 7, 8, 9], [1, 2, NO_BLOCK, NO_BLOCK, NO_BLOCK]]
    assert batch.slots.tolist() == [9 * 4 + 3, 2 * 4 + 2]


@pytest.mark.parametrize(
    ("queries", "contexts", "tables"),
    [
        ([1], [9], [[0, 1]]), ([0], [4], [[0]]), ([5], [4], [[0, 1]]), ([1], [4], [[-1]]), ([], [], []),
        ([1], [9], [[-1, 0, 2]]), ([1, 1], [4], [[0]]), ([1], [4], [[0], [1]]),
    ],
)  # fmt: skip
def test_impossible_batches_are_refused(queries: list[int], contexts: list[int], tables: list[list[int]]) -> None:
    with pytest.raises(ValueError):
        AttentionBatch.build(queries, contexts, tables, 4)


def test_blocks_of_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        AttentionBatch.build([1], [4], [[0]], 0)


def test_copy_blocks_reads_every_source_before_it_writes() -> None:
    cache = torch.arange(5.0).view(5, 1, 1, 1, 1, 1).repeat(1, 3, 2, 2, 4, 8)
    other = cache[:3].clone()
    copy_blocks(cache, cache, [(0, 1), (1, 2), (0, 4)])
    assert cache[:, 2, 1, 1, 3, 7].tolist() == [0.0, 0.0, 1.0, 3.0, 0.0]
    copy_blocks(cache, other, [(3, 0), (0, 2)])
    assert other[:, 2, 1, 1, 3, 7].tolist() == [3.0, 1.0, 0.0]
    copy_blocks(cache, cache, [])


def test_an_unknown_backend_is_named_with_the_choices() -> None:
    with pytest.raises(UnknownBackend, match="auto, triton, numba, torch, reference"):
        get_backend("flash")
    assert get_backend("auto", "cpu").name == "numba"
    assert get_args(BackendName) == ("auto", *ALL_BACKENDS)
    with pytest.raises(BadValue, match="flash"):
        EngineConfig(attention_backend="flash")  # type: ignore[arg-type]
