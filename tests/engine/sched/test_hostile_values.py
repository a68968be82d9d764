"""What a request or a command carries harms nobody else: whatever is in its fields, a request beside it goes on.

Values of every kind are thrown into every field of every public call and command. What may come of it is BadValue, a
refusal, an ended request of that name, or nothing; the good request's tokens are those it gives alone, the engine
lives, its Frames can be recorded, and the fold of them is the engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.clock import ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue
from vtop.engine.executor import EngineFacts
from vtop.engine.llm import LLM
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop.engine.thread import EngineThread, ThreadState
from vtop.engine.workload.engine import WorkloadEngine
from vtop.engine.workload.jobs import Job, Workload
from vtop_support.stub import StubExecutor, expected_output

HALF = "a\ud83d"  # half of a surrogate pair: no UTF-8 holds it
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, 2**31, 2**63, -(2**70), 10**30, 10**5000, 0.0, 1.5, -0.5, 1e-40, 1e-12, 1e4, 1e308,
    math.nan, math.inf, -math.inf, np.float64("nan"), np.int64(3), "", " ", "x", HALF, "\x00", "nan", "\u200b", b"x",
    [], [None], [HALF], [1, "x"], [10**30], [-1], (), (1,), ["a", "a"], {}, {"prompt": 5}, {"prompt_token_ids": "ab"},
    {"prompt": HALF, "prompt_token_ids": [5]}, {"prompt_token_ids": None}, set(), frozenset({"x"}), object(), len,
]  # fmt: skip
PARAMETERS = [f.name for f in fields(SamplingParams)]
REQUEST = ("request_id", "prompt", "params", "priority", "group", "cache_salt", "timeout", "deadline", "arrival_time",
           "expected_tokens")  # fmt: skip
OPTIONS = (
    "scheduling_policy", "group_weights", "aging_rate", "max_num_seqs", "watermark", "mlfq_levels", "max_waiting",
    "max_predicted_ttft", "skip_ahead", "victim", "max_prefill_steps", 5, None, HALF, "nope",
)  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
values = st.sampled_from(VALUES)


def throw_request(engine: LLMEngine, name: str, changed: dict[str, Any]) -> None:
    """Add a request with some fields as drawn; those of SamplingParams among them."""
    more = {field: value for field, value in changed.items() if field in REQUEST}
    drawn = {field: value for field, value in changed.items() if field in PARAMETERS}
    if drawn:
        more.setdefault("params", SamplingParams(**{"temperature": 1.0, "max_tokens": 4, "seed": 3, **drawn}))
    engine.add_request(more.pop("request_id", name), more.pop("prompt", [7, 8, 9]), more.pop("params", GREEDY), **more)


class Watched:
    """An engine whose Frames are folded and recorded."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.state = EngineState(engine.meta)
        self.lines: list[bytes] = []
        engine.on_frame(self.state.apply)
        engine.on_frame(lambda frame: self.lines.append(msgspec.json.encode(frame)))
        self.frames = 0
        self.done: dict[str, Any] = {}
        engine.on_frame(self._count)

    def _count(self, frame: ev.Frame) -> None:
        self.frames += 1

    def attempt(self, call: Any, *arguments: Any) -> None:
        """BadValue, on one line, is the only thing that may be raised."""
        try:
            call(*arguments)
        except BadValue as error:
            assert "\n" not in str(error) and str(error).encode() and len(str(error)) < 2000
        self.check()

    def check(self) -> None:
        self.engine.flush()
        self.engine.audit(self.state)
        assert len(self.lines) == self.frames, "the recording stopped"
        if self.lines:
            msgspec.json.decode(self.lines[-1], type=ev.Frame)

    def run(self) -> None:
        for _ in range(200):
            if not self.engine.has_unfinished_requests():
                return
            for output in self.engine.step():
                if output.finished:
                    self.done[output.request_id] = output
            self.check()
        raise AssertionError("it never ends")


