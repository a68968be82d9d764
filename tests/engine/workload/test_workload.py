"""Workloads: checked fields, scaling, token ids of prompts, and generators that draw what was declared."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise
from typing import Any

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.workload.distributions import (
    Bursts,
    ClosedLoop,
    Fixed,
    Lengths,
    Lognormal,
    Poisson,
    Ramp,
    Uniform,
)
from vtop.engine.workload.generate import Prefixes, WorkloadSpec, generate
from vtop.engine.workload.jobs import Job, Workload, prompt_ids
from vtop_support.work_done import lines_run


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("at", -1.0),
        ("at", float("nan")),
        ("at", float("inf")),
        ("at", 10**400),
        ("prompt_tokens", 0),
        ("prompt_tokens", 10**12),
        ("output_tokens", 10**12),
        ("timeout", 10**400),
        ("output_tokens", -3),
        ("n", 0),
        ("beam_width", 0),
        ("expected_tokens", 0),
        ("timeout", 0.0),
        ("deadline", float("inf")),
        ("prefix", (("a", 0),)),
        ("prefix", (("a", 6), ("b", 5))),
        ("after", "job"),
    ],
)
def test_a_job_names_its_wrong_field(field: str, value: object) -> None:
    fields: dict[str, Any] = {"id": "job", "at": 0.0, "prompt_tokens": 10, "output_tokens": 5, field: value}
    with pytest.raises(BadValue) as caught:
        Job(**fields)
    assert caught.value.field == field


def test_a_workload_names_what_is_wrong() -> None:
    def job(name: str, at: float = 0.0, after: str | None = None) -> Job:
        return Job(name, at, 4, 4, after=after)

    Workload("ok", (job("b", 9, after="c"), job("a"), job("c", 1)))
    for jobs, field in (
        ((job("a"), job("a")), "id"),
        ((job("a", 2), job("b", 1)), "at"),
        ((job("a"), job("b", after="x")), "after"),
        ((job("a", after="b"), job("b", after="c"), job("c", after="b")), "after"),
    ):
        with pytest.raises(BadValue) as caught:
            Workload("bad", jobs)
        assert caught.value.field == field


def test_scaling() -> None:
    jobs = (
        Job("a", 2, 100, 10, prefix=(("p", 33), ("q", 33)), expected_tokens=4, timeout=8),
        Job("b", 1, 5, 1, after="a"),
        Job("c", 4, 7, 2),
    )
    workload = Workload("w", jobs)
    assert workload.scaled() == workload
    a, b, c = workload.scaled(time=0.5, length=0.1).jobs
    assert (a.at, b.at, c.at, a.timeout) == (1, 0.5, 2, 8)
    assert (a.prompt_tokens, a.output_tokens, a.expected_tokens, c.prompt_tokens, c.output_tokens) == (10, 1, 1, 1, 1)
    assert a.prefix == (("p", 3), ("q", 4))
    assert workload.scaled(length=0.02).jobs[0].prefix == (("p", 1),)
    assert workload.scaled(length=0.012).jobs[0].prefix == (("p+q", 1),)
    assert [job.id for job in workload.scaled(limit=2).jobs] == ["a", "b"]
    assert [job.id for job in Workload("w", (jobs[1], jobs[0], jobs[2])).scaled(limit=1).jobs] == []
    for field, wrong in (("scale_time", {"time": -1.0}), ("scale_length", {"length": 0.0}), ("limit", {"limit": 0})):
        with pytest.raises(BadValue) as caught:
            workload.scaled(**wrong)
        assert caught.value.field == field


def test_prompts_share_exactly_their_equal_pieces() -> None:
    def ids(name: str, *prefix: tuple[str, int], tokens: int = 60) -> list[int]:
        return prompt_ids(Job(name, 0, tokens, 1, prefix=prefix), vocab_size=5000)

    one, two = ids("a", ("x", 20), ("y", 10)), ids("b", ("x", 20), ("y", 10))
    assert len(one) == 60 and one[:30] == two[:30] and one[30:33] != two[30:33]
    assert one == ids("a", ("x", 20), ("y", 10))
    assert ids("a", ("x", 20), ("z", 10))[20:23] != one[20:23]
    assert ids("a", ("w", 20), ("y", 10))[20:23] != one[20:23]  # the chain up to there counts
    assert ids("a", ("x", 9), tokens=9) == one[:9]
    assert ids("x", tokens=20) != one[:20]  # a job of the name of a piece is another thing
    assert all(3 <= token < 5000 for token in one) and len(set(one)) > 50
    assert set(prompt_ids(Job("a", 0, 50, 1), vocab_size=4)) == {3}
    with pytest.raises(BadValue, match="vocab_size"):
        prompt_ids(Job("a", 0, 5, 1), vocab_size=3)


def test_prompts_of_many_jobs_are_quick() -> None:
    """Ids are not made one by one in Python: a hundred times the tokens run the same lines."""
    prefix = tuple((f"p{i}", 16) for i in range(8))
    short, long = (lines_run(lambda: prompt_ids(Job("a", 0, n, 1, prefix=prefix))) for n in (500, 50_000))  # noqa: B023
    assert long <= 1.2 * short < 1000


# --- generators ------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"prompt": Fixed(10), "output": Fixed(5)}


def arrivals(spec: WorkloadSpec, seed: int = 1) -> list[float]:
    return [job.at for job in generate(spec, seed).jobs]


@pytest.mark.parametrize("seed", range(3))
def test_poisson_has_its_rate_and_its_spread(seed: int) -> None:
    times = arrivals(WorkloadSpec(requests=4000, arrivals=Poisson(8), **SMALL), seed)
    gaps = [b - a for a, b in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.08)  # five standard errors
    assert statistics.pstdev(gaps) == pytest.approx(1 / 8, rel=0.12)


def test_bursts_arrive_in_their_windows() -> None:
    times = arrivals(WorkloadSpec(requests=3000, arrivals=Bursts(20, on=2, off=8), **SMALL))
    assert all(at % 10 <= 2 + 1e-6 for at in times)
    assert len(times) / (times[-1] // 10 + 1) == pytest.approx(40, rel=0.1)
    quiet = arrivals(WorkloadSpec(requests=5000, arrivals=Bursts(20, on=2, off=8, quiet_rate=2.5), **SMALL))
    assert sum(at % 10 <= 2 for at in quiet) / len(quiet) == pytest.approx(40 / 60, rel=0.06)


def test_ramps_go_from_one_rate_to_the_other() -> None:
    spec = WorkloadSpec(requests=100_000, seconds=200, arrivals=Ramp(2, 18, 100), **SMALL)
    times = arrivals(spec)
    for start, end, expected in ((0, 50, 300), (50, 100, 700), (100, 150, 900), (150, 200, 900)):
        assert sum(start <= at < end for at in times) == pytest.approx(expected, abs=5 * expected**0.5)
    down = arrivals(WorkloadSpec(requests=10_000, arrivals=Ramp(10, 0, 100), **SMALL))
    assert len(down) == pytest.approx(500, abs=112) and down[-1] <= 100
    up = arrivals(WorkloadSpec(requests=500, arrivals=Ramp(0, 10, 100), **SMALL))
    assert up[-1] == pytest.approx(100, abs=12)


@pytest.mark.parametrize("turns", [Fixed(4), Uniform(1, 7), Lognormal(3, 0.8, high=20)])
def test_the_rate_counts_requests_and_not_sessions(turns: Lengths) -> None:
    spec = WorkloadSpec(requests=100_000, seconds=1000, arrivals=Poisson(10), turns=turns, **SMALL)
    jobs = generate(spec).jobs
    assert len(jobs) / 1000 == pytest.approx(10, rel=0.1)
    burst = generate(
        WorkloadSpec(requests=100_000, seconds=1000, arrivals=Bursts(20, on=2, off=8), turns=turns, **SMALL)
    )
    assert len(burst.jobs) / 1000 == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize(
    "lengths",
    [
        Fixed(7),
        Uniform(3, 8),
        Lognormal(3, 0.8, high=20),
        Lognormal(200, 0.8, high=4096),
        Lognormal(2.5, 0.3, low=2, high=4),
        Lognormal(12.3, 0.0),
        Lognormal(0.2, 0.5),
        Lognormal(1000, 2.5, low=100),
        Lognormal(5000, 0.0, high=100),
    ],
)
def test_means_are_those_of_what_is_drawn(lengths: Lengths) -> None:
    rng = random.Random(4)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    error = statistics.pstdev(drawn) / len(drawn) ** 0.5
    assert lengths.mean == pytest.approx(statistics.fmean(drawn), abs=4 * error + 1e-9)


def test_a_closed_loop_has_one_request_per_client() -> None:
    jobs = generate(WorkloadSpec(requests=50, arrivals=ClosedLoop(4, think=2.0), **SMALL)).jobs
    assert [job.after for job in jobs[:4]] == [None] * 4
    assert [jobs[i].after for i in range(4, 50)] == [jobs[i - 4].id for i in range(4, 50)]
    assert statistics.mean(job.at for job in jobs[4:]) == pytest.approx(2.0, rel=0.75)
    assert all(job.at == 0 for job in generate(WorkloadSpec(requests=9, arrivals=ClosedLoop(20), **SMALL)).jobs)


def test_the_same_seed_gives_the_same_workload() -> None:
    spec = WorkloadSpec(
        prefixes=Prefixes(3, 40, share=0.5),
        turns=Uniform(1, 3),
        priorities=((0, 4), (10, 1)),
        groups=(("a", 3), ("b", 1)),
        think=1.5,
        expected_error=0.3,
    )
    assert generate(spec, 7) == generate(spec, 7)
    assert generate(spec, 7) != generate(spec, 8)
    other = WorkloadSpec(requests=100, deadlines=((3.0, 1), (None, 1)))
    plain = generate(WorkloadSpec(requests=100), 7)
    assert [job.at for job in generate(other, 7).jobs] == [job.at for job in plain.jobs]
    lengths, plain_lengths = ([(j.prompt_tokens, j.output_tokens) for j in w.jobs] for w in (generate(other, 7), plain))
    assert lengths == plain_lengths


def test_mixes_have_their_shares() -> None:
    spec = WorkloadSpec(
        requests=4000,
        groups=(("a", 3), ("b", 1)),
        priorities=((0, 0.8), (10, 0.2)),
        deadlines=((1.5, 1), (None, 3)),
        timeouts=((30.0, 1),),
        samples=((1, 9), (4, 1)),
        **SMALL,
    )
    jobs = generate(spec, 3).jobs
    for share, count in (
        (0.75, sum(job.group == "a" for job in jobs)),
        (0.2, sum(job.priority == 10 for job in jobs)),
        (0.25, sum(job.deadline == 1.5 for job in jobs)),
        (0.1, sum(job.n == 4 for job in jobs)),
    ):
        assert count / 4000 == pytest.approx(share, abs=0.035)
    assert {job.timeout for job in jobs} == {30.0}
    beams = generate(WorkloadSpec(beams=((4, 1),), **SMALL)).jobs
    assert {job.beam_width for job in beams} == {4}


def test_lengths() -> None:
    def prompts(prompt: Any) -> list[int]:
        return [job.prompt_tokens for job in generate(WorkloadSpec(requests=3000, prompt=prompt), 5).jobs]

    assert set(prompts(Fixed(9))) == {9}
    assert set(prompts(Uniform(3, 5))) == {3, 4, 5}
    drawn = prompts(Lognormal(200, 0.5, low=50, high=900))
    assert statistics.median(drawn) == pytest.approx(200, rel=0.07)
    assert min(drawn) >= 50 and max(drawn) <= 900
    exact = generate(WorkloadSpec(expected_error=0.0)).jobs
    assert all(job.expected_tokens == job.output_tokens for job in exact)


def test_prefixes_are_shared_as_declared() -> None:
    spec = WorkloadSpec(requests=2000, prefixes=Prefixes(5, 64, share=0.6), **SMALL)
    jobs = generate(spec).jobs
    having = [job for job in jobs if job.prefix]
    assert len(having) / 2000 == pytest.approx(0.6, abs=0.06)
    assert {job.prompt_tokens for job in having} == {74}
    assert len({tuple(prompt_ids(job)[:64]) for job in having}) == 5
    assert len({tuple(prompt_ids(job)[64:]) for job in having}) == len(having)
    turns = generate(WorkloadSpec(requests=7, prefixes=Prefixes(3, 64, in_turn=True), **SMALL)).jobs
    assert [job.prefix[0][0] for job in turns] == [f"prefix {i % 3}" for i in range(7)]


def test_every_turn_begins_with_the_conversation_so_far() -> None:
    spec = WorkloadSpec(requests=9, turns=Fixed(3), think=4.0, prefixes=Prefixes(1, 20), **SMALL)
    jobs = generate(spec).jobs
    assert [job.prompt_tokens for job in jobs] == [30, 45, 60] * 3
    assert [job.after for job in jobs[:4]] == [None, "0.0", "0.1", None]
    for before, job in pairwise(jobs):
        one, two = prompt_ids(before), prompt_ids(job)
        assert one[:20] == two[:20]
        if job.after:
            assert two[: len(one)] == one and job.at > 0
        else:
            assert one[20:30] != two[20:30]
    loop = generate(WorkloadSpec(requests=12, turns=Fixed(2), arrivals=ClosedLoop(2), **SMALL)).jobs
    assert [job.after for job in loop[2:]] == [job.id for job in loop[:-2]]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Poisson(0), "rate"),
        (lambda: Bursts(1, on=0, off=1), "on"),
        (lambda: Bursts(1, on=1, off=1, quiet_rate=-1), "quiet_rate"),
        (lambda: Ramp(0, 0, 5), "end"),
        (lambda: Ramp(1, 2, 0), "seconds"),
        (lambda: ClosedLoop(0), "clients"),
        (lambda: Fixed(0), "value"),
        (lambda: Uniform(5, 4), "high"),
        (lambda: Lognormal(0, 1), "median"),
        (lambda: Lognormal(5, float("nan")), "sigma"),
        (lambda: Prefixes(2, 5, share=1.5), "share"),
        (lambda: WorkloadSpec(requests=0), "requests"),
        (lambda: WorkloadSpec(seconds=-1), "seconds"),
        (lambda: WorkloadSpec(groups=()), "groups"),
        (lambda: WorkloadSpec(priorities=((1, -1.0),)), "priorities"),
        (lambda: WorkloadSpec(deadlines=((0.0, 1.0),)), "deadlines"),
        (lambda: WorkloadSpec(samples=((0, 1.0),)), "samples"),
        (lambda: WorkloadSpec(think=-1), "think"),
        (lambda: generate(WorkloadSpec(seconds=1e-9)), "seconds"),
    ],
)
def test_wrong_fields_are_named(make: Any, field: str) -> None:
    with pytest.raises(BadValue) as caught:
        make()
    assert caught.value.field == field
