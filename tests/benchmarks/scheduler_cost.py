"""What a step of the scheduler costs: schedule + commit + events, per policy, with and without a long queue.

    python tests/benchmarks/scheduler_cost.py [--running 16 256 1000] [--waiting 0 10000] [--policies fcfs fair …]

All running requests decode; the model is a stub that gives the same token always. The queue is blocked by a full house
(max_num_seqs). Medians over steps, in microseconds of this thread's CPU; `ratio` compares with the first queue length.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from rich.console import Console
from rich.table import Table

from vtop.engine.blocks.manager import BlockManager
from vtop.engine.clock import MonotonicClock
from vtop.engine.config import EngineConfig
from vtop.engine.executor import SampledToken, StepOutput
from vtop.engine.output.text import TextOutput
from vtop.engine.request import SamplingParams, new_request
from vtop.engine.sched.scheduler import Scheduler

POLICIES = ["fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair"]
PROMPT_TOKENS = 24
GROUPS = 8
WARM_UP = 8
TOKEN = SampledToken(7)


class Bench:
    """A scheduler in which `running` requests decode and `waiting` others wait for a seat."""

    def __init__(self, policy: str, running: int, waiting: int, steps: int) -> None:
        blocks_each = -(-(PROMPT_TOKENS + steps + WARM_UP + 20) // 16) + 1
        config = EngineConfig(
            scheduling_policy=policy,
            aging_rate=0.1 if policy == "priority" else 0.0,
            max_num_seqs=running,
            max_num_batched_tokens=max(512, running * PROMPT_TOKENS),
        )
        self.running, self.waiting = running, waiting
        self.texts = TextOutput(None, frozenset(), MonotonicClock())
        blocks = BlockManager(running * blocks_each, 16, prefix_caching=True)
        self.scheduler = Scheduler(config, blocks, self.texts, config.token_budget(4096))
        self.now = 0.0
        self.schedule: list[float] = []
        self.commit: list[float] = []
        params = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)
        for number in range(running + waiting):
            request = new_request(
                f"r{number}",
                number,
                [5 + (number * 7 + i) % 900 for i in range(PROMPT_TOKENS)],
                params,
                arrival=number * 1e-3,
                limit=2000,
                seed=0,
                priority=number % 5,
                group=f"g{number % GROUPS}",
                deadline=1e9 + number,
            )
            self.texts.open(request)
            self.scheduler.add(request)
        self.scheduler.take_events()

    def step(self) -> None:
        """One step; its times count when all of it was decoding."""
        self.now += 0.01
        t0 = time.thread_time()
        plan = self.scheduler.schedule(self.now)
        t1 = time.thread_time()
        output = StepOutput([TOKEN if chunk.sample else None for chunk in plan.chunks])
        t2 = time.thread_time()
        self.scheduler.commit(plan, output)
        self.scheduler.take_events()
        t3 = time.thread_time()
        self.texts.take_changed()
        if len(plan.chunks) == plan.num_tokens == self.running:
            assert len(self.scheduler.waiting) == self.waiting
            self.schedule.append(t1 - t0)
            self.commit.append(t3 - t2)

    def microseconds(self) -> tuple[float, float]:
        """Of (schedule, commit with taking the events)."""
        return 1e6 * statistics.median(self.schedule[WARM_UP:]), 1e6 * statistics.median(self.commit[WARM_UP:])


def measure(policy: str, running: int, waiting: list[int], steps: int) -> list[tuple[float, float]]:
    """Microseconds per length of the queue. Steps take turns, so that a busy machine hits all of them alike."""
    benches = [Bench(policy, running, count, steps) for count in waiting]
    gc.collect()
    gc.freeze()  # what a long queue costs the collector is not the scheduler's doing
    while any(len(bench.schedule) < steps + WARM_UP for bench in benches):
        for bench in benches:
            bench.step()
    gc.unfreeze()
    return [bench.microseconds() for bench in benches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", nargs="+", type=int, default=[16, 256, 1000])
    parser.add_argument("--waiting", nargs="+", type=int, default=[0, 10_000])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    table = Table("policy", title="microseconds per decode step (medians)")
    for name in ["running", "waiting", "schedule", "commit", "both", "per running", "ratio"]:
        table.add_column(name, justify="right")
    for policy in options.policies:
        for running in options.running:
            times = measure(policy, running, options.waiting, options.steps)
            base = sum(times[0])
            for waiting, (schedule, commit) in zip(options.waiting, times, strict=True):
                both = schedule + commit
                cells = [f"{schedule:.0f}", f"{commit:.0f}", f"{both:.0f}", f"{both / running:.2f}"]
                table.add_row(policy, str(running), str(waiting), *cells, f"{both / base:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
