"""Compiles every Triton kernel for devices that need not be here, and prints what became of it.

    python tests/kernels/triton_aot.py [--quick] [80 90 ...]

One line per kernel and capability: registers per thread, bytes of stack (spilled registers), bytes of shared memory,
matrix instructions (HGMMA on Hopper, HMMA, or FFMA for float32) and 16-byte loads. `--json` prints the rows as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vtop.kernels.gpu import decode as triton_ops
from vtop.kernels.gpu import prefill as triton_prefill
from vtop.kernels.gpu import write as triton_write
from vtop.kernels.gpu.common import precision
from vtop.kernels.gpu.plan import KernelShape, ShapeTable, heads_per_program, padded

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
INT32 = {"rows_ptr", "lens_ptr", "tables_ptr", "info_ptr", "work_ptr", "slots_ptr", "pairs_ptr"}
INT32 |= {"source_ptr", "target_ptr"}
FLOAT32 = {"part_ptr", "lse_ptr"}
SCALARS = {"factor": "fp32", "cap": "fp32"}
ANY_NUMBER = {"window", "chunk", "most"}  # not known to be a multiple of 16
FEATURES = {"plain": (False, False, False), "window": (True, False, False), "all": (True, True, True)}


@dataclass
class Job:
    """One kernel to compile."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    dtype: torch.dtype
    capability: int
    warps: int
    stages: int = 2


@dataclass
class Row:
    """What came of a job. `stack` above 0 means spills."""

    name: str
    capability: int
    registers: int = 0
    stack: int = 0
    shared: int = 0
    instructions: dict[str, int] = field(default_factory=dict)


