"""The presets as engines: random lives over small pools, audited at every step; outputs are those of a quiet run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.conform.run import run_cases
from vtop.engine.errors import BadValue
from vtop.engine.request import SamplingParams, new_request
from vtop_support.engines import AuditedEngine
from vtop_support.stub import StubExecutor, expected_output

MODEL_LEN = 48
OPTIONS = st.fixed_dictionaries(
    {
        "preset": st.sampled_from(["vllm-v0", "vllm-v1"]),
        "num_blocks": st.integers(4, 14),
        "block_size": st.sampled_from([1, 4]),
        "batching": st.sampled_from(["chunked", "prefill-first"]),
        "admission": st.sampled_from(["reserve-full-prompt", "first-chunk"]),
        "max_num_batched_tokens": st.sampled_from([8, 16, 64]),
        "max_num_seqs": st.sampled_from([1, 3, 8]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "enable_prefix_caching": st.booleans(),
        "preemption_mode": st.sampled_from(["recompute", "swap"]),
        "host_blocks": st.sampled_from([0, 4, 20]),
        "preset_quirks": st.booleans(),
    }
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 20)),
        st.tuples(st.just("add"), st.integers(1, 12), st.integers(1, 20)),
        st.tuples(st.just("same"), st.integers(1, 24), st.integers(1, 20)),  # a prompt with a common beginning
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("fail"), st.just(0), st.just(0)),
        st.tuples(st.just("timeout"), st.integers(1, 12), st.integers(1, 5)),
        st.tuples(st.just("reset"), st.just(0), st.just(0)),
        st.tuples(st.just("resize"), st.integers(1, 16), st.just(0)),
    ),
    max_size=40,
)


def make(options: dict[str, Any]) -> AuditedEngine:
    options = dict(options)
    host, blocks = options.pop("host_blocks", 0), options.pop("num_blocks")
    if options["preset"] == "vllm-v1":
        options["preemption_mode"] = "recompute"
    if options["batching"] == "prefill-first":
        options["max_num_batched_tokens"] = 64
    executor = StubExecutor(blocks, options["block_size"], num_host_blocks=host)
    return AuditedEngine(blocks, executor=executor, max_model_len=MODEL_LEN, **options)


def drive(options: dict[str, Any], actions: list[tuple[str, int, int]]) -> AuditedEngine:
    engine = make(options)
    prompts: dict[str, list[int]] = {}
    for serial, (action, a, b) in enumerate(actions):
        if action in ("add", "same", "timeout"):
            request_id = f"r{serial}"
            base = 7 if action == "same" else serial * 37
            prompt = [3 + (base + i) % 900 for i in range(a)]
            more = {"timeout": float(b)} if action == "timeout" else {}
            try:
                engine.add(request_id, prompt, max_tokens=b, priority=serial * 7 % 3, **more)
                prompts[request_id] = prompt
            except BadValue:
                engine.check()
                assert engine.events(ev.Refused, request_id), "a refusal without its event"
        elif action == "abort":
            engine.engine.abort_request(f"r{a}")
        elif action == "reset":
            engine.engine.reset_prefix_cache()
        elif action == "resize":
            engine.engine.resize_pool(a)
        elif action == "fail":
            engine.executor.fail_at = {engine.executor.calls + 1}  # type: ignore[attr-defined]
        else:
            for _ in range(a):
                engine.step()
        engine.check()
    for _ in range(3000):
        if not engine.engine.has_unfinished_requests():
            break
        engine.step()
    assert not engine.engine.has_unfinished_requests(), "I5: somebody never ends"
    assert engine.state.used == 0, "I6"
    assert engine.state.host_used == 0, "I6"
    for request_id, prompt in prompts.items():
        given_tokens = engine.output(request_id)
        assert given_tokens == expected_output(prompt, len(given_tokens)), "I4 on the stub"
    return engine


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPTIONS, ACTIONS)
def test_random_lives(options: dict[str, Any], actions: list[tuple[str, int, int]]) -> None:
    drive(options, actions)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["chunked", "prefill-first"]),
    st.sampled_from(["recompute", "swap"]),
    st.booleans(),
    st.booleans(),
    st.integers(8, 20),
    st.sampled_from([0, 6, 30]),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=10),
)
def test_groups_fork_and_give_every_sequence_its_own_output(
    batching: str,
    mode: str,
    caching: bool,
    quirks: bool,
    blocks: int,
    host: int,
    groups: list[tuple[int, int, int]],
) -> None:
    engine = make(
        {
            "preset": "vllm-v0",
            "num_blocks": blocks,
            "block_size": 4,
            "batching": batching,
            "max_num_batched_tokens": 16,
            "max_num_seqs": 8,
            "preemption_mode": mode,
            "enable_prefix_caching": caching,
            "preset_quirks": quirks,
            "host_blocks": host,
        }
    )
    scheduler = engine.engine._scheduler
    for number, (prompt, width, tokens) in enumerate(groups):
        ids = [3 + (number % 3 * 100 + i) % 900 for i in range(prompt)]
        name = f"g{number}"
        params = SamplingParams(max_tokens=tokens, n=width)
        request = new_request(name, number, ids, params, arrival=0.0, limit=prompt + tokens, seed=0)
        engine.engine._requests[name] = request
        engine.engine._texts.open(request)
        scheduler.add(request)
    for _ in range(2000):
        if not engine.engine.has_unfinished_requests():
            break
        engine.step()
    assert engine.state.used == 0 and engine.state.host_used == 0
    assert not engine.events(ev.StepFailed)
    for number, (prompt, width, _) in enumerate(groups):
        ids = [3 + (number % 3 * 100 + i) % 900 for i in range(prompt)]
        view = engine.state.find(f"g{number}")
        assert view is not None and len(view.sequences) == width, "I5: somebody never ends"
        for index, seq in enumerate(view.sequences):
            assert seq.output_tokens == expected_output(ids, len(seq.output_tokens), index)


def config(**options: Any) -> EngineConfig:
    return EngineConfig(**options)


def test_presets_set_what_nobody_set() -> None:
    assert (config().batching, config().priority_order, config().enable_prefix_caching) == (
        "chunked",
        "high-first",
        True,
    )
    v0 = config(preset="vllm-v0")
    assert (v0.batching, v0.watermark, v0.priority_order, v0.enable_prefix_caching) == (
        "prefill-first",
        0.01,
        "low-first",
        False,
    )
    mixed = config(preset="vllm-v0", batching="chunked", watermark=0.0, enable_prefix_caching=True)
    assert (mixed.batching, mixed.watermark, mixed.enable_prefix_caching) == ("chunked", 0.0, True)
    assert config(preset="vllm-v1").token_budget(4096) == 2048
    assert v0.token_budget(4096) == 4096


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "vllm-v2"},
        {"preset": "vllm-v0", "scheduling_policy": "fair"},
        {"preset": "vllm-v1", "priority_order": "high-first"},
        {"preset": "vllm-v1", "preemption_mode": "swap"},
    ],
)
def test_what_a_preset_does_not_have_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        config(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "vllm-v0", "max_num_batched_tokens": MODEL_LEN - 1},
        {"preset": "vllm-v1", "batching": "prefill-first", "max_num_batched_tokens": MODEL_LEN - 1},
        {"preset": "vllm-v0", "batching": "chunked", "enable_prefix_caching": True, "max_num_batched_tokens": 18},
    ],
)
def test_a_budget_that_could_strand_a_request_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="max_num_batched_tokens"):
        AuditedEngine(8, max_model_len=MODEL_LEN, **options)


def test_v1_has_one_sequence_per_request() -> None:
    engine = AuditedEngine(8, preset="vllm-v1")
    with pytest.raises(BadValue, match="send as many requests"):
        engine.add("a", 4, 2, n=2, temperature=1.0)


def test_v0_refuses_more_samples_than_its_budget_decodes_at_once() -> None:
    """All samples of a group decode in one step, or none: with a smaller budget it would never end."""
    engine = AuditedEngine(12, preset="vllm-v0", batching="chunked", max_num_batched_tokens=2, watermark=0.0)
    with pytest.raises(BadValue, match=r"n = 3.*max_num_batched_tokens 2"):
        engine.add("a", 4, 4, n=3, temperature=1.0)
    engine.add("b", [5, 6, 7], 4, n=2, temperature=1.0)
    engine.run()
    assert engine.output("b", 1) == expected_output([5, 6, 7], 4, 1)


@pytest.mark.parametrize("preset", ["vllm-v0", "vllm-v1"])
def test_the_watermark_is_a_share_of_the_pool_there_is(preset: str) -> None:
    """5 % of 400 blocks are 20; of 18 they are none: what fits 18 blocks runs."""
    engine = AuditedEngine(400, preset=preset, watermark=0.05, enable_prefix_caching=False)
    engine.engine.resize_pool(18)
    engine.add("a", 60, 4)
    engine.add("b", 4, 4)
    engine.run()
    assert engine.finish_reason("a") == engine.finish_reason("b") == "length"
    engine.engine.resize_pool(400)
    engine.add("c", 4, 4)
    engine.add("d", 4, 4)
    engine.run()
    told = [e.watermark for e in engine.events(ev.Admitted)]
    assert told[:2] == [0, 0] and told[3] == 20


def test_v0_runs_samples_as_a_group() -> None:
    engine = AuditedEngine(12, preset="vllm-v0", watermark=0.0)
    engine.add("a", [5, 6, 7, 8, 9, 10], 6, n=3, temperature=1.0)
    engine.run()
    view = engine.state.find("a")
    assert view is not None and len(engine.events(ev.Forked)) == 2 and len(engine.events(ev.CopiedOnWrite)) == 2
    assert [seq.output_tokens for seq in view.sequences] == [
        expected_output([5, 6, 7, 8, 9, 10], 6, index) for index in range(3)
    ]


def test_live_switches_are_those_that_rules_do_not_read() -> None:
    engine = AuditedEngine(8, preset="vllm-v1")
    engine.engine.set_option("max_num_seqs", 2)
    engine.add("a", 4, 2)
    engine.run()
    with pytest.raises(BadValue, match="preset vllm-v1 fixes it"):
        engine.engine.set_option("batching", "prefill-first")


@pytest.mark.parametrize("quirks", [False, True])
def test_a_half_full_block_needs_a_free_one_only_with_quirks(quirks: bool) -> None:
    engine = AuditedEngine(2, preset="vllm-v0", preset_quirks=quirks, watermark=0.0)
    engine.add("a", 5, 3)
    while engine.engine.has_unfinished_requests():
        engine.step()  # a lone request that gives way to itself leaves the step idle
    assert bool(engine.events(ev.Preempted)) is quirks
    assert engine.finish_reason("a") == "length"


def test_an_urgent_arrival_preempts_in_v0_and_waits_in_v1() -> None:
    for preset, preempted in (("vllm-v0", ["b"]), ("vllm-v1", [])):
        engine = AuditedEngine(32, preset=preset, scheduling_policy="priority", max_num_seqs=2, watermark=0.0)
        engine.add("a", 4, 8, priority=5)
        engine.add("b", 4, 8, priority=6)
        engine.step()
        engine.add("c", 4, 2, priority=0)
        engine.step()
        assert [e.id for e in engine.events(ev.Preempted)] == preempted
        engine.run()


def test_v0_swaps_and_returns_without_losing_a_token() -> None:
    executor = StubExecutor(6, 4, num_host_blocks=8)
    engine = AuditedEngine(6, executor=executor, preset="vllm-v0", preemption_mode="swap", watermark=0.0)
    prompts = {name: [3 + i + 50 * n for i in range(8)] for n, name in enumerate("abc")}
    for name, prompt in prompts.items():
        engine.add(name, prompt, 8)
    engine.run()
    assert engine.events(ev.SwappedOut) and engine.events(ev.SwappedIn) and not engine.events(ev.Preempted)
    assert engine.state.totals.tokens_lost == 0
    for name, prompt in prompts.items():
        assert engine.output(name) == expected_output(prompt, 8)


def beam_case(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "group.beams",
        "kind": "steps",
        "semantics": "v0",
        "engine": "vllm 0.6.2, newer block manager",
        "config": {"block_size": 4, "gpu_blocks": 8, "token_budget": 64, "max_seqs": 4, "max_model_len": 64},
        "requests": {"A": {"prompt": 6, "n": 2, "beam": True, "max_tokens": 5}},
        "steps": steps,
    }


def test_beams_fork_and_unselected_parents_give_their_blocks_back() -> None:
    first = [[0, 11, -0.1], [0, 12, -0.2], [0, 13, -3.0], [0, 14, -4.0]]
    second = [[0, 21, -0.1], [0, 22, -0.2], [1, 23, -5.0], [1, 24, -6.0]]
    steps = [
        {"do": {"add": ["A"], "emit": {"A": first}}, "expect": {"run": {"A": 6}, "free": 6, "blocks": {"A": 2}}},
        {
            "do": {"emit": {"A": second}},  # both survivors come of the first; the copy of the second goes back
            "expect": {
                "run": {"A": 2},
                "copies": 1,
                "free": 5,
                "free_after": 6,
                "blocks": {"A/0": 2, "A/1": 2},
                "ids": {"tables": {"A/0": [0, 2], "A/1": [0, 1]}, "copies": [[1, 2]]},
            },
        },
        {
            "do": {"emit": {"A": [[0, 31, -0.1], [1, 32, -0.1]]}},
            "expect": {"run": {"A": 2}, "copies": 1, "free": 5, "blocks": {"A/0": 2, "A/1": 2}},
        },
    ]
    report = run_cases([beam_case(steps)])
    assert report.ok, report.lines()
