"""The numba backend: what it shares with no other (units, threads, cache, falling back), and its accuracy.

`test_attention.py` holds it to the same cases as the others.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config

from vtop.kernels import registry
from vtop.kernels.api import AttentionBatch, BackendUnavailable, allocate_cache
from vtop.kernels.cpu import runtime
from vtop.kernels.cpu.layout import CHUNK, FIRST_HEAD, HIGH, KIND, LAST_HEAD, LOW, PREFILL, TOKEN, TOKENS
from vtop.kernels.cpu.paged import NumbaPagedAttention
from vtop.kernels.cpu.plan import plan_units
from vtop.kernels.plain.paged import TorchPagedAttention
from vtop.kernels.reference import ReferenceAttention
from vtop.kernels.registry import get_backend

ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
ATTENTION = NumbaPagedAttention(strict=True)


def attend(
    queries: list[int],
    contexts: list[int],
    *,
    tables: list[list[int]] | None = None,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(numba's, the float64 reference's) over the same cache, in which only slots that hold tokens are numbers."""
    generator = torch.Generator().manual_seed(seed)
    needs = [-(-context // block_size) for context in contexts]
    if tables is None:
        ids = torch.randperm(sum(needs), generator=generator).tolist()
        tables = [[ids.pop() for _ in range(need)] for need in needs]
    count = max(map(max, tables)) + 1
    cache = allocate_cache(count, 2, kv_heads, block_size, head_dim, dtype, "cpu").fill_(math.nan)
    layer = cache[:, 1]
    for table, context in zip(tables, contexts, strict=True):
        for i, block in enumerate(table):
            used = min(block_size, context - i * block_size)
            layer[block, :, :, :used] = torch.randn(2, kv_heads, used, head_dim, generator=generator).to(dtype)
    batch = AttentionBatch.build(queries, contexts, tables, block_size)
    q = torch.randn(sum(queries), heads, head_dim, generator=generator).to(dtype)
    options = {
        "sliding_window": window,
        "softcap": softcap,
        "sinks": torch.randn(heads, generator=generator).to(dtype) if sinks else None,
    }
    got = ATTENTION.attend(q, layer, batch, head_dim**-0.5, **options)  # type: ignore[arg-type]
    reference = ReferenceAttention(torch.float64)
    return got, reference.attend(q.double(), layer.double(), batch, head_dim**-0.5, **options)  # type: ignore[arg-type]


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(9, 3, 64), (14, 2, 64), (8, 8, 80), (8, 1, 256), (5, 1, 72), (4, 2, 128)]
)
def test_accuracy_for_the_shapes_of_models(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> None:
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
    for options in ({}, {"window": 70, "softcap": 4.0, "sinks": True}):
        got, wanted = attend([1, 1, 2, 37, 1], [1, 300, 66, 150, 64], **shape, **options)  # type: ignore[arg-type]
        assert got.dtype is dtype and relative_error(got, wanted) < ERROR[dtype]


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(
        st.tuples(st.one_of(st.just(1), st.integers(1, 70)), st.integers(0, 300)), min_size=1, max_size=5
    ),
    block_size=st.sampled_from((1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 256)),
    group=st.integers(1, 8),
    window=st.one_of(st.none(), st.integers(1, 320)),
    softcap=st.sampled_from([None, 3.0]),
    sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_batch(
    sequences: list[tuple[int, int]],
    block_size: int,
    group: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    seed: int,
) -> None:
    queries = [new for new, _ in sequences]
    contexts = [new + before for new, before in sequences]
    got, wanted = attend(
        queries,
        contexts,
        heads=2 * group,
        block_size=block_size,
        window=window,
        softcap=softcap,
        sinks=sinks,
        seed=seed,
    )
    assert relative_error(got, wanted) < ERROR[torch.float32]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), length=st.integers(1, 60))
def test_blocks_that_are_shared_repeated_and_out_of_order(data: st.DataObject, length: int) -> None:
    """Full blocks may stand anywhere, in several tables or twice in one; only last ones are partly filled."""
    size = 4
    full = length // size
    tables = [data.draw(st.lists(st.integers(0, 5), min_size=full, max_size=full)) for _ in range(2)]
    if length % size:
        tables = [[*table, 6 + i] for i, table in enumerate(tables)]
    got, wanted = attend([1, min(length, 5)], [length, length], tables=tables, block_size=size)
    assert relative_error(got, wanted) < ERROR[torch.float32]