@pytest.fixture(scope="module")
def tiny() -> Iterator[tuple[Watched, list[int]]]:
    """An engine with a real model, tokenizer and sampler, and what the good request gives alone."""
    config = EngineConfig(model="tiny", num_gpu_blocks_override=40, block_size=4, attention_backend="torch")
    watched = Watched(LLMEngine.from_config(config))
    watched.engine.add_request("alone", "To be", GREEDY)
    watched.run()
    yield watched, watched.done["alone"].outputs[0].token_ids
    watched.engine.close()


fields_of_requests = st.dictionaries(st.sampled_from((*REQUEST, *PARAMETERS)), values, min_size=1, max_size=2)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(changed=st.lists(fields_of_requests, min_size=1, max_size=3))
def test_no_field_of_a_request_harms_the_one_beside_it(
    tiny: tuple[Watched, list[int]], changed: list[dict[str, Any]]
) -> None:
    watched, alone = tiny
    watched.done.clear()
    watched.engine.abort_request(list(watched.engine._requests))  # of an example that failed
    watched.engine.reset_prefix_cache()
    watched.engine.add_request("good", "To be", GREEDY)
    for number, some in enumerate(changed):
        watched.attempt(throw_request, watched.engine, f"bad{number}", some)
    watched.run()
    assert watched.done["good"].outputs[0].token_ids == alone
    assert not watched.state.totals.failures, "a step failed"
    assert not [view for view in watched.state.finished if view.finish_reason == "failed"], "found only when it ran"


def calls(engine: LLMEngine) -> dict[str, Any]:
    """Every other public call that takes something, as a function of two drawn values."""
    return {
        "abort_request": lambda a, b: engine.abort_request(a),
        "abort_requests": lambda a, b: engine.abort_request([a, b]),
        "abort_sample": lambda a, b: engine.abort_sample(a, b),
        "abort_sample_of_good": lambda a, b: engine.abort_sample("good", b if b != 0 else 1),
        "set_priority": lambda a, b: engine.set_priority(a, b),
        "set_priority_of_good": lambda a, b: engine.set_priority("good", b),
        "resize_pool": lambda a, b: engine.resize_pool(a if a not in (1, 5) else 64),
        "explain": lambda a, b: engine.explain(a),
        "generate": lambda a, b: LLM(engine=engine).generate(a, b, use_tqdm=False),
        **{f"set_option {name!a}": lambda a, b, name=name: engine.set_option(name, a) for name in OPTIONS},
    }


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_argument_of_a_call_harms_a_request(data: st.DataObject) -> None:
    engine = LLMEngine(StubExecutor(64, 4), EngineConfig(num_gpu_blocks_override=64, block_size=4), clock=ManualClock())
    engine.watch()
    watched = Watched(engine)
    engine.add_request("good", [5, 6, 7], GREEDY)
    known = calls(engine)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            engine.step()
        name = data.draw(st.sampled_from(sorted(known)))
        watched.attempt(known[name], data.draw(values), data.draw(values))
    watched.run()
    view = watched.state.find("good")
    assert view is not None and view.sequences[0].output_tokens == expected_output([5, 6, 7], 6)


def test_aborting_one_twice_at_once_is_no_error() -> None:
    engine = LLMEngine(StubExecutor(64, 4), EngineConfig(num_gpu_blocks_override=64, block_size=4))
    engine.add_request("a", [5, 6, 7], GREEDY)
    assert engine.abort_request(["a", "a"]) and not engine.has_unfinished_requests()


