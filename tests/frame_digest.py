"""One line for each of 64 random workloads in 16 configurations: a hash of every Frame, wall times left out.

    python tests/frame_digest.py > before.txt    # then change what must not change behaviour, run again, diff

Runs on the stub executor and a clock of its own, so a line depends on the scheduler, the blocks and what is told.
"""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent / "support"))

from vtop_support.engines import AuditedEngine

WORKLOADS = 64
CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"preemption_mode": "swap", "num_host_blocks_override": 24},
    {"preemption_mode": "hybrid", "num_host_blocks_override": 12, "enable_prefix_caching": False},
    {"batching": "prefill-first", "max_num_batched_tokens": 512},
    {"scheduling_policy": "priority", "aging_rate": 0.5, "preempt_for_waiting": True},
    {"scheduling_policy": "fair", "group_weights": "a=2,b=1", "skip_ahead": 2},
    {"scheduling_policy": "priority+fair", "victim": "policy"},
    {"scheduling_policy": "sjf", "victim": "least-computed", "admission": "first-chunk"},
    {"scheduling_policy": "mlfq", "victim": "most-blocks", "watermark": 0.1},
    {"scheduling_policy": "deadline", "block_size": 1, "enable_prefix_caching": False},
    {"max_num_batched_tokens": 8, "max_num_seqs": 4},
    {"admission": "reserve-worst-case", "block_size": 8},
    {"preset": "vllm-v1", "block_size": 8},
    {"preset": "vllm-v1", "scheduling_policy": "priority", "priority_order": "low-first", "preset_quirks": True},
    {"preset": "vllm-v0", "batching": "prefill-first", "max_num_batched_tokens": 2048},
    {"preset": "vllm-v0", "batching": "chunked", "max_num_batched_tokens": 64, "preemption_mode": "swap",
     "num_host_blocks_override": 24},
]  # fmt: skip


def run(seed: int, options: dict[str, Any]) -> tuple[str, int, int]:
    """(hash of the Frames, how many, how many preemptions) of one workload under one configuration."""
    rng = random.Random(seed)
    samples = options.get("preset") != "vllm-v1"
    beams = "preset" not in options
    engine = AuditedEngine(rng.choice([16, 24, 40]), **{"max_num_batched_tokens": 64, "max_num_seqs": 8, **options})
    jobs = []
    for number in range(rng.randint(6, 14)):
        shared = [7 + i % 90 for i in range(rng.choice([0, 8, 16]))]
        prompt = shared + [3 + rng.randrange(900) for _ in range(rng.randint(1, 20))]
        more: dict[str, Any] = {"priority": rng.randint(0, 3), "group": rng.choice("ab")}
        kind = rng.random()
        if samples and kind < 0.15:
            more |= {"n": rng.randint(2, 3), "temperature": 1.0, "seed": seed}
        elif beams and kind < 0.25:
            more |= {"beam_width": 2}
        if rng.random() < 0.2:
            more["timeout"] = float(rng.randint(5, 60))
        if rng.random() < 0.2:
            more["deadline"] = float(rng.randint(5, 60))
        jobs.append((rng.randint(0, 30), f"r{number}", prompt, rng.randint(1, 24), more))
    jobs.sort(key=lambda job: job[0])
    aborts = {rng.randint(5, 40): f"r{rng.randrange(6)}" for _ in range(2)}
    step = 0
    while jobs or engine.engine.has_unfinished_requests():
        while jobs and jobs[0][0] <= step:
            _, name, prompt, most, more = jobs.pop(0)
            with suppress(ValueError):  # refused, and told so in a Frame
                engine.add(name, prompt, most, ignore_eos=True, **more)
        if step in aborts:
            engine.engine.abort_request(aborts[step])
        engine.step()
        step += 1
        if step > 3000:
            raise AssertionError(f"workload {seed} does not end under {options}")
    digest, preempted = hashlib.sha256(), 0
    for frame in engine.frames:
        data = msgspec.to_builtins(frame)
        data.pop("unix_time", None)
        for event in data["events"]:
            if event["event"] == "step-times":
                continue
            preempted += event["event"] in ("preempted", "swapped-out")
            digest.update(msgspec.json.encode(event))
        digest.update(msgspec.json.encode([data[name] for name in ("step", "time") if name in data]))
    return digest.hexdigest()[:16], len(engine.frames), preempted


def main() -> None:
    preempted = 0
    for seed in range(WORKLOADS):
        for number, options in enumerate(CONFIGURATIONS):
            digest, frames, victims = run(seed, options)
            preempted += victims
            print(f"{seed:2} {number:2} {digest} {frames:4} frames {victims:3} preempted")
    print(f"{preempted} preemptions and swaps in all")


if __name__ == "__main__":
    main()