def test_a_sequence_gets_the_same_bits_alone_and_in_company() -> None:
    """Chunks are cut at fixed places, so that what else runs, and on how many threads, changes no decode."""
    generator = torch.Generator().manual_seed(3)
    cache = torch.randn(200, 1, 2, 2, 8, 32, generator=generator)
    q = torch.randn(9, 6, 32, generator=generator)
    tables = [list(range(i * 20, i * 20 + 88)) for i in range(5)] * 2
    lengths = [700, 3, 256, 257, 512, 64, 100, 650, 1]
    layer = cache[:, 0]
    together = ATTENTION.attend(q, layer, AttentionBatch.build([1] * 9, lengths, tables[:9], 8), 0.2)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for i, length in enumerate(lengths):
            batch = AttentionBatch.build([1], [length], [tables[i]], 8)
            assert torch.equal(ATTENTION.attend(q[i : i + 1], layer, batch, 0.2)[0], together[i])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_units_cover_every_token_head_and_key_once(threads: int) -> None:
    queries, contexts, window = [1, 40, 2, 1, 3], [900, 90, 300, 5, 3], 600
    batch = AttentionBatch.build(queries, contexts, [list(range(60))] * 5, 16)
    units = plan_units(batch, 3, 5, window, threads)
    seen = np.zeros((sum(queries), 3, 900), dtype=int)
    for row in units.table.tolist():
        for token in range(row[TOKEN], row[TOKEN] + row[TOKENS]):
            at = int(batch.positions[token])
            low, high = (
                (max(row[LOW], at - window + 1), min(row[HIGH], at + 1))
                if row[KIND] == PREFILL
                else row[LOW : HIGH + 1]
            )
            seen[token, row[FIRST_HEAD] : row[LAST_HEAD], low:high] += 1
    for token, position in enumerate(batch.positions.tolist()):
        wanted = np.zeros(900, dtype=int)
        wanted[max(0, position - window + 1) : position + 1] = 1
        assert (seen[token] == wanted).all()
    assert (units.table[units.table[:, KIND] != PREFILL, HIGH] % CHUNK <= CHUNK).all()


def test_not_a_number_stays_one() -> None:
    """A model that computes NaN must be seen to, not hidden by a comparison."""
    for queries in (1, 9):
        cache = torch.randn(2, 1, 2, 2, 16, 16)
        q = torch.randn(queries, 4, 16)
        q[0, 1] = math.nan
        out = ATTENTION.attend(q, cache[:, 0], AttentionBatch.build([queries], [20], [[0, 1]], 16), 0.25)
        assert out[0, 1].isnan().all() and not out[0, 0].isnan().any()


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    """With one key the output is that key's value; queries cannot change it."""
    cache = torch.zeros(1, 1, 2, 1, 16, 16, dtype=torch.bfloat16)
    values = torch.randn(16, dtype=torch.float32).to(torch.bfloat16)
    cache[0, 0, 1, 0, 0] = values
    q = torch.randn(1, 2, 16).to(torch.bfloat16)
    out = ATTENTION.attend(q, cache[:, 0], AttentionBatch.build([1], [1], [[0]], 16), 1.0)
    assert torch.equal(out[0, 0], values) and torch.equal(out[0, 1], values)


