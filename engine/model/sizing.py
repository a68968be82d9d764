"""How many blocks the device pool and the host pool get, and why. Sizes are in bytes unless a name says otherwise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue

GIB = 1 << 30
CPU_SHARE = 0.25
CPU_AT_MOST = 4 * GIB
HOST_DEFAULT = 1 * GIB
HOST_DEFAULT_CUDA = 4 * GIB
CPU_UNKNOWN = 1 * GIB  # where the system does not tell how much memory is free


@dataclass(frozen=True, slots=True)
class KVSizing:
    """The pool's size. `explanation` is one line for the header: '512 blocks of 1 MiB = 512 MiB (kv_cache_memory)'."""

    num_blocks: int
    bytes_per_block: int
    explanation: str


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What a profile run found: total and free bytes of the device with the model loaded, and the activations' peak."""

    total: int
    free: int
    activations: int


def bytes_per_block(num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, itemsize: int) -> int:
    """K and V of one block over all layers; itemsize is the bytes of one number."""
    return num_layers * 2 * num_kv_heads * head_dim * block_size * itemsize


def size_pool(
    config: EngineConfig,
    block_bytes: int,
    max_model_len: int,
    *,
    available: int | None,
    gpu: GpuMemory | None = None,
) -> KVSizing:
    """Choose the number of blocks. `available` is the host memory that may still be taken (None: unknown).

    Order: num_gpu_blocks_override; on GPU (`gpu` given) the share of gpu_memory_utilization that weights and
    activations leave; on CPU kv_cache_memory, else 25 % of the available memory and at most 4 GiB. Raises BadValue,
    with need and available, when the pool does not fit or has no block.
    """
    free = available if gpu is None else gpu.free
    if config.num_gpu_blocks_override is not None:
        blocks, why = config.num_gpu_blocks_override, "num_gpu_blocks_override"
        _check_fits("num_gpu_blocks_override", blocks, blocks * block_bytes, free)
        return _sizing(blocks, block_bytes, why)
    if gpu is not None:
        room = int(gpu.total * config.gpu_memory_utilization) - (gpu.total - gpu.free) - gpu.activations
        if room < block_bytes:
            raise BadValue(
                "gpu_memory_utilization",
                config.gpu_memory_utilization,
                f"leaves {_size(max(room, 0))} for KV after weights and {_size(gpu.activations)} of activations, "
                f"and one block needs {_size(block_bytes)}; raise it or lower max_num_batched_tokens",
            )
        return _sizing(room // block_bytes, block_bytes, f"{config.gpu_memory_utilization:.0%} of GPU memory")
    if config.kv_cache_memory is not None:
        room = int(config.kv_cache_memory * GIB)
        _check_fits("kv_cache_memory", config.kv_cache_memory, room, free)
        if room < block_bytes:
            raise BadValue(
                "kv_cache_memory",
                config.kv_cache_memory,
                f"one block needs {_size(block_bytes)}; give at least {block_bytes / GIB:.3g} (GiB)",
            )
        return _sizing(room // block_bytes, block_bytes, "kv_cache_memory")
    room = CPU_UNKNOWN if free is None else min(int(free * CPU_SHARE), CPU_AT_MOST)
    why = "default" if free is None else f"25 % of {_size(free)} free, at most 4 GiB"
    blocks = max(1, room // block_bytes)
    useful = config.max_num_seqs * -(-max_model_len // config.block_size)
    if useful <= blocks:
        blocks, why = useful, f"enough for {config.max_num_seqs} sequences of {max_model_len} tokens"
    _check_fits("kv_cache_memory", None, blocks * block_bytes, free)
    return _sizing(blocks, block_bytes, why)


def size_host_pool(
    config: EngineConfig, block_bytes: int, max_model_len: int, *, available: int | None, pinned: bool
) -> KVSizing:
    """Choose the number of blocks of the host pool; there may be none.

    `available` is the host memory that is left for it (None: unknown). `pinned`: the device is cuda, and the memory is
    page-locked in a piece whose size is rounded up to a power of two. Order: num_host_blocks_override; swap_space; by
    default 1 GiB (cuda: 4), but at most a quarter of what is available and no more than all sequences fill. Raises
    BadValue, with need and available, when what was asked for does not fit.
    """
    override, space = config.num_host_blocks_override, config.swap_space
    if override is not None:
        _check_fits("num_host_blocks_override", override, _locked(override * block_bytes, pinned), available)
        return _sizing(override, block_bytes, "num_host_blocks_override")
    if space is not None:
        blocks = int(space * GIB) // block_bytes
        if space > 0 and not blocks:
            need = f"one block needs {_size(block_bytes)}; give at least {block_bytes / GIB:.3g} (GiB), or 0 for none"
            raise BadValue("swap_space", space, need)
        _check_fits("swap_space", space, _locked(blocks * block_bytes, pinned), available)
        return _sizing(blocks, block_bytes, "swap_space")
    room = HOST_DEFAULT_CUDA if pinned else HOST_DEFAULT
    if available is not None:
        room = min(room, int(available * CPU_SHARE))
    useful = config.max_num_seqs * -(-max_model_len // config.block_size)
    return _sizing(min(room // block_bytes, useful), block_bytes, "default")


def _locked(count: int, pinned: bool) -> int:
    """Bytes that an allocation of `count` takes."""
    return 1 << (count - 1).bit_length() if pinned and count else count


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Bytes of host memory that this process may still take: the machine's, or its control group's if that is less."""
    found = [value for value in (_machine_memory(meminfo), _cgroup_memory(cgroup, own)) if value is not None]
    return min(found) if found else None


def _machine_memory(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # not Linux: half of what is built in
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return None


def _cgroup_memory(root: Path, own: Path) -> int | None:
    """The tightest limit minus use, from this process's group up to the root; version 2, else version 1."""
    try:
        groups = dict(line.split(":", 2)[1:] for line in own.read_text().splitlines())
    except (OSError, ValueError):
        groups = {}
    rooms: list[int] = []
    for controller, base, limit, used, reclaimable in (
        ("", root, "memory.max", "memory.current", "inactive_file"),
        ("memory", root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        folder = base / groups.get(controller, "/").lstrip("/")
        for place in (folder, *folder.parents):
            room = _room(place / limit, place / used, place / "memory.stat", reclaimable)
            if room is not None:
                rooms.append(room)
            if place == base:
                break
    return min(rooms) if rooms else None


def _room(limit: Path, used: Path, stat: Path, reclaimable: str) -> int | None:
    try:
        bound, taken = int(limit.read_text()), int(used.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None
    if bound >= 1 << 60:
        return None
    cache = 0
    try:
        for line in stat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == reclaimable:
                cache = int(value)
    except (OSError, ValueError):
        pass
    return max(0, bound - taken + cache)


def check_resize(num_blocks: int, block_bytes: int, available: int | None) -> None:
    """Raises BadValue when `num_blocks` cannot be allocated beside the pool there is."""
    if num_blocks < 1:
        raise BadValue("num_blocks", num_blocks, "give at least 1")
    _check_fits("num_blocks", num_blocks, num_blocks * block_bytes, available)


def _check_fits(field: str, value: object, need: int, available: int | None) -> None:
    if available is not None and need > available:
        raise BadValue(field, value, f"needs {_size(need)} of memory and {_size(available)} is available; give less")


def _sizing(blocks: int, block_bytes: int, why: str) -> KVSizing:
    text = f"{blocks} blocks of {_size(block_bytes)} = {_size(blocks * block_bytes)} ({why})"
    return KVSizing(blocks, block_bytes, text)


def _size(count: int) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