COMMANDS: dict[str, Any] = {
    "AddRequest": lambda a, b: cmd.AddRequest("bad", a, b),
    "AddRequest id": lambda a, b: cmd.AddRequest(a, (5,), GREEDY, b),
    "AddRequest group": lambda a, b: cmd.AddRequest("bad", (5,), GREEDY, 0, a, cache_salt=b),
    "AddRequest times": lambda a, b: cmd.AddRequest("bad", (5,), GREEDY, timeout=a, deadline=b),
    "AbortRequest": lambda a, b: cmd.AbortRequest(a),
    "Step": lambda a, b: cmd.Step(a),
    "RunUntil": lambda a, b: cmd.RunUntil(a),
    "SetSpeed": lambda a, b: cmd.SetSpeed(1e5 if type(a) in (int, float) and 0 < a < 10 and a > 0.001 else a),
    "ResizePool": lambda a, b: cmd.ResizePool(a if a not in (1, 5) else 64),
    "SetOption": lambda a, b: cmd.SetOption(a, b),
    "SetOption seqs": lambda a, b: cmd.SetOption("max_num_seqs", a),
    "SetPriority": lambda a, b: cmd.SetPriority("good", a),
    "SetPriority id": lambda a, b: cmd.SetPriority(a, b),
    "LoadWorkload": lambda a, b: cmd.LoadWorkload(a, b),
    "LoadWorkload more": lambda a, b: cmd.LoadWorkload(Workload("w", ()), 1.0, a, b, a),
    "none at all": lambda a, b: a,
}


@settings(max_examples=60, deadline=None)
@given(sent=st.lists(st.tuples(st.sampled_from(sorted(COMMANDS)), values, values), min_size=1, max_size=4))
def test_no_command_ends_the_thread(sent: list[tuple[str, Any, Any]]) -> None:
    executor = StubExecutor(64, 4)
    config = EngineConfig(num_gpu_blocks_override=64, block_size=4)
    thread = EngineThread(lambda progress: LLMEngine(executor, config), paused=True)
    reader = thread.subscribe("test")
    thread.start()
    assert thread.wait_ready(10) and thread.meta is not None
    state = EngineState(thread.meta)
    try:
        thread.send(cmd.AddRequest("good", (5, 6, 7), GREEDY))
        for name, first, second in sent:
            thread.send(COMMANDS[name](first, second))
        for command in (cmd.SetSpeed(None), cmd.Resume(), cmd.SetOption("max_num_seqs", 8)):
            thread.send(command)
        for _ in range(40_000):
            for frame in reader.drain():
                msgspec.json.encode(frame)
                state.apply(frame)
            view = state.find("good")
            if view is not None and view.finish_reason:
                break
            assert thread.status.state is not ThreadState.FAILED, thread.status.error
            time.sleep(0.001)
        assert view is not None and view.finish_reason == "length", thread.status
        assert view.sequences[0].output_tokens == expected_output([5, 6, 7], 6)
    finally:
        thread.shutdown()


@given(field=st.sampled_from([f.name for f in fields(Job)]), value=values)
def test_a_job_is_checked_when_it_is_made(field: str, value: Any) -> None:
    """What a job carries is met in the middle of a run, when its time has come: too late to refuse a workload."""
    given_fields: dict[str, Any] = {"id": "j", "at": 0.0, "prompt_tokens": 4, "output_tokens": 2, field: value}
    try:
        job = Job(**given_fields)
    except BadValue as error:
        assert "\n" not in str(error)
        return
    assert job.id.encode() and job.group.encode() and isinstance(job.n, int) and math.isfinite(job.at)


# --- faults that nobody foresaw -----------------------------------------------------------------------------------

SPOTS = ("blocks.grow", "blocks.match", "blocks.index_written", "policy.key", "policy.on_admit", "policy.on_preempt",
         "outputs.accept", "outputs.close", "outputs.end", "victim_rule.choose", "blocks.fork",
         "blocks.swap_in")  # fmt: skip


class Injected(Exception):
    """A fault of the test."""


