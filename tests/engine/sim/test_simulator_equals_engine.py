"""The simulator decides what the real engine decides: step by step, for seeded workloads on the bundled model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from vtop.engine import events as ev
from vtop.engine.clock import ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.executor import EngineFacts, Executor, StepOutput, StepPlan
from vtop.engine.model.build import build_executor
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.output.length import LengthOutput
from vtop.engine.request import SamplingParams
from vtop.engine.sim.cost_model import HingeCost
from vtop.engine.sim.virtual_executor import VirtualExecutor

POLICIES = ("fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair")
BLOCKS, HOST_BLOCKS = 40, 40
COST = HingeCost(c0=0.05, ct=0.001)


class RealTokens:
    """The real executor on the virtual clock: its steps take as long as the cost model says."""

    def __init__(self, real: TorchExecutor, clock: ManualClock) -> None:
        self._real = real
        self._timer = VirtualExecutor(COST, clock, real.num_blocks, real.num_host_blocks)
        self.num_blocks, self.num_host_blocks = real.num_blocks, real.num_host_blocks
        self.eos_token_ids = real.eos_token_ids
        self.rates = self._timer.rates

    def execute(self, plan: StepPlan) -> StepOutput:
        output = self._real.execute(plan)
        self._timer.execute(plan)
        return output

    def resize(self, num_blocks: int) -> None:
        self._real.resize(num_blocks)

    def close(self) -> None:
        """The real one is shared by the tests of this module."""


@pytest.fixture(scope="module")
def real() -> Iterator[TorchExecutor]:
    config = EngineConfig(model="tiny", num_gpu_blocks_override=BLOCKS, num_host_blocks_override=HOST_BLOCKS)
    executor, _, _ = build_executor(config)
    yield executor
    executor.close()


def workload(seed: int) -> tuple[dict[str, Any], list[tuple[int, str, list[int], SamplingParams, dict[str, Any]]]]:
    """Options, and (step of arrival, id, prompt, params, more) of every request."""
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "scheduling_policy": POLICIES[seed % len(POLICIES)],
        "preemption_mode": rng.choice(["recompute", "swap", "hybrid"]),
        "batching": rng.choice(["chunked", "prefill-first"]),
        "victim": rng.choice(["policy", "latest", "least-computed", "most-blocks"]),
        "admission": rng.choice(["reserve-full-prompt", "first-chunk"]),
        "enable_prefix_caching": rng.random() < 0.7,
        "max_num_batched_tokens": rng.choice([64, 256]),
        "skip_ahead": rng.choice([0, 2]),
        "preempt_for_waiting": rng.random() < 0.4,
        "watermark": rng.choice([0.0, 0.05]),
    }
    if options["batching"] == "prefill-first":
        options["max_num_batched_tokens"] = 512
    if "priority" in options["scheduling_policy"]:
        options["aging_rate"] = rng.choice([0.0, 1.0])
    shared = [rng.randrange(3, 1000) for _ in range(48)]
    jobs = []
    for number in range(10):
        own = [rng.randrange(3, 1000) for _ in range(rng.randint(4, 90))]
        prompt = shared[: rng.choice([0, 16, 32, 48])] + own
        samples = rng.choice([1, 1, 1, 2, 3])
        params = SamplingParams(
            temperature=1.0 if samples > 1 else 0.0,
            n=samples,
            max_tokens=rng.randint(4, 40),
            ignore_eos=True,
        )
        more: dict[str, Any] = {"priority": rng.randint(0, 3), "group": rng.choice("ab")}
        if rng.random() < 0.3:
            more["deadline"] = rng.uniform(1.0, 5.0)
        if rng.random() < 0.2:
            more["timeout"] = rng.uniform(1.0, 6.0)
        jobs.append((rng.randint(0, 40), f"r{number}", prompt, params, more))
    return options, sorted(jobs, key=lambda job: job[0])


def decisions(executor: Any, clock: ManualClock, seed: int, **more: Any) -> list[list[str]]:
    """Every event of every step, without tokens, texts and wall times."""
    options, jobs = workload(seed)
    config = EngineConfig(
        num_gpu_blocks_override=BLOCKS, num_host_blocks_override=HOST_BLOCKS, max_num_seqs=8, **options
    )
    engine = LLMEngine(executor, config, clock=clock, facts=EngineFacts(max_model_len=512), **more)
    told: list[list[str]] = []
    engine.on_frame(lambda frame: told.append([text for event in frame.events if (text := plain(event))]))
    step = 0
    while engine.has_unfinished_requests() or jobs:
        while jobs and jobs[0][0] <= step:
            _, name, prompt, params, about = jobs.pop(0)
            engine.add_request(name, prompt, params, **about)
        engine.step()
        clock.advance(0.001)  # a step without work takes time as well
        step += 1
        assert step < 5000
    return told


def plain(event: ev.AnyEvent) -> str:
    """An event as it is to be compared; what was written in evicted blocks differs with the tokens."""
    match event:
        case ev.StepTimes():
            return ""
        case ev.Tokens():
            event = replace_(event, tokens=[], texts=[])
        case ev.Evicted():
            event = replace_(event, hashes=[])
        case ev.Finished() | ev.SequenceFinished():
            event = replace_(event, text="")
    return msgspec.json.encode(event).decode()


def replace_(event: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(event, **changes)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_decisions_step_by_step(real: TorchExecutor, seed: int) -> None:
    clock = ManualClock()
    expected = decisions(RealTokens(real, clock), clock, seed)
    clock = ManualClock()
    simulated = decisions(VirtualExecutor(COST, clock, BLOCKS, HOST_BLOCKS), clock, seed, outputs=LengthOutput())
    assert len(expected) > 30
    for step, (ours, theirs) in enumerate(zip(simulated, expected, strict=False)):
        assert ours == theirs, f"step {step}"
    assert len(simulated) == len(expected)


def test_the_workloads_do_preempt_and_swap() -> None:
    """What is compared above must be worth comparing."""
    kinds: set[str] = set()
    for seed in range(20):
        clock = ManualClock()
        for events in decisions(VirtualExecutor(COST, clock, BLOCKS, HOST_BLOCKS), clock, seed, outputs=LengthOutput()):
            kinds.update(msgspec.json.decode(text)["event"] for text in events)
    assert {"preempted", "swapped-out", "swapped-in", "prefix-lookup", "copied-on-write", "waits"} <= kinds


def test_the_wrapper_is_an_executor(real: TorchExecutor) -> None:
    wrapped: Executor = RealTokens(real, ManualClock())
    assert wrapped.num_blocks == BLOCKS
