"""How the pool is sized (field case E099), and the tensor behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.model.kv_cache import KVCache
from vtop.engine.model.sizing import GIB, GpuMemory, available_memory, bytes_per_block, size_host_pool, size_pool

MIB = 1 << 20


def blocks(
    available: int | None, block_bytes: int = MIB, length: int = 8192, gpu: GpuMemory | None = None, **options: Any
) -> int:
    return size_pool(EngineConfig(**options), block_bytes, length, available=available, gpu=gpu).num_blocks


def test_bytes_per_block_is_what_a_cache_takes() -> None:
    cache = KVCache(3, 2, 4, 16, 8, torch.bfloat16, "cpu")
    assert bytes_per_block(2, 4, 8, 16, 2) == cache.bytes_per_block == cache.tensor.nbytes // 3


def test_the_default_is_a_quarter_of_what_is_free_and_at_most_four_gib() -> None:
    assert blocks(2 * GIB) == 512
    assert blocks(64 * GIB) == 4096
    assert blocks(None) == 1024, "memory unknown: a fixed size, never arithmetic with None"


def test_no_more_than_the_sequences_can_fill() -> None:
    assert blocks(64 * GIB, length=100, max_num_seqs=4) == 4 * 7


def test_what_was_asked_for_wins() -> None:
    assert blocks(2 * GIB, num_gpu_blocks_override=7, kv_cache_memory=1.0) == 7
    assert blocks(2 * GIB, kv_cache_memory=1.5) == 1536
    assert blocks(None, kv_cache_memory=1.5) == 1536


@pytest.mark.parametrize(
    "options", [{"num_gpu_blocks_override": 3000}, {"kv_cache_memory": 2.5}], ids=lambda o: next(iter(o))
)
def test_a_pool_larger_than_memory_is_refused_with_need_and_available(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=r"needs 2\.\d+ GiB of memory and 2 GiB is available") as refusal:
        blocks(2 * GIB, **options)
    assert refusal.value.field in options


def test_one_block_must_fit() -> None:
    with pytest.raises(BadValue, match="one block needs 1 MiB"):
        blocks(2 * GIB, kv_cache_memory=0.0005)
    assert blocks(2 * MIB) == 1
    with pytest.raises(BadValue, match="available"):
        blocks(MIB // 2)


def test_the_explanation_is_one_line_with_the_numbers() -> None:
    sizing = size_pool(EngineConfig(), MIB, 8192, available=2 * GIB)
    assert sizing.explanation == "512 blocks of 1 MiB = 512 MiB (25 % of 2 GiB free, at most 4 GiB)"


def test_on_a_gpu_weights_and_activations_come_first() -> None:
    gpu = GpuMemory(total=16 * GIB, free=10 * GIB, activations=2 * GIB)
    assert blocks(1, gpu=gpu, gpu_memory_utilization=0.75) == (12 - 6 - 2) * 1024
    with pytest.raises(BadValue, match="gpu_memory_utilization"):
        blocks(1, gpu=gpu, gpu_memory_utilization=0.4)


def host_blocks(available: int | None, *, pinned: bool = False, length: int = 8192, **options: Any) -> int:
    return size_host_pool(EngineConfig(**options), MIB, length, available=available, pinned=pinned).num_blocks


def test_the_host_pool_is_one_gib_by_default_and_four_on_a_gpu() -> None:
    assert host_blocks(64 * GIB) == host_blocks(None) == 1024
    assert host_blocks(64 * GIB, pinned=True) == 4096
    assert host_blocks(2 * GIB) == 512, "at most a quarter of what is left"
    assert host_blocks(MIB) == 0, "too little is no reason to refuse what nobody asked for"
    assert host_blocks(64 * GIB, length=100, max_num_seqs=4) == 4 * 7


def test_the_host_pool_has_the_size_that_was_asked_for() -> None:
    assert host_blocks(64 * GIB, swap_space=0) == host_blocks(64 * GIB, num_host_blocks_override=0) == 0
    assert host_blocks(4 * GIB, swap_space=1.5) == 1536
    assert host_blocks(4 * GIB, swap_space=1.5, num_host_blocks_override=7) == 7
    with pytest.raises(BadValue, match=r"swap_space.*one block needs 1 MiB.*or 0 for none"):
        host_blocks(4 * GIB, swap_space=0.0005)
    for options in ({"swap_space": -1}, {"num_host_blocks_override": -1}, {"swap_space": float("inf")}):
        with pytest.raises(BadValue, match="no host pool"):
            EngineConfig(**options)


@pytest.mark.parametrize(
    "options", [{"swap_space": 3}, {"num_host_blocks_override": 3000}], ids=lambda o: next(iter(o))
)
def test_a_host_pool_larger_than_memory_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=r"needs (3|2\.93) GiB of memory and 2 GiB is available") as refusal:
        host_blocks(2 * GIB, **options)
    assert refusal.value.field in options
    assert host_blocks(3 * GIB, **options) in (3000, 3072)
    with pytest.raises(BadValue, match="needs 4 GiB"):  # page-locked memory comes in powers of two
        host_blocks(3 * GIB, pinned=True, **options)


def _files(root: Path, **contents: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (root / name.replace("__", ".")).write_text(text)


def test_the_control_group_counts_when_it_is_tighter(tmp_path: Path) -> None:
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   8388608 kB\n")
    own.write_text("0::/app/worker\n")
    group = tmp_path / "cgroup"
    assert available_memory(meminfo, group, own) == 8 * GIB
    _files(group / "app" / "worker", memory__max="max\n", memory__current="5\n")
    assert available_memory(meminfo, group, own) == 8 * GIB
    _files(
        group / "app", memory__max=str(2 * GIB), memory__current=str(GIB), memory__stat=f"anon 7\ninactive_file {MIB}\n"
    )
    assert available_memory(meminfo, group, own) == GIB + MIB


def test_version_one_groups_are_read(tmp_path: Path) -> None:
    meminfo, own, group = tmp_path / "meminfo", tmp_path / "own", tmp_path / "cgroup"
    meminfo.write_text("MemAvailable:   8388608 kB\n")
    own.write_text("3:memory:/box\n2:cpu:/box\n")
    folder = group / "memory" / "box"
    _files(folder, memory__limit_in_bytes=str(GIB), memory__usage_in_bytes=str(MIB))
    assert available_memory(meminfo, group, own) == GIB - MIB
    _files(folder, memory__limit_in_bytes=str(2**63 - 4096))
    assert available_memory(meminfo, group, own) == 8 * GIB


def test_resizing_the_cache_keeps_what_was_written() -> None:
    cache = KVCache(6, 1, 1, 2, 4, torch.float32, "cpu")
    cache.tensor[:] = torch.arange(6.0).view(6, 1, 1, 1, 1, 1)
    cache.written(3)
    cache.copy([(3, 4)])
    cache.resize(20)
    assert cache.num_blocks == 20
    assert cache.tensor[:5, 0, 1, 0, 1, 3].tolist() == [0.0, 1.0, 2.0, 3.0, 3.0]
    cache.resize(2)
    cache.resize(3)
    assert cache.tensor[:2, 0, 0, 0, 0, 0].tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="at least one"):
        cache.resize(0)