def inject(engine: LLMEngine, spot: str, call: int, lasting: bool) -> None:
    """Let the `call`-th call of that function raise; with `lasting`, all later ones for the same request too."""
    part, name = spot.split(".")
    scheduler: Any = engine._scheduler
    owner = {"blocks": scheduler.blocks, "policy": scheduler.policy, "outputs": scheduler.outputs}.get(part)
    owner = getattr(scheduler, part) if owner is None else owner
    real = getattr(owner, name)
    calls, culprits = 0, set()

    def faulty(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        whose = getattr(arguments[0], "request", arguments[0]) if arguments else None
        if calls == call or (lasting and id(whose) in culprits):
            culprits.add(id(whose))
            raise Injected("half\ud800 a reason\nof two lines")
        return real(*arguments, **more)

    setattr(owner, name, faulty)


@settings(max_examples=150, deadline=None)
@given(
    spot=st.sampled_from(SPOTS),
    call=st.integers(1, 12),
    lasting=st.booleans(),
    preset=st.sampled_from(
        [{}, {"preset": "vllm-v0"}, {"preset": "vllm-v1"}, {"preset": "vllm-v0", "batching": "chunked"}]
    ),
    mode=st.sampled_from(["recompute", "swap"]),
    policy=st.sampled_from(["fcfs", "priority", "fair", "mlfq"]),
    caching=st.booleans(),
)
def test_an_unforeseen_fault_ends_the_request_whose_it_is_and_no_other(
    spot: str, call: int, lasting: bool, preset: dict[str, Any], mode: str, policy: str, caching: bool
) -> None:
    options: dict[str, Any] = {"max_num_batched_tokens": 16, "enable_prefix_caching": caching, **preset}
    if not preset:
        options |= {"scheduling_policy": policy, "preempt_for_waiting": caching}
    if options.get("preset") != "vllm-v1":
        options |= {"preemption_mode": mode, "num_host_blocks_override": 16}
    if preset == {"preset": "vllm-v0"}:
        options["max_num_batched_tokens"] = 64
    executor = StubExecutor(10, 4, num_host_blocks=options.get("num_host_blocks_override", 0))
    config = EngineConfig(num_gpu_blocks_override=10, block_size=4, max_model_len=64, **options)
    engine = LLMEngine(executor, config, clock=ManualClock())
    watched = Watched(engine)
    prompts = {f"r{i}": [3 + 10 * (i % 3) + j for j in range(5 + i)] for i in range(5)}
    inject(engine, spot, call, lasting)
    added = {}
    for number, (name, prompt) in enumerate(prompts.items()):
        params = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)
        if number == 3 and options.get("preset") != "vllm-v1":
            params = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=7, ignore_eos=True)
        try:
            engine.add_request(name, prompt, params, priority=number % 2)
        except Injected:
            assert spot in ("policy.key", "outputs.close"), "only the caller sees it"
        else:
            added[name] = prompt
        watched.check()
    watched.run()
    failed = [view for view in watched.state.finished if view.finish_reason == "failed"]
    assert len(failed) <= 1, "a fault of one request ends one request"
    for view in failed:
        assert "Injected" in view.message and "\n" not in view.message
    for view in watched.state.finished:
        if view.finish_reason == "length":
            for index, seq in enumerate(view.sequences):
                assert seq.output_tokens == expected_output(added[view.id], 7, index)
    assert {view.id for view in watched.state.finished} == set(added)
    assert watched.state.used == 0


# --- the examples that led to this ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "field", "text"),
    [
        ({"repetition_penalty": 1e-40}, "repetition_penalty", "1e-06"),
        ({"top_k": 10**30}, "top_k", "0 or -1 for off"),
        ({"length_penalty": 1e4, "beam_width": 2}, "length_penalty", "from -20 to 20"),
        ({"min_tokens": 2, "stop_token_ids": tuple(range(2048))}, "stop_token_ids", "none can be the first"),
        ({"cache_salt": HALF}, "cache_salt", "lone surrogate"),
        ({"cache_salt": 5}, "cache_salt", "give a text"),
        ({"prompt": "a" + HALF}, "prompt", "lone surrogate"),
        ({"group": HALF}, "group", "lone surrogate"),
        ({"request_id": HALF}, "request_id", "lone surrogate"),
        ({"prompt": None}, "prompt", "text or a list of token ids"),
        ({"prompt": {"prompt_token_ids": "ab"}}, "prompt_token_ids", "list of token ids"),
        ({"arrival_time": 1.7e9}, "arrival_time", "engine time"),
        ({"arrival_time": math.nan}, "arrival_time", "engine time"),
        ({"arrival_time": math.inf}, "arrival_time", "engine time"),
        ({"arrival_time": -5.0}, "arrival_time", "engine time"),
    ],
)
def test_it_is_refused_on_one_line_that_names_field_and_remedy(
    tiny: tuple[Watched, list[int]], changed: dict[str, Any], field: str, text: str
) -> None:
    watched, _ = tiny
    with pytest.raises(BadValue, match=text) as refusal:
        throw_request(watched.engine, "bad", changed)
    assert refusal.value.field == field and "\n" not in str(refusal.value)
    watched.check()