def test_other_threads_run_during_a_call() -> None:
    """Another thread counts during one long call, which it could not if the call kept the GIL."""
    context = 4096
    cache = torch.zeros(context // 16, 1, 2, 2, 16, 64)
    q = torch.zeros(context, 16, 64)
    layer, tables = cache[:, 0], [list(range(context // 16))]
    counted, running = 0, False
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += running
            time.sleep(0.0002)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        batch = AttentionBatch.build([context], [context], tables, 16)
        before = sys.getswitchinterval()
        sys.setswitchinterval(30)  # the GIL changes hands only when it is given up
        try:
            running = True
            ATTENTION.attend(q, layer, batch, 0.1)
            running = False
        finally:
            sys.setswitchinterval(before)
    finally:
        done.set()
        counter.join()
    assert counted >= 5, f"{counted} turns of another thread"


def test_threads_with_batches_of_their_own_do_not_disturb_each_other() -> None:
    cache = torch.randn(64, 1, 2, 2, 16, 64)
    q = torch.randn(4, 8, 64)
    tables = [torch.randperm(64).tolist() for _ in range(4)]
    lengths = [1000, 700, 3, 513]
    wanted = ATTENTION.attend(q, cache[:, 0], AttentionBatch.build([1] * 4, lengths, tables, 16), 0.1)
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            batch = AttentionBatch.build([1] * 4, lengths, tables, 16)
            if not torch.equal(ATTENTION.attend(q, cache[:, 0], batch, 0.1), wanted):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_head_sizes_without_a_kernel_go_to_torch_and_the_name_says_so() -> None:
    attention = NumbaPagedAttention()
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(4, 1, 2, 2, 16, 36, generator=generator)
    batch = AttentionBatch.build([1, 3], [20, 9], [[0, 1], [2]], 16)
    q = torch.randn(4, 4, 36, generator=generator)
    wanted = TorchPagedAttention().attend(q, cache[:, 0], batch, 0.2)
    assert torch.equal(attention.attend(q, cache[:, 0], batch, 0.2), wanted)
    assert attention.name == "numba" and "torch computes" in attention.note and "36 in float32" in attention.note
    attention.warm_up(36, torch.float32)
    assert attention.name == "torch" and "36" in attention.note


def test_queries_of_another_dtype_than_the_cache_go_to_torch_and_the_note_says_so() -> None:
    attention = NumbaPagedAttention()
    layer, batch = torch.ones(1, 2, 1, 4, 64, dtype=torch.bfloat16), AttentionBatch.build([1], [4], [[0]], 4)
    attention.attend(torch.ones(1, 2, 64, dtype=torch.bfloat16), layer, batch, 1.0)
    assert not attention.note
    attention.attend(torch.ones(1, 2, 64), layer, batch, 1.0)
    assert attention.name == "numba" and attention.note.endswith("heads of 64 in float32 over a cache in bfloat16")


def test_code_that_computes_nonsense_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumbaPagedAttention, "_test", lambda *_: 1.0)
    attention = NumbaPagedAttention()
    attention.warm_up(64, torch.float32)
    assert attention.name == "torch" and "1.0e+00 off" in attention.note
    got = attention.attend(
        torch.ones(1, 2, 64), torch.ones(1, 2, 1, 4, 64), AttentionBatch.build([1], [4], [[0]], 4), 1.0
    )
    assert torch.equal(got, torch.ones(1, 2, 64))
    with pytest.raises(BackendUnavailable, match="choose torch"):
        NumbaPagedAttention(strict=True).warm_up(64, torch.float32)


def test_queries_that_are_not_the_batchs_are_refused() -> None:
    layer = torch.zeros(4, 2, 1, 16, 64)
    batch = AttentionBatch.build([1, 1], [5, 9], [[0], [1]], 16)
    with pytest.raises(ValueError, match="3 queries for a batch of 2 tokens"):
        NumbaPagedAttention().attend(torch.zeros(3, 2, 64), layer, batch, 1.0)


def test_without_numba_auto_takes_torch_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vtop.kernels.cpu.paged", None)
    attention = get_backend("auto")
    assert attention.name == "torch" and attention.note.startswith("numba cannot be imported")
    with pytest.raises(BackendUnavailable, match="install numba, or choose torch"):
        get_backend("numba")


def test_backends_are_refused_on_devices_they_do_not_run_on() -> None:
    with pytest.raises(BackendUnavailable, match="cuda only"):
        get_backend("triton", "cpu")
    with pytest.raises(BackendUnavailable, match="cpu only"):
        get_backend("numba", "cuda")
    assert get_backend("auto", "cpu").name == "numba" and get_backend("auto", "mps").name == "torch"
    reference = get_backend("reference")
    assert registry.warm_up(reference, 64, torch.float32) is reference  # compiles nothing


class Choosy(TorchPagedAttention):
    """Has no kernel for large heads, as the Triton backend."""

    def warm_up(self, head_dim: int, dtype: torch.dtype) -> None:
        if head_dim > 256:
            raise BackendUnavailable("choosy", f"head size {head_dim} is above 256; choose torch")


def test_what_a_backend_does_not_run_goes_to_torch_unless_it_was_asked_for_by_name() -> None:
    backend = Choosy()
    assert registry.warm_up(backend, 256, torch.float32, strict=False) is backend
    instead = registry.warm_up(backend, 257, torch.float32, strict=False)
    assert type(instead) is TorchPagedAttention
    assert instead.note == "choosy cannot be used here: head size 257 is above 256; choose torch"
    with pytest.raises(BackendUnavailable, match="above 256"):
        registry.warm_up(backend, 257, torch.float32)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch's OpenMP library is found through /proc")
def test_torchs_own_pool_is_found_and_its_absence_is_no_error(tmp_path: Path) -> None:
    assert runtime.parallel_entry() is not None
    other = tmp_path / "maps"
    other.write_text("7f00-7f01 r-xp 00000000 08:01 1 /lib/libgomp_of_none.so.1\n7f02-7f03 rw-p 00000000 00:00 0\n")
    assert runtime.parallel_entry(str(other)) is None
    assert runtime.parallel_entry(str(tmp_path / "nothing")) is None


START = """
import sys, time, torch
from vtop.kernels.registry import get_backend
assert "numba" not in sys.modules
backend = get_backend("numba")
backend.warm_up(64, torch.float32)
from vtop.kernels.cpu.entry import attention_function
lanes = next(iter(backend._functions))[1]
print(attention_function("float32", lanes).cache_hits)
"""


def start(folder: Path) -> int:
    """Cache hits of a new process that compiles or loads the float32 kernel."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", START]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def test_compiled_code_is_kept_for_the_next_process(tmp_path: Path) -> None:
    assert [start(tmp_path) for _ in range(2)] == [0, 1]
    assert list(tmp_path.glob("vtop-*/*/*.nbc"))


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    find = runtime.cache_folder.__wrapped__
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "sub"))
    assert find() is None
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "sub"))
    assert find() == next((tmp_path / "sub").iterdir())
    monkeypatch.setattr(runtime, "cache_folder", lambda: None)
    with runtime._caching() as cached:
        assert not cached
