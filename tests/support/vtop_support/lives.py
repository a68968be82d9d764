"""Random lives of an engine over the stub, and what each request must give whatever happens around it.

A life is options and a list of actions: requests of every kind, steps, aborts, pools resized, caches reset, options
switched, executors that fail. Afterwards every output is compared with an unhurried run: the same request alone in a
large pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.outputs import RequestOutput
from vtop.engine.state.views import RequestView
from vtop_support.engines import AuditedEngine
from vtop_support.stub import StubExecutor

Action = tuple[str, int, int, int]
Switch = tuple[str, Any]

OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(2, 24),
        "block_size": st.sampled_from([4, 1, 2, 16]),
        "max_num_batched_tokens": st.one_of(st.integers(1, 16), st.just(64)),
        "max_num_seqs": st.sampled_from([8, 3, 1]),
        "batching": st.sampled_from(["chunked", "chunked", "prefill-first"]),
        "admission": st.sampled_from(["reserve-full-prompt", "first-chunk", "reserve-worst-case"]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "max_model_len": st.sampled_from([64, 24]),
        "scheduling_policy": st.sampled_from(
            ["fcfs", "priority", "fair", "deadline", "sjf", "mlfq", "priority+fair", "mlfq+fair+sjf"]
        ),
        "aging_rate": st.sampled_from([0.0, 0.7]),
        "mlfq_quantum": st.sampled_from([2, 32]),
        "victim": st.sampled_from(["latest", "policy", "least-computed", "most-blocks"]),
        "preemption_mode": st.sampled_from(["recompute", "swap", "hybrid"]),
        "num_host_blocks_override": st.sampled_from([0, 3, 20]),
        "enable_prefix_caching": st.booleans(),
        "preempt_for_waiting": st.booleans(),
        "skip_ahead": st.sampled_from([0, 2]),
        "max_waiting": st.sampled_from([None, 4]),
    }
)
SWITCHES: list[Switch] = [
    *(
        ("scheduling_policy", spec)
        for spec in ("fcfs", "priority", "fair", "sjf", "mlfq", "priority+fair", "fair+mlfq")
    ),
    *(("victim", rule) for rule in ("latest", "policy", "least-computed", "most-blocks")),
    *(("preempt_for_waiting", value) for value in (True, False)),
    *(("preemption_mode", mode) for mode in ("recompute", "swap", "hybrid")),
    *(("batching", value) for value in ("chunked", "prefill-first")),
    *(("admission", value) for value in ("reserve-full-prompt", "first-chunk", "reserve-worst-case")),
    *(("max_num_batched_tokens", value) for value in (1, 9, None)),
    *(("max_num_seqs", value) for value in (1, 5)),
    *(("watermark", value) for value in (0.0, 0.3)),
    *(("group_weights", value) for value in ("", "g0=4,g1=0.5")),
    *(("priority_order", value) for value in ("high-first", "low-first")),
    *(("mlfq_levels", value) for value in (1, 6)),
    *(("skip_ahead", value) for value in (0, 1, 3)),
]
KINDS: list[dict[str, Any]] = [
    {"n": 2, "temperature": 1.0},
    {"n": 3, "temperature": 1.0},
    {"n": 2, "best_of": 3, "temperature": 1.0},
    {"n": 2, "beam_width": 2},
    {"n": 1, "beam_width": 3},
]
"""Requests of several sequences."""

_SIZE = st.one_of(st.integers(1, 12), st.integers(1, 40))
_NOTHING = st.just(0)
_KIND = st.integers(0, len(KINDS) - 1)
_NUMBER = st.integers(0, 30)
_STEP = st.tuples(st.just("step"), st.integers(1, 4), _NOTHING, _NOTHING)
_GROUP = st.tuples(st.just("group"), _SIZE, st.integers(2, 20), _KIND)
_SHAKE = st.tuples(st.just("shake"), st.integers(1, 24), _NOTHING, _NOTHING)
ACTION = st.sampled_from(
    [
        *[_STEP] * 6,
        *[_GROUP] * 4,
        *[_SHAKE] * 2,
        st.tuples(st.just("add"), _SIZE, st.integers(1, 20), st.integers(0, 3)),
        st.tuples(st.just("timeout"), st.integers(1, 12), st.integers(1, 5), _NOTHING),
        st.tuples(st.just("abort"), _NUMBER, _NOTHING, _NOTHING),
        st.tuples(st.just("sample"), _NUMBER, st.integers(0, 2), _NOTHING),
        st.tuples(st.just("resize"), st.integers(1, 24), _NOTHING, _NOTHING),
        st.tuples(st.just("reset"), _NOTHING, _NOTHING, _NOTHING),
        st.tuples(st.just("switch"), st.integers(0, len(SWITCHES) - 1), _NOTHING, _NOTHING),
        st.tuples(st.just("fault"), st.integers(0, 2), _NOTHING, _NOTHING),
        st.tuples(st.just("priority"), _NUMBER, st.integers(-3, 3), _NOTHING),
    ]
).flatmap(lambda strategy: strategy)
ACTIONS = st.lists(ACTION, min_size=30, max_size=110)
"""Long enough for a request to be preempted, return and be met by something else: hypothesis's own lists are short."""