def test_no_salt_is_none_and_shares_with_everybody(tiny: tuple[Watched, list[int]]) -> None:
    watched, alone = tiny
    watched.engine.reset_prefix_cache()
    watched.engine.add_request("plain", "To be", GREEDY)
    watched.engine.add_request("none", "To be", GREEDY, cache_salt=None)
    watched.run()
    assert watched.done["plain"].outputs[0].token_ids == watched.done["none"].outputs[0].token_ids == alone


class Tokens:
    """A tokenizer whose normaliser empties some text, fails on other, and knows a token that the model does not."""

    def __call__(self, text: str) -> Any:
        if text == "raise":
            raise RuntimeError("no such\nluck")
        ids = {"\u200b": [], "x <|tool|>": [5, 1000]}.get(text, [5, 6, 7])
        return type("Encoded", (), {"input_ids": ids})()

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(97 + i % 26) for i in ids)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("\u200b", "leaves no token"),
        ("raise", "the tokenizer fails"),
        ("x <|tool|>", "below 1000; leave that text out"),
    ],
)
def test_what_the_tokenizer_makes_of_a_prompt_is_checked(prompt: str, text: str) -> None:
    config = EngineConfig(num_gpu_blocks_override=64, block_size=4)
    facts = EngineFacts(max_model_len=64, vocab_size=1000)
    watched = Watched(LLMEngine(StubExecutor(64, 4), config, tokenizer=Tokens(), facts=facts))
    watched.engine.add_request("good", "good", GREEDY)
    with pytest.raises(BadValue, match=text):
        watched.engine.add_request("bad", prompt, GREEDY)
    watched.run()
    assert watched.done["good"].outputs[0].token_ids == expected_output([5, 6, 7], 6)


def test_a_detokenizer_that_fails_fails_its_own_request() -> None:
    """In the middle, and at the end with text that is held back."""

    class Failing(Tokens):
        def decode(self, ids: list[int], **more: Any) -> str:
            if 900 in ids:
                raise ValueError("what is 900?")
            return super().decode(ids, **more)

    config = EngineConfig(num_gpu_blocks_override=64, block_size=4)
    executor = StubExecutor(64, 4, choose=lambda history: 900 if history[0] == 9 and len(history) > 4 else 5)
    watched = Watched(LLMEngine(executor, config, tokenizer=Failing()))
    watched.engine.add_request("good", [5, 6, 7], GREEDY)
    watched.engine.add_request("bad", [9, 6, 7], GREEDY)
    watched.run()
    assert watched.done["good"].outputs[0].finish_reason == "length"
    assert watched.done["bad"].outputs[0].finish_reason == "failed"
    assert watched.done["bad"].message == "ValueError: what is 900?"


def test_an_offline_batch_of_nothing_is_refused() -> None:
    engine = LLMEngine(StubExecutor(64, 4), EngineConfig(num_gpu_blocks_override=64, block_size=4))
    with pytest.raises(BadValue, match="prompts = None: give text, token ids"):
        LLM(engine=engine).generate(None)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="sampling_params = 5"):
        LLM(engine=engine).generate([[5]], 5)  # type: ignore[arg-type]


def test_a_workload_whose_jobs_cannot_run_refuses_each_and_runs_the_others() -> None:
    jobs = (Job("many", 0.0, 4, 2, n=10**6), Job("good", 0.0, 4, 2), Job("long", 0.0, 10**9, 2))
    config = EngineConfig(num_gpu_blocks_override=64, block_size=4)
    clock = ManualClock()
    watched = Watched(WorkloadEngine(StubExecutor(64, 4), config, Workload("w", jobs), clock=clock))
    watched.run()
    assert sorted(refused.id for refused in watched.state.refused) == ["long", "many"]
    assert [view.id for view in watched.state.finished] == ["good"]
