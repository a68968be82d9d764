"""Jobs whose prompts never fit are refused before anybody makes their token ids."""

from __future__ import annotations

from typing import Any

import pytest

import vtop.engine.workload.engine as workload_engine
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.events import Refused
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.simulator import Simulation, build, host_blocks, simulate
from vtop.engine.workload.jobs import MOST_TOKENS, Job, Workload

CARD = find_card("rtx4090")


def _engine(**options: Any) -> workload_engine.WorkloadEngine:
    options.setdefault("num_gpu_blocks_override", 8)
    return build(Simulation(Workload("none", ()), EngineConfig(**options), CARD))


def _refusal(engine: workload_engine.WorkloadEngine, add: Any) -> tuple[str, Refused]:
    told: list[Refused] = []
    engine.on_frame(lambda frame: told.extend(e for e in frame.events if isinstance(e, Refused)))
    with pytest.raises(BadValue) as caught:
        add()
    engine.flush()
    [event] = told
    return str(caught.value), event


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"max_model_len": 100}, {}),
        ({}, {}),  # it does not fit the pool
        ({"batching": "prefill-first", "max_num_batched_tokens": 64, "num_gpu_blocks_override": 99}, {}),
        ({"max_num_seqs": 2}, {"n": 3}),  # what add_request checks first is told first
    ],
)
def test_it_is_told_as_add_request_tells_it(options: dict[str, Any], more: dict[str, Any]) -> None:
    from vtop.engine.request import SamplingParams

    job = Job("long", 0.0, 500, 5, **more)
    first, second = _engine(**options), _engine(**options)
    params = SamplingParams(max_tokens=5, ignore_eos=True, n=job.n, detokenize=False)
    assert _refusal(first, lambda: first.add_job(job, 0.0)) == _refusal(
        second, lambda: second.add_request("long", [5] * 500, params)
    )


def test_no_ids_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[int]:
        raise AssertionError("ids of a prompt that cannot fit")

    monkeypatch.setattr(workload_engine, "prompt_ids", never)
    jobs = tuple(Job(f"j{i}", 0.0, MOST_TOKENS, 1, prefix=(("p", MOST_TOKENS - 1),)) for i in range(1000))
    result = simulate(Simulation(Workload("long", jobs), EngineConfig(num_gpu_blocks_override=8), CARD))
    assert result.ledger.totals.refused == 1000


def test_what_comes_after_a_refused_one_comes() -> None:
    jobs = (Job("long", 0.0, 5000, 5), Job("next", 1.0, 10, 5, after="long"))
    found = simulate(Simulation(Workload("w", jobs), EngineConfig(num_gpu_blocks_override=8), CARD)).measures()
    assert (found["refused"], found["completed"]) == (1, 1)


def test_a_host_pool_has_a_bound_too() -> None:
    with pytest.raises(BadValue, match="swap_space"):
        host_blocks(EngineConfig(swap_space=1e6, preemption_mode="swap"), CARD)
