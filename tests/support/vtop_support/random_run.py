"""A paused engine over the stub, to which anything may happen that a person can do, at moments that a seed chooses."""

from __future__ import annotations

import random
from typing import Any

from vtop.engine import events as ev
from vtop.engine.clock import ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.executor import EngineFacts
from vtop.engine.request import SamplingParams
from vtop_support.stub import StubExecutor

BLOCK_SIZE = 4


class RandomRun:
    """`go` lets something happen; `frames` are all that were told since the last `take`, `told` all there ever were."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        blocks, host = rng.randint(14, 30), rng.choice([0, 8, 24])
        options: dict[str, Any] = {
            "preset": rng.choice(["sensible", "sensible", "sensible", "vllm-v1", "vllm-v0"]),
            "enable_prefix_caching": rng.random() < 0.7,
            "max_num_seqs": rng.choice([2, 4, 16]),
            "max_num_batched_tokens": rng.choice([8, 16, 64]),
        }
        if options["preset"] == "sensible":
            options |= {
                "preemption_mode": rng.choice(["recompute", "swap", "hybrid"]),
                "batching": rng.choice(["chunked", "prefill-first"]),
                "admission": rng.choice(["reserve-full-prompt", "first-chunk"]),
                "watermark": rng.choice([0.0, 0.1]),
                "skip_ahead": rng.choice([0, 0, 2]),
            }
        if options["preset"] == "vllm-v0" or options.get("batching") == "prefill-first":
            options["max_num_batched_tokens"] = 64
        config = EngineConfig(
            num_gpu_blocks_override=blocks, num_host_blocks_override=host, block_size=BLOCK_SIZE, **options
        )
        self.engine = LLMEngine(
            StubExecutor(blocks, BLOCK_SIZE, num_host_blocks=host),
            config,
            clock=self.clock,
            facts=EngineFacts(max_model_len=64),
        )
        self.frames: list[ev.Frame] = []
        self.told: list[ev.Frame] = []
        self.steps = 0
        self._names = 0
        self.engine.on_frame(self._hear)
        self.engine.note(ev.Paused("command"))
        self.engine.flush()

    def _hear(self, frame: ev.Frame) -> None:
        self.frames.append(frame)
        self.told.append(frame)

    def take(self) -> list[ev.Frame]:
        taken, self.frames = self.frames, []
        return taken

    def go(self) -> None:
        """One to five things, half of them steps."""
        for _ in range(self.rng.randint(1, 5)):
            self.clock.advance(self.rng.choice([0.01, 0.1, 3.0]))
            draw = self.rng.random()
            try:
                if draw < 0.5:
                    self.steps += 1
                    self.engine.step()
                elif draw < 0.75:
                    self._add()
                else:
                    self._command()
            except BadValue:
                pass  # told as a refusal, or nothing changed
            self.engine.flush()

    def _add(self) -> None:
        rng = self.rng
        self._names += 1
        start = rng.choice([3, 100, 200])
        prompt = list(range(start, start + rng.randint(1, 40)))
        sensible = self.engine.config.preset == "sensible"
        n = rng.choice([1, 1, 1, 2, 3]) if sensible else 1
        params = SamplingParams(
            max_tokens=rng.randint(1, 20), n=n, temperature=1.0 if n > 1 else 0.0, seed=7, ignore_eos=True
        )
        name = f"q{self._names}"
        self.engine.add_request(name, prompt, params, priority=rng.randint(0, 2), group=rng.choice("ab"))

    def _command(self) -> None:
        rng, engine = self.rng, self.engine
        alive = sorted(engine._requests)
        match rng.randrange(7):
            case 0:
                engine.resize_pool(rng.randint(12, 40))
            case 1:
                engine.reset_prefix_cache()
            case 2:
                engine.set_option("max_num_seqs", rng.choice([1, 3, 8]))
            case 3 if engine.config.preset == "sensible":
                choices: list[tuple[str, list[Any]]] = [
                    ("victim", ["latest", "policy", "most-blocks"]),
                    ("preemption_mode", ["recompute", "swap"]),
                    ("watermark", [0.0, 0.2]),
                    ("scheduling_policy", ["fcfs", "priority", "fair"]),
                ]
                name, values = rng.choice(choices)
                engine.set_option(name, rng.choice(values))
            case 4 if alive:
                engine.abort_request(rng.choice(alive))
            case 5:
                engine.resize_pool(max(10, engine.executor.num_blocks * 2 // 3))
            case 6 if alive:
                engine.set_priority(rng.choice(alive), rng.randint(0, 3))