SWAPPING = OPTIONS.map(
    lambda options: (
        options
        | {"preemption_mode": "swap", "num_host_blocks_override": 20, "num_blocks": 3 + options["num_blocks"] % 10}
        | {"block_size": min(options["block_size"], 4), "max_num_seqs": 8, "batching": "chunked"}
    )
)
"""Pools so small that somebody is always in the host pool."""
SWAPPED = st.lists(
    ACTION.map(lambda action: ("fault", action[1] % 3, 0, 0) if action[0] in ("resize", "shake", "switch") else action),
    min_size=30,
    max_size=110,
)


@dataclass(frozen=True)
class Asked:
    """A request of a life, as its unhurried run needs it."""

    prompt: tuple[int, ...]
    max_tokens: int
    params: tuple[tuple[str, Any], ...]
    max_model_len: int


@dataclass
class Life:
    """An engine that lives, and what was asked of it."""

    engine: AuditedEngine
    max_model_len: int
    asked: dict[str, Asked] = field(default_factory=dict)
    maimed: set[str] = field(default_factory=set)  # requests of which a sample was aborted
    smallest: int = 0  # the least blocks the pool ever had

    @property
    def sensible(self) -> bool:
        return self.engine.engine.config.preset == "sensible"

    def add(self, serial: int, size: int, max_tokens: int, base: int, **more: Any) -> None:
        """Prompts of one `base` share their beginnings."""
        request_id = f"r{serial}"
        prompt = [3 + (base * 37 + i) % 900 for i in range(size)]
        params = {name: more.pop(name) for name in ("n", "best_of", "beam_width", "temperature") if name in more}
        more |= {"priority": (serial * 7) % 5 - 2, "group": f"g{serial % 3}"}
        try:
            self.engine.add(request_id, prompt, max_tokens, **params, **more)
        except BadValue:
            self.engine.check()
            assert self.engine.events(ev.Refused, request_id), "a refusal without its event"
        else:
            asked = Asked(tuple(prompt), max_tokens, tuple(sorted(params.items())), self.max_model_len)
            self.asked[request_id] = asked

    def pick(self, number: int) -> str:
        """One of the requests that are alive, if any is."""
        alive = sorted(self.engine.state.requests)
        return alive[number % len(alive)] if alive else "nobody"

    def resize(self, blocks: int) -> None:
        self.engine.engine.resize_pool(blocks)
        self.smallest = min(self.smallest, blocks)

    def step(self) -> None:
        """One step: within the budget, no entry without work, nobody left out without a reason (E020, E021, E025)."""
        engine = self.engine
        if not self.sensible:
            engine.step()
            return
        alive = engine.engine.get_num_unfinished_requests()
        failures = engine.state.totals.failures
        running_before = set(engine.state.running)
        frame = engine.step()
        ran = engine.ran(frame)
        budget = engine.engine._scheduler.token_budget
        assert sum(ran.values()) <= budget and all(tokens >= 1 for tokens in ran.values())
        assert engine.state.used <= engine.state.num_blocks
        if alive and engine.engine.get_num_unfinished_requests() == alive and engine.state.totals.failures == failures:
            assert engine.engine.last_step_ran, "I5: a step without work"
        left_out = running_before & set(engine.state.running) - set(ran)
        if engine.engine.config.batching == "chunked":
            assert all(isinstance(engine.state.running[name].reason, ev.NeedsBudget) for name in left_out)

    def act(self, serial: int, action: Action) -> None:
        kind, a, b, c = action
        engine = self.engine.engine
        executor = self.engine.executor
        assert isinstance(executor, StubExecutor)
        match kind:
            case "step":
                for _ in range(a):
                    self.step()
            case "add":
                self.add(serial, a, b, c)
            case "group":
                self.add(serial, a, b, serial % 3, **KINDS[c])
            case "timeout":
                self.add(serial, a, 16, serial % 3, timeout=float(b))
            case "abort":
                engine.abort_request(self.pick(a))
            case "sample":
                name = self.pick(a)
                if engine.abort_sample(name, b):
                    self.maimed.add(name)
            case "resize":
                self.resize(a)
            case "shake":  # whoever holds a block above is preempted, and the pool is as before
                before = self.engine.state.num_blocks
                self.resize(min(a, before))
                self.resize(before)
            case "reset":
                engine.reset_prefix_cache()
            case "switch":
                try:
                    engine.set_option(*SWITCHES[a])
                except BadValue:
                    assert not self.sensible
            case "fault":  # I9: the next step's executor raises, before or amid or after what it moves
                (executor.fail_at, executor.fail_before, executor.fail_amid)[a].add(executor.calls + 1)
            case "priority":
                engine.set_priority(self.pick(a), b)

    def end(self) -> None:
        """Let everybody end; then nothing is held, and what was given is right."""
        state = self.engine.state
        for _ in range(4000):
            if not self.engine.engine.has_unfinished_requests():
                break
            self.step()
        assert not self.engine.engine.has_unfinished_requests(), "I5: somebody never ends"
        assert state.used == 0 and state.host_used == 0, "I6"
        assert state.totals.arrived == sum(state.totals.finished.values())
        for event in self.engine.events(ev.StepFailed):
            assert "injected fault" in event.error, event.error
        for request_id, asked in self.asked.items():
            view = state.find(request_id)
            assert view is not None
            self._compare(request_id, asked, view)

    def _compare(self, name: str, asked: Asked, view: RequestView) -> None:
        """I4: tokens are those of the unhurried run; all of them, unless the request was ended before its time."""
        calm = unhurried(asked)
        beams = "beam_width" in dict(asked.params)
        done = view.finish_reason in ("length", "stop")
        if not beams:
            for index, seq in enumerate(view.sequences):
                expected = calm.samples[index]
                whole = done and seq.finish_reason != "abort"
                given = len(expected) if whole else len(seq.output_tokens)
                assert seq.output_tokens == expected[:given], f"I4: sample {index} of {name}, {asked}"
        if done and name not in self.maimed:
            assert results(self.engine.outputs[name]) == calm.results, f"I4: results of {name}, {asked}"
        if view.finish_reason == "capacity" and self.sensible:
            assert self._most_blocks(asked, view) > self.smallest, f"I5: {name} fits, and ended for lack of room"

    def _most_blocks(self, asked: Asked, view: RequestView) -> int:
        """Blocks that it takes at its longest, if its sequences share nothing but the prompt's whole blocks."""
        size = self.engine.state.block_size
        shared, longest = len(asked.prompt) // size, -(-view.limit // size)
        return longest + (len(view.sequences) - 1) * (longest - shared)