def build(job: Job) -> Row:
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for i, name in enumerate(job.kernel.arg_names):
        if name in job.constants:
            signature[name] = "constexpr"
            continue
        if name.endswith("_ptr"):
            kind = "i32" if name in INT32 else "fp32" if name in FLOAT32 else NAMES[job.dtype]
            signature[name] = f"*{kind}"
        else:
            signature[name] = SCALARS.get(name, "i32")
        if name not in SCALARS and name not in ANY_NUMBER:
            attributes[(i,)] = [["tt.divisibility", 16]]
    constants = {(job.kernel.arg_names.index(name),): value for name, value in job.constants.items()}
    source = ASTSource(fn=job.kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", job.capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": job.warps, "num_stages": job.stages})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        code = _tool("nvdisasm", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of {job.name}: {usage[:300]}")
    count = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HGMMA", "HMMA", "FFMA")}
    count["16-byte"] = len(re.findall(r"\b(?:LDG|STG|LDGSTS)\.E\.[A-Z.]*128", code))
    kept = {name: number for name, number in count.items() if number}
    return Row(job.name, job.capability, int(found[1]), int(found[2]), int(compiled.metadata.shared), kept)


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run(
        [str(TOOLS / name), *arguments], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def decode_job(capability: int, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, features: str = "plain",
               block: int = 16) -> Job:  # fmt: skip
    group = heads // kv_heads
    shape = ShapeTable().decode(dim, group, dtype, divmod(capability, 10))
    windowed, capped, sinks = FEATURES[features]
    constants = {
        "HEADS": heads, "GROUP": group, "PACK": heads_per_program(group, shape.rows), "HEAD_DIM": dim,
        "DIM": padded(dim), "BLOCK": block, "ROWS": shape.rows, "TILE": shape.tile, "INDEXED": False,
        "WINDOWED": windowed, "CAPPED": capped, "SINKS": sinks, "PRECISION": precision(dtype), "WIDEN": False,
    }  # fmt: skip
    name = f"decode {heads}/{kv_heads}/{dim} {NAMES[dtype]} block {block} {features} {_text(shape)}"
    return Job(name, triton_ops.decode_kernel, constants, dtype, capability, shape.warps, shape.stages)


def merge_job(capability: int, dim: int, features: str = "all") -> Job:
    windowed, _, sinks = FEATURES[features]
    constants = {
        "HEADS": 32, "HEAD_DIM": dim, "DIM": padded(dim), "TILE": 64, "COUNT": triton_ops.MERGED_AT_ONCE,
        "INDEXED": False, "WINDOWED": windowed, "SINKS": sinks,
    }  # fmt: skip
    return Job(f"merge {dim} {features}", triton_ops.merge_kernel, constants, torch.bfloat16, capability, 4)


def prefill_job(capability: int, dtype: torch.dtype, group: int, dim: int, features: str = "plain", block: int = 16,
                small: bool = False) -> Job:  # fmt: skip
    windowed, capped, sinks = FEATURES[features]
    shape = ShapeTable().prefill(dim, dtype, windowed=windowed, small=small, block_size=block,
                                 capability=divmod(capability, 10))  # fmt: skip
    constants = {
        "GROUP": group, "PACK": heads_per_program(group, shape.rows), "HEAD_DIM": dim, "DIM": padded(dim),
        "BLOCK": block, "ROWS": shape.rows, "TILE": shape.tile, "WINDOWED": windowed, "CAPPED": capped,
        "SINKS": sinks, "PRECISION": precision(dtype), "WIDEN": False,
    }  # fmt: skip
    size = " small" if small else ""
    name = f"prefill group {group} {dim} {NAMES[dtype]} block {block} {features}{size} {_text(shape)}"
    return Job(name, triton_prefill.prefill_kernel, constants, dtype, capability, shape.warps, shape.stages)


def move_jobs(capability: int) -> list[Job]:
    write = {"KV_HEADS": 8, "HEAD_DIM": 128, "BLOCK": 16, "HEADS_PADDED": 8, "DIM": 128}
    odd = {"KV_HEADS": 3, "HEAD_DIM": 80, "BLOCK": 3, "HEADS_PADDED": 4, "DIM": 128}
    copy = {"WORDS": triton_write.WORDS_AT_ONCE}
    return [
        Job("write 8x128", triton_write.write_kernel, write, torch.bfloat16, capability, 4),
        Job("write 3x80, blocks of 3", triton_write.write_kernel, odd, torch.bfloat16, capability, 1),
        Job("copy", triton_write.copy_kernel, copy, torch.bfloat16, capability, 4),
    ]


def jobs(capability: int, quick: bool) -> list[Job]:
    """`quick`: every kernel, and the shapes that models have most."""
    bf16, fp32 = torch.bfloat16, torch.float32
    found = [
        decode_job(capability, bf16, 32, 8, 128),
        decode_job(capability, bf16, 9, 3, 64, "all"),
        merge_job(capability, 128),
        prefill_job(capability, bf16, 4, 128),
        *move_jobs(capability)[::2],
    ]
    if quick:
        return found
    found += [decode_job(capability, fp32, 32, 8, 128), prefill_job(capability, fp32, 3, 64)]
    found += [prefill_job(capability, bf16, 3, 64, "all"), *move_jobs(capability)]
    for dtype in (bf16, torch.float16, fp32):
        for heads, kv_heads, dim in ((14, 2, 64), (4, 4, 80), (8, 8, 96), (8, 1, 112), (32, 8, 128), (8, 1, 256)):
            for features in FEATURES:
                found.append(decode_job(capability, dtype, heads, kv_heads, dim, features))
                found.append(prefill_job(capability, dtype, heads // kv_heads, dim, features))
    for dim in (64, 128, 256):
        found += [prefill_job(capability, dtype, 4, dim, small=True) for dtype in (bf16, fp32)]
    for block in (1, 3, 64, 256):
        found.append(decode_job(capability, bf16, 32, 8, 128, block=block))
        found.append(prefill_job(capability, bf16, 4, 128, block=block))
    found += [prefill_job(capability, bf16, 4, 128, "all", block=1), prefill_job(capability, bf16, 8, 256, block=1)]
    found += [prefill_job(capability, bf16, 3, 64, block=1), decode_job(capability, bf16, 71, 1, 64)]
    found += [merge_job(capability, 64, "plain"), merge_job(capability, 256, "all")]
    return list({job.name: job for job in found}.values())


def _text(shape: KernelShape) -> str:
    return f"[{shape.rows}x{shape.tile} {shape.warps}w {shape.stages}s]"


def main() -> None:
    capabilities = [int(word) for word in sys.argv[1:] if word.isdigit()] or [80, 90]
    rows = []
    if "--json" not in sys.argv:
        print(f"triton {triton.__version__}\n{'kernel':62s} {'sm':>3s} {'regs':>4s} {'stack':>5s} {'shared':>6s}")
    for capability in capabilities:
        for job in jobs(capability, "--quick" in sys.argv):
            row = build(job)
            rows.append(asdict(row))
            if "--json" not in sys.argv:
                others = " ".join(f"{name} {number}" for name, number in row.instructions.items())
                print(
                    f"{row.name:62s} {row.capability:3d} {row.registers:4d} {row.stack:5d} {row.shared:6d} {others}",
                    flush=True,
                )
    if "--json" in sys.argv:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
