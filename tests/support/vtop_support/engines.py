"""Engines for tests: over the stub, on a clock that tests move, audited after every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vtop.engine import events as ev
from vtop.engine.clock import ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.executor import EngineFacts, Executor
from vtop.engine.outputs import RequestOutput
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop_support.stub import StubExecutor


class AuditedEngine:
    """An LLMEngine that folds its own Frames and compares the fold with itself after every step and command."""

    def __init__(
        self,
        num_blocks: int = 8,
        *,
        executor: Executor | None = None,
        tokenizer: Any = None,
        max_model_len: int = 2048,
        **options: Any,
    ) -> None:
        options.setdefault("block_size", 4)
        config = EngineConfig(num_gpu_blocks_override=num_blocks, **options)
        self.clock = ManualClock()
        self.executor = executor or StubExecutor(
            num_blocks, config.block_size, num_host_blocks=config.num_host_blocks_override or 0
        )
        self.engine = LLMEngine(
            self.executor,
            config,
            tokenizer=tokenizer,
            clock=self.clock,
            facts=EngineFacts(max_model_len=max_model_len),
        )
        self.state = EngineState(self.engine.meta)
        self.frames: list[ev.Frame] = []
        self.outputs: dict[str, RequestOutput] = {}
        self.engine.on_frame(self.frames.append)
        self.engine.on_frame(self.state.apply)

    def add(self, request_id: str, prompt: int | list[int] | str, max_tokens: int | None = 16, **more: Any) -> None:
        """Add a request; a number stands for a prompt of that many tokens that no other request shares."""
        if isinstance(prompt, int):
            base = 1 + sum(map(ord, request_id)) * 7
            prompt = [3 + (base + 13 * i) % 900 for i in range(prompt)]
        names = ("priority", "group", "timeout", "deadline", "arrival_time", "expected_tokens")
        request = {name: more.pop(name) for name in names if name in more}
        more.setdefault("temperature", 0.0)
        self.engine.add_request(request_id, prompt, SamplingParams(max_tokens=max_tokens, **more), **request)

    def step(self, seconds: float = 1.0) -> ev.Frame:
        """One step; time then moves by `seconds`. Returns its Frame."""
        self.clock.advance(seconds)
        for output in self.engine.step():
            self.outputs[output.request_id] = output
        self.check()
        return self.frames[-1]

    def check(self) -> None:
        self.engine.flush()
        self.engine.audit(self.state)

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left; every step must compute something or end somebody."""
        for _ in range(max_steps):
            if not self.engine.has_unfinished_requests():
                return
            alive = self.engine.get_num_unfinished_requests()
            frame = self.step()
            if self.engine.has_unfinished_requests() and self.engine.get_num_unfinished_requests() == alive:
                assert self.engine.last_step_ran, f"an idle step: {frame.events}"
        raise AssertionError(f"not done after {max_steps} steps")

    def events(self, kind: type[ev.Event], request_id: str | None = None) -> list[Any]:
        """Events of a kind so far, of one request if named."""
        found: Iterable[Any] = (e for f in self.frames for e in f.events if isinstance(e, kind))
        return [e for e in found if request_id is None or e.id == request_id]

    def ran(self, frame: ev.Frame | None = None) -> dict[str, int]:
        """Tokens computed per request in a Frame (default: the latest)."""
        scheduled = [e for e in (frame or self.frames[-1]).events if isinstance(e, ev.Scheduled)]
        ran: dict[str, int] = {}
        if scheduled:
            for request_id, tokens in zip(scheduled[-1].ids, scheduled[-1].tokens, strict=True):
                ran[request_id] = ran.get(request_id, 0) + tokens
        return ran

    def finish_reason(self, request_id: str) -> str:
        view = self.state.find(request_id)
        assert view is not None, request_id
        return view.finish_reason

    def output(self, request_id: str, index: int = 0) -> list[int]:
        view = self.state.find(request_id)
        assert view is not None, request_id
        return view.sequences[index].output_tokens