@dataclass(frozen=True)
class Unhurried:
    """What a request gives alone in a large pool: every sample's tokens, and what its caller gets."""

    samples: list[list[int]]
    results: list[tuple[list[int], str | None, float | None]]


@lru_cache(maxsize=20_000)
def unhurried(asked: Asked) -> Unhurried:
    engine = AuditedEngine(512, block_size=16, max_model_len=asked.max_model_len, enable_prefix_caching=False)
    engine.add("r", list(asked.prompt), asked.max_tokens, **dict(asked.params))
    while engine.engine.has_unfinished_requests():
        for output in engine.engine.step():
            engine.outputs[output.request_id] = output
    view = engine.state.find("r")
    assert view is not None and engine.state.totals.preemptions == 0
    return Unhurried([seq.output_tokens for seq in view.sequences], results(engine.outputs["r"]))


def results(output: RequestOutput) -> list[tuple[list[int], str | None, float | None]]:
    """(tokens, reason, sum of log-probabilities) of what is returned, in order."""
    return [(o.token_ids, o.finish_reason, o.cumulative_logprob) for o in output.outputs]


def live(options: dict[str, Any], actions: list[Action]) -> Life:
    """A whole life. Raises AssertionError for whatever went wrong in it."""
    options = dict(options)
    life = Life(AuditedEngine(**options), options["max_model_len"], smallest=options["num_blocks"])
    for serial, action in enumerate(actions):
        life.act(serial, action)
        life.engine.check()
    life.end()
    return life
