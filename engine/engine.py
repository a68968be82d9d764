"""LLMEngine: requests in, one step at a time, one Frame per step out.

Importing this module imports no torch; `LLMEngine.from_config` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from vtop.engine import events as ev
from vtop.engine.adding import Prompt, RequestMaker
from vtop.engine.audit import audit
from vtop.engine.clock import Clock, MonotonicClock
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue, error_line
from vtop.engine.executor import EngineFacts, Executor, StepPlan, Tokenizer
from vtop.engine.fields import check
from vtop.engine.output.text import TextOutput
from vtop.engine.outputs import RequestOutput
from vtop.engine.presets.factory import make_blocks, make_scheduler
from vtop.engine.request import FinishReason, Request, SamplingParams
from vtop.engine.sched.admission import refusal_event
from vtop.engine.sched.output import EngineOutputs
from vtop.engine.state.explain import Explanation, explain
from vtop.engine.state.fold import EngineState
from vtop.engine.version import VERSION

FAILURES_IN_A_ROW = 3  # of schedule(): then it is not passing, and the error goes up


class LLMEngine:
    """Steps requests through scheduler and executor. Use from one thread; `EngineThread` wraps it for others.

    `add_request` raises BadValue for what can never run, `step` never raises for a fault of one batch.
    """

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        clock: Clock | None = None,
        facts: EngineFacts | None = None,
        outputs: EngineOutputs | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.facts = facts or EngineFacts()
        self.executor = executor
        self.tokenizer = tokenizer
        self.clock = clock or MonotonicClock()
        self.max_model_len = min(self.facts.max_model_len, self.config.max_model_len or self.facts.max_model_len)
        self._texts = outputs or TextOutput(tokenizer, executor.eos_token_ids, self.clock)
        self._blocks = make_blocks(self.config, executor.num_blocks, executor.num_host_blocks)
        self._scheduler = make_scheduler(self.config, self._blocks, self._texts, self.max_model_len)
        self._scheduler.rates = lambda: self.executor.rates
        self._requests: dict[str, Request] = {}
        self._listeners: list[Callable[[ev.Frame], None]] = []
        self._arrivals = self._steps = self._frames = 0  # so far
        self._failures = 0  # in a row
        self._closed = False
        self._maker = RequestMaker(
            self._scheduler, self._blocks, self.facts, self._requests, executor.eos_token_ids, self.max_model_len,
            started=self.clock.now(),
        )  # fmt: skip
        self._state: EngineState | None = None
        self.last_step_ran = False
        self.not_before = 0.0  # time.monotonic() before which whoever steps should not step again
        self.meta = ev.Meta(
            schema=ev.SCHEMA_VERSION,
            version=VERSION,
            model=self.facts.model,
            device=self.facts.device,
            dtype=self.facts.dtype,
            backend=self.facts.backend,
            block_size=self.config.block_size,
            num_blocks=self.executor.num_blocks,
            max_model_len=self.max_model_len,
            num_host_blocks=self._blocks.host.total,
            token_budget=self._scheduler.token_budget,
            max_num_seqs=self.config.max_num_seqs,
            config=asdict(self.config),
            unix_time=time.time(),
            engine_time=self.clock.now(),
            kv_note=self.facts.kv_note,
            fair_at=self._scheduler.policy.fair_at,
            backend_note=self.facts.backend_note,
            host_note=self.facts.host_note,
            compile_note=self.facts.compile_note,
        )

    @classmethod
    def from_config(
        cls, config: EngineConfig, progress: Callable[[str, int, int | None], None] | None = None
    ) -> LLMEngine:
        """Load the model that `config` names and size the KV pool. `progress(stage, done, total)` tells how far.

        Raises BadValue or ModelRefused with one line that says what to change.
        """
        if progress is not None:
            progress("importing torch", 0, None)
        from vtop.engine.model.build import build_executor

        executor, tokenizer, facts = build_executor(config, progress)
        return cls(executor, config, tokenizer=tokenizer, facts=facts)

    # --- requests ------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: float | None = 0,
        group: str = "default",
        cache_salt: str | None = "",
        timeout: float | None = None,
        deadline: float | None = None,
        arrival_time: float | None = None,
        expected_tokens: int | None = None,
    ) -> None:
        """Queue a request. `arrival_time` is engine time, since this engine began and not later than now (default).

        `timeout` is in seconds from its arrival; the request is ended then. `deadline` likewise, but missing it is only
        told, and the policy `deadline` orders by it.

        `expected_tokens` is how many output tokens its sender expects (policy sjf).

        Raises BadValue when a field cannot be used, when it can never run, and when max_waiting requests wait, none of
        them less urgent (else that one is ended, with reason `refused`). The reason is also told as a Refused event.
        """
        params = SamplingParams() if params is None else params
        now = self.clock.now()
        try:
            request = self._maker.make(
                request_id,
                self._arrivals,
                prompt,
                params,
                tokenizer=self.tokenizer,
                now=now,
                priority=priority,
                group=group,
                cache_salt=cache_salt,
                timeout=timeout,
                deadline=deadline,
                arrival_time=arrival_time,
                expected_tokens=expected_tokens,
            )
            self._queue(request, now)
        except BadValue as error:
            shown = prompt.get("prompt") if isinstance(prompt, dict) else prompt
            self._scheduler.note(refusal_event(request_id, error, shown))
            raise

    def _queue(self, request: Request, now: float) -> None:
        """Into the scheduler, and who is turned away for it out of here. Raises BadValue: then nothing changed."""
        try:
            self._texts.open(request)
        except Exception as error:  # a tokenizer that cannot decode what it encoded
            raise BadValue("prompt", request.prompt, f"its text cannot be followed ({error_line(error)})") from error
        try:
            turned_away = self._scheduler.add(request, now)
        except BaseException:
            self._texts.forget(request)
            raise
        self._arrivals += 1
        self._requests[request.request_id] = request
        if turned_away is not None:
            del self._requests[turned_away.request_id]

    def abort_request(self, request_id: str | Iterable[str]) -> bool:
        """End requests in whatever queue they are; unknown and ended ids are no error. True when one was alive."""
        several = not isinstance(request_id, str) and isinstance(request_id, Iterable)
        ids = dict.fromkeys(map(_checked_id, request_id if several else [request_id]))
        alive = [self._requests[i] for i in ids if i in self._requests]
        for request in alive:
            self._scheduler.finish(request, FinishReason.ABORT)
            del self._requests[request.request_id]
        return bool(alive)

    def abort_sample(self, request_id: str, index: int) -> bool:
        """End one of several samples; its request goes on with the others. False when it is not alive."""
        check("index", index)
        request = self._requests.get(_checked_id(request_id))
        if request is None or request.beam is not None or not request.forked or not 0 <= index < len(request.sequences):
            return False
        seq = request.sequences[index]
        if seq.ended:
            return False
        self._scheduler.end_sequence(seq, FinishReason.ABORT)
        if request.finished:
            del self._requests[request_id]
        return True

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    # --- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Schedule, compute, commit; publish a Frame. Returns the outputs that the step changed or ended.

        A fault in the executor ends the requests of that batch with `failed`; one in choosing a token or in what
        becomes of it ends that request. A step that cannot be decided is abandoned, told and tried again; if it fails
        again, the request that was looked at ends with `failed`; where there is none, the third in a row is raised.
        """
        began = self.clock.now()
        t0 = time.perf_counter()
        self._steps += 1
        try:
            plan = self._scheduler.schedule(began)
        except Exception as error:
            return self._schedule_failed(error, began)
        self._failures = 0
        t1 = time.perf_counter()
        self.last_step_ran = bool(plan.chunks)
        if not plan.empty:
            self._execute(plan, t1 - t0)
        return self._complete(began)

    def _execute(self, plan: StepPlan, schedule_seconds: float) -> None:
        try:
            output = self.executor.execute(plan)
            if len(output.tokens) != len(plan.chunks):
                raise RuntimeError(f"{len(output.tokens)} results for {len(plan.chunks)} chunks")
        except Exception as error:
            self._batch_failed("execute", error, plan)
            return
        t2 = time.perf_counter()
        try:
            for index, entries in output.prompt_logprobs.items():
                self._texts.add_prompt_logprobs(plan.chunks[index].sequence, entries)
            self._scheduler.commit(plan, output)
        except Exception as error:
            self._batch_failed("commit", error, plan)
            return
        self._scheduler.note(
            ev.StepTimes(
                schedule=schedule_seconds,
                prepare=output.prepare_seconds,
                model=output.model_seconds,
                sample=output.sample_seconds,
                commit=time.perf_counter() - t2,
                swap=output.swap_seconds,
            )
        )

    def _batch_failed(self, where: str, error: Exception, plan: StepPlan) -> None:
        text, ids = error_line(error), dict.fromkeys(chunk.sequence.request.request_id for chunk in plan.chunks)
        self._scheduler.note(ev.StepFailed(where, text, list(ids)))
        self._scheduler.fail(plan, text)

    def _schedule_failed(self, error: Exception, began: float) -> list[RequestOutput]:
        """The step is abandoned; what was told of it and not yet done (copies, swaps) is done."""
        text = error_line(error)
        self.last_step_ran = False
        self._failures += 1
        failed, moves = self._scheduler.abandon(error, list(self._requests.values()), again=self._failures > 1)
        if failed:
            self._failures = 0
        self._scheduler.note(ev.StepFailed("schedule", text, [request.request_id for request in failed]))
        if not moves.empty:
            self._execute(moves, 0.0)
        outputs = self._complete(began)
        if self._failures >= FAILURES_IN_A_ROW:
            raise error
        return outputs

    def _complete(self, began: float) -> list[RequestOutput]:
        changed = self._texts.take_changed()
        for output in changed:
            request = self._requests.get(output.request_id)
            if request is not None and request.finished:  # the id may be a new request's by now
                del self._requests[output.request_id]
        self._publish(ran=True, began=began)
        return changed

    # --- control -------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Nobody steps from now on, until `go_on`: engine time stops."""
        self.clock.hold()

    def go_on(self) -> None:
        """Somebody steps again."""
        self.clock.go_on()

    def resize_pool(self, num_blocks: int) -> None:
        """Give the device pool another number of blocks, while requests run. Raises BadValue.

        Requests that hold a block beyond the new size are preempted; those that no longer fit at all are ended.
        """
        check("num_blocks", num_blocks)
        before = self._blocks.pool.total
        if num_blocks > before:
            self._resize_executor(num_blocks)
        for request in self._scheduler.resize(num_blocks):
            need = self._blocks.least_blocks(request)
            message = f"needs {need} blocks of {self.config.block_size}; the pool now has {num_blocks}"
            self._scheduler.finish(request, FinishReason.CAPACITY, message=message)
            del self._requests[request.request_id]
        if num_blocks < before:
            self._resize_executor(num_blocks)

    def _resize_executor(self, num_blocks: int) -> None:
        try:
            self.executor.resize(num_blocks)
        except (MemoryError, RuntimeError) as error:
            raise BadValue("num_blocks", num_blocks, f"give fewer blocks ({error})") from error

    def reset_prefix_cache(self) -> int:
        """Forget all cached content; requests that run keep their blocks. Returns blocks forgotten."""
        return self._scheduler.reset_prefix_cache()

    def set_option(self, name: str, value: Any) -> None:
        """Change an option while requests run (`sched.live.LIVE_OPTIONS`); nobody loses anything.

        `value` may be text as a person types it. Raises BadValue, and then all is as it was.
        """
        self._scheduler.set_option(name, value)
        self.config = self._scheduler.config

    def reload_policy(self) -> None:
        """Load the file of a user's policy again. Raises BadValue when it is bad; the old one then stays."""
        self.set_option("scheduling_policy", self.config.scheduling_policy)

    def set_priority(self, request_id: str, priority: float) -> bool:
        """Give a request another priority; false when none of that id is alive. Raises BadValue."""
        check("priority", priority)
        request = self._requests.get(_checked_id(request_id))
        if request is None:
            return False
        self._scheduler.set_priority(request, priority)
        return True

    def on_frame(self, listener: Callable[[ev.Frame], None]) -> None:
        """Call `listener` with every Frame from now on, in this thread. One that raises is dropped, and told."""
        self._listeners.append(listener)

    def watch(self) -> EngineState:
        """A fold of this engine's Frames, kept up to date; call it before the first request."""
        if self._state is None:
            if self._frames:
                raise RuntimeError(f"{self._frames} frames were published already; watch before the first request")
            self._state = EngineState(self.meta)
            self._listeners.insert(0, self._state.apply)
        return self._state

    def explain(self, request_id: str) -> Explanation | None:
        """Why a request is where it is, who must end first, and its history. Needs `watch`; None if it is unknown."""
        if self._state is None:
            raise RuntimeError("explain needs watch(), called before the first request")
        _checked_id(request_id)
        self.flush()
        return explain(self._state, request_id)

    def note(self, event: ev.AnyEvent) -> None:
        """Tell something in order with the engine's own events."""
        self._scheduler.note(event)

    def flush(self) -> None:
        """Publish what happened since the last Frame, if anything, without a step."""
        if self._scheduler.has_events:
            self._publish(ran=False, began=self.clock.now())

    def _publish(self, ran: bool, began: float) -> None:
        events, clock = self._scheduler.take_events(), self.clock
        frame = ev.Frame(self._frames, self._steps, clock.now(), ran, events, began, clock.unix_time())
        self._frames += 1
        for listener in list(self._listeners):
            try:
                listener(frame)
            except Exception as error:
                self._listeners.remove(listener)
                self.note(ev.Note("error", f"a listener stopped: {error_line(error)}"))

    def audit(self, state: EngineState) -> None:
        """Raise AuditError unless `state`, a fold of all Frames so far, shows exactly this engine."""
        audit(self._scheduler, self._blocks, self._requests, state, self._texts)

    def close(self) -> None:
        """Give back the model and its memory. Requests still alive are aborted. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self.abort_request(list(self._requests))
            self.flush()
            self.executor.close()


def _checked_id(request_id: Any) -> str:
    check("request_id", request_id)
    return str(request_id)
