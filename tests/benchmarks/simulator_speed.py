"""How fast the simulator is, and whether its memory grows with what is over.

Prints for each workload: simulated steps and requests per second of one core, real seconds, and resident memory.

    python tests/benchmarks/simulator_speed.py [--requests 100000] [--profile] [--vidur PYTHON]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import subprocess
import time
from pathlib import Path

from vtop.engine.config import EngineConfig
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.simulator import Simulation, simulate
from vtop.engine.traces.read import read_trace, shipped_trace
from vtop.engine.workload.distributions import Fixed, Poisson, Uniform
from vtop.engine.workload.generate import WorkloadSpec, generate
from vtop.engine.workload.jobs import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000, help="of the large workload")
    parser.add_argument("--profile", action="store_true", help="where the time of the large workload goes")
    parser.add_argument("--vidur", type=Path, help="a Python with vidur installed, to run its own sample")
    options = parser.parse_args()
    print(
        f"{'workload':<34}{'requests':>10}{'steps':>10}{'running':>9}{'wall s':>9}{'steps/s':>10}{'req/s':>9}{'MB':>8}"
    )
    card = find_card("rtx4090")
    config = EngineConfig(
        preset="vllm-v1",
        num_gpu_blocks_override=2588,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=16384,
    )
    report("recorded run, RTX 4090", Simulation(read_trace(shipped_trace("rtx4090")), config, card))
    for share in (4, 2, 1):  # memory per finished request shows in the differences
        count = options.requests // share
        large = Simulation(thousand_running(count), thousand(), find_card("h100", "llama-8b"))
        if options.profile and share == 1:
            profile(large)
        else:
            report("1,000 running", large)
    if options.vidur:
        vidur(options.vidur)


def thousand() -> EngineConfig:
    return EngineConfig(
        num_gpu_blocks_override=50_000, max_num_seqs=1000, max_num_batched_tokens=2048, max_model_len=8192
    )


def thousand_running(count: int) -> Workload:
    """Short prompts and 100 to 300 output tokens, faster than 1,000 sequences can end."""
    spec = WorkloadSpec(requests=count, arrivals=Poisson(2000.0), prompt=Fixed(64), output=Uniform(50, 150))
    return generate(spec, 0)


def report(name: str, simulation: Simulation) -> None:
    before = memory()
    started = time.perf_counter()
    result = simulate(simulation)
    wall = time.perf_counter() - started
    totals, requests = result.ledger.totals, len(simulation.workload.jobs)
    running = totals.output_tokens / max(1, totals.steps)
    print(
        f"{name:<34}{requests:>10,}{totals.steps:>10,}{running:>9,.0f}{wall:>9.1f}{totals.steps / wall:>10,.0f}"
        f"{requests / wall:>9,.0f}{memory() - before:>8,.0f}",
        flush=True,
    )


def memory() -> float:
    """Resident MB at its highest so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def profile(simulation: Simulation) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    simulate(simulation)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def vidur(python: Path) -> None:
    """Vidur's default workload, timed from outside."""
    started = time.perf_counter()
    done = subprocess.run([str(python), "-m", "vidur.main"], capture_output=True, text=True, timeout=1800, check=False)
    wall = time.perf_counter() - started
    if done.returncode:
        print(f"vidur failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
        return
    print(f"{'vidur, its own sample':<34}{'':>29}{wall:>9.1f}")


if __name__ == "__main__":
    main()
