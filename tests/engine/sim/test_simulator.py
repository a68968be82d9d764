"""The simulator as a whole: every policy runs, time only goes forward, numbers mean what they say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.events import BlocksFreed, Forked, Frame, Note, PrefixLookup, Scheduled
from vtop.engine.policies import POLICIES
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.compare import Case, mean_and_half_width, rows, run_cases, student_t
from vtop.engine.sim.cost_model import HingeCost
from vtop.engine.sim.policy_choice import parse_policies
from vtop.engine.sim.simulator import Simulation, simulate
from vtop.engine.state.measures import jain, measures, overtakings, percentile
from vtop.engine.state.records import GapHistogram
from vtop.engine.workload.distributions import ClosedLoop, Fixed, Poisson
from vtop.engine.workload.generate import Prefixes, WorkloadSpec, generate
from vtop.engine.workload.jobs import Job, Workload

CARD = find_card("rtx4090")


def trace(count: int = 20, **more: Any) -> Workload:
    return Workload("trace", tuple(Job(f"j{i}", 0.1 * i, 60 + 7 * i, 30 + 3 * i, **more) for i in range(count)))


def run(workload: Workload, until: float | None = None, **options: Any) -> Any:
    options.setdefault("num_gpu_blocks_override", 64)
    return simulate(Simulation(workload, EngineConfig(**options), CARD, until))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_registered_policy_runs_the_same_trace(policy: str) -> None:
    """E124."""
    result = run(trace(), scheduling_policy=policy)
    found = result.measures()
    assert found["completed"] == found["requests"] == 20
    assert not any(math.isnan(found[name]) for name in ("ttft_mean", "tpot_p99", "e2e_p50", "itl_p90"))


@pytest.mark.parametrize("preset", ["vllm-v0", "vllm-v1"])
def test_presets_run_in_virtual_time(preset: str) -> None:
    assert run(trace(), preset=preset, max_model_len=2048).measures()["completed"] == 20


def test_policies_of_an_oversubscribed_pool_side_by_side() -> None:
    """E016: eager admission computes most again, reserving the worst case nothing."""
    workload = Workload("all at once", tuple(Job(f"j{i}", 0.0, 64, 256) for i in range(32)))
    choices = parse_policies("fcfs:admission=first-chunk,fcfs:watermark=0.1,fcfs:admission=reserve-worst-case")
    config = EngineConfig(num_gpu_blocks_override=80, enable_prefix_caching=False)
    cases = [Case(c.label, None, 0, Simulation(workload, c.apply(config), CARD)) for c in choices]
    eager, watermark, reserved = (row.mean for row in rows(run_cases(cases)))
    for name in ("tokens_per_second", "ttft_mean", "itl_p99", "preemptions", "lost_tokens"):
        assert all(name in found for found in (eager, watermark, reserved))
    assert eager["lost_tokens"] > watermark["lost_tokens"] > reserved["lost_tokens"] == 0
    assert reserved["preemptions"] == 0 < eager["preemptions"]
    assert eager["ttft_mean"] < reserved["ttft_mean"]  # what hides the loss


def test_first_token_end_and_gaps_through_a_preemption() -> None:
    """E110: a preempted request's wait is in its gaps, and the sums are the parts."""
    result = simulate(
        Simulation(
            Workload("two", (Job("a", 0.0, 64, 60), Job("b", 0.01, 64, 60))),
            EngineConfig(num_gpu_blocks_override=12, enable_prefix_caching=False),
            CARD,
            keep_gaps=True,
        )
    )
    ledger = result.ledger
    assert ledger.totals.preemptions > 0
    for record in ledger.records:
        gaps = ledger.gaps_of[record.id]
        assert len(gaps) == 59
        assert math.fsum(gaps) == pytest.approx(record.last_token - record.first_token)
        assert record.tpot == pytest.approx(math.fsum(gaps) / 59)
        assert record.e2e == pytest.approx(record.ttft + math.fsum(gaps))
    assert ledger.totals.output_tokens == sum(r.output_tokens for r in ledger.records) == 120
    assert ledger.totals.tokens_lost == sum(r.tokens_lost for r in ledger.records)


def test_time_goes_forward_and_nothing_happens_before_it_arrives() -> None:
    frames: list[Frame] = []
    workload = trace(12)
    result = simulate(
        Simulation(workload, EngineConfig(num_gpu_blocks_override=64), CARD), on_frame=lambda f: frames.append(f)
    )
    times = [t for f in frames for t in (f.began, f.time)]
    assert times == sorted(times)
    for job, record in zip(workload.jobs, result.ledger.records, strict=True):
        assert record.id == job.id and record.arrival == pytest.approx(job.at)
        assert record.arrival <= record.first_scheduled < record.first_token <= record.last_token <= record.ended


def test_one_request_alone_takes_what_the_card_says() -> None:
    result = run(Workload("one", (Job("a", 1.5, 100, 3),)))
    cost = CARD.cost
    assert isinstance(cost, HingeCost)
    prefill = cost.c0 + cost.ct * 100 + cost.ca * 100 * 50
    decode = [cost.c0 + cost.ct + cost.cd + cost.ck * context for context in (101, 102)]
    [record] = result.ledger.records
    assert record.ttft == pytest.approx(prefill)
    assert record.e2e == pytest.approx(prefill + sum(decode))
    assert result.measures()["seconds"] == pytest.approx(record.e2e)


def test_a_closed_loop_never_has_more_requests_than_clients() -> None:
    spec = WorkloadSpec(requests=40, arrivals=ClosedLoop(3, 0.2), prompt=Fixed(50), output=Fixed(20))
    result = run(generate(spec, 1))
    alive = 0
    changes = [(r.arrival, 1) for r in result.ledger.records] + [(r.ended, -1) for r in result.ledger.records]
    for _, change in sorted(changes):
        alive += change
        assert alive <= 3
    assert result.measures()["completed"] == 40


def test_time_outs_come_although_nothing_can_be_computed() -> None:
    jobs = (Job("big", 0.0, 900, 50), Job("waits", 0.1, 900, 5, timeout=0.4))
    result = run(Workload("blocked", jobs))
    assert {r.id: r.finish_reason for r in result.ledger.records} == {"big": "length", "waits": "timeout"}
    assert result.ledger.records[1].ended == pytest.approx(0.5, abs=0.05)


def test_until_ends_a_run() -> None:
    result = run(trace(30), until=1.0)
    assert 1.0 <= result.ledger.time < 1.2
    assert result.measures()["completed"] < 30


def test_a_job_that_never_fits_is_refused_and_what_follows_it_comes() -> None:
    jobs = (Job("huge", 0.0, 5000, 5), Job("next", 0.5, 20, 5, after="huge"))
    result = run(Workload("refused", jobs))
    assert result.ledger.totals.outcomes == {"refused": 1, "length": 1}
    found = result.measures()
    assert (found["requests"], found["completed"], found["slo_met"]) == (2, 1, 0.5)
    [(code, refusals)] = result.ledger.refusals.items()
    assert (code, refusals.count) == ("never-fits", 1) and refusals.example


def test_processes_give_what_one_gives() -> None:
    workload = generate(WorkloadSpec(requests=30, arrivals=Poisson(5.0)), 3)
    choices = parse_policies("fcfs,sjf")
    config = EngineConfig(num_gpu_blocks_override=128)
    cases = [Case(c.label, 5.0, s, Simulation(workload, c.apply(config), CARD)) for c in choices for s in (0, 1)]
    alone, together = run_cases(cases), run_cases(cases, workers=2)
    assert [(o.policy, str(o.measures)) for o in alone] == [
        (o.policy, str(o.measures)) for o in together
    ]  # NaN: no group
    assert [row.seeds for row in rows(alone)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("fcfs:agin_rate=1", "--policies"),
        ("nope", "scheduling_policy"),
        ("", "--policies"),
        ("fcfs:watermark", "--policies"),
        ("fcfs,sjf,fcfs", "--policies"),
        ("fcfs:watermark=2", "--policies"),
    ],
)
def test_a_bad_list_of_policies_is_named(text: str, field: str) -> None:
    with pytest.raises(BadValue) as caught:
        [choice.apply(EngineConfig()) for choice in parse_policies(text)]
    assert caught.value.field == field


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=200))
def test_the_histogram_is_within_a_percent(values: list[float]) -> None:
    histogram = GapHistogram()
    for value in values:
        histogram.add(value)
    assert histogram.mean == pytest.approx(sum(values) / len(values))
    assert histogram.most == max(values)
    ordered = sorted(values)
    for share in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert histogram.percentile(share) == pytest.approx(percentile(values, share), rel=0.01)
    assert histogram.percentile(0.0) == ordered[0] and histogram.percentile(1.0) == ordered[-1]


@given(st.floats(1e-9, 1e4), st.integers(1, 1000))
def test_percentiles_of_equal_gaps_are_that_gap(gap: float, count: int) -> None:
    histogram = GapHistogram()
    histogram.add(gap, count)
    assert [histogram.percentile(share) for share in (0.0, 0.5, 0.9, 0.99, 1.0)] == [gap] * 5


def test_small_measures() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert mean_and_half_width([2.0]) == (2.0, pytest.approx(math.nan, nan_ok=True))
    mean, half = mean_and_half_width([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.30 / math.sqrt(3), rel=1e-3)
    result = run(trace(10), scheduling_policy="sjf", max_num_seqs=1)
    passed = overtakings(result.ledger.records)
    order = sorted(result.ledger.records, key=lambda r: r.first_scheduled)
    for record in result.ledger.records:
        later = [o for o in order[: order.index(record)] if (o.arrival, o.number) > (record.arrival, record.number)]
        assert passed[record.id] == len(later)
    assert measures(result.ledger)["overtaken"] == max(passed.values())


def test_t_falls_smoothly_to_that_of_the_normal_distribution() -> None:
    found = [student_t(freedom) for freedom in range(1, 2000)]
    assert found == sorted(found, reverse=True) and found[0] == 12.706
    for freedom, expected in ((15, 2.131), (29, 2.045), (31, 2.040), (40, 2.021), (60, 2.000), (120, 1.980)):
        assert student_t(freedom) == pytest.approx(expected, abs=2e-3)
    assert found[-1] == pytest.approx(1.961, abs=1e-3)


# --- fairness ----------------------------------------------------------------------------------------------------


def backlog(**shares: int) -> Workload:
    """All at once; the run goes on until all is done, so that total service is the mix whoever goes first."""
    names = [group for group, count in shares.items() for _ in range(count)]
    return Workload("backlog", tuple(Job(f"{g}{i}", 0.0, 64, 64, group=g) for i, g in enumerate(names)))


@pytest.mark.parametrize("shares", [{"A": 60, "B": 20}, {"A": 60, "B": 20, "C": 20}])
def test_jain_tells_fairness_and_not_the_mix(shares: dict[str, int]) -> None:
    fair, fcfs = (
        run(backlog(**shares), scheduling_policy=policy, max_num_seqs=4, enable_prefix_caching=False)
        for policy in ("fair", "fcfs")
    )
    assert fair.ledger.service == fcfs.ledger.service
    assert fair.measures()["jain"] > 0.98
    assert fcfs.measures()["jain"] < 0.8  # A comes first


def test_jain_goes_by_the_weights() -> None:
    options: dict[str, Any] = {"max_num_seqs": 4, "enable_prefix_caching": False, "group_weights": "A=3"}
    found = run(backlog(A=60, B=60), scheduling_policy="fair", **options)
    assert found.measures()["jain"] > 0.98
    (got_a, _), (got_b, _) = (found.ledger.contested[group] for group in "AB")
    assert got_a / got_b == pytest.approx(3.0, rel=0.15)


def test_jain_is_nothing_when_no_two_groups_wait() -> None:
    jobs = [Job(f"j{i}", 5.0 * i, 64, 8, group="AB"[i % 2]) for i in range(10)]
    assert math.isnan(run(Workload("idle", tuple(jobs))).measures()["jain"])
    assert math.isnan(run(backlog(A=40), max_num_seqs=2).measures()["jain"])


def test_urgent_means_the_same_requests_whatever_order_a_policy_has() -> None:
    workload = Workload("two", tuple(Job(f"j{i}", 0.0, 64, 16, priority=10 * (i % 2)) for i in range(20)))
    config = EngineConfig(num_gpu_blocks_override=64, max_num_seqs=2)
    choices = parse_policies("priority,priority:priority_order=low-first")
    cases = [Case(c.label, None, 0, Simulation(workload, c.apply(config), CARD), low_first=False) for c in choices]
    high, low = (outcome.measures["ttft_urgent_mean"] for outcome in run_cases(cases))
    assert high < 0.6 * low
    assert simulate(cases[1].simulation).measures()["ttft_urgent_mean"] < 0.6 * low  # alone, by its own order


# --- what a run says of itself -----------------------------------------------------------------------------------


def test_only_deadlines_that_were_given_are_missed() -> None:
    def found(**limits: Any) -> tuple[float, float]:
        jobs = [Job("big", 0.0, 900, 100), *(Job(f"w{i}", 0.1, 900, 5, **limits) for i in range(3))]
        values = run(Workload("blocked", tuple(jobs))).measures()
        return values["timeouts"], values["deadline_misses"]

    assert found(timeout=0.4) == (3, 0)
    assert found(timeout=0.4, deadline=0.4) == (3, 0)  # it is the time-out that ends it
    assert found(timeout=0.4, deadline=0.3) == (3, 3)
    assert found(deadline=0.4) == (0, 3)


def test_a_time_out_still_orders_by_deadline() -> None:
    jobs = (Job("first", 0.0, 64, 40), Job("late", 0.01, 64, 5, timeout=90.0), Job("soon", 0.02, 64, 5, timeout=9.0))
    records = run(Workload("order", jobs), scheduling_policy="deadline", max_num_seqs=1).ledger.records
    assert [r.id for r in sorted(records, key=lambda r: r.first_scheduled)] == ["first", "soon", "late"]


POLICIES_THAT_FAIL = """
class Rank:
    def key(self, request): return (0.0,)
    def rank(self, request): return None

class Length:
    def __init__(self): self.asked = 0
    def key(self, request):
        self.asked += 1
        return (1.0,) * (1 + self.asked // 5)
"""


@pytest.mark.parametrize("name", ["Rank", "Length"])
def test_a_policy_that_fails_on_the_way_is_told(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(POLICIES_THAT_FAIL, encoding="utf-8")
    workload = Workload("all at once", tuple(Job(f"j{i}", 0.0, 64, 128) for i in range(16)))
    config = EngineConfig(num_gpu_blocks_override=40, scheduling_policy=f"{file}:{name}", victim="policy")
    [outcome] = run_cases([Case("mine", None, 0, Simulation(workload, config, CARD))])
    [note] = outcome.notes
    assert note.level == "error" and "failed" in note.text and outcome.failed
    assert not run_cases([Case("fcfs", None, 0, Simulation(workload, EngineConfig(), CARD))])[0].failed


def test_notes_are_kept_once_and_not_without_end() -> None:
    ledger = run(trace(1)).ledger
    for number in range(100):
        texts = (("warning", f"pool full, {number} blocks"), ("info", "x"), ("error", "policy " + "a" * number))
        told = [Note(level, text) for level, text in texts]
        ledger.apply(Frame(number, 1, 9.0, False, [*told, *told]))
    assert [note.level for note in ledger.notes].count("warning") == 1
    assert len(ledger.notes) == 50


class Again:
    """Tokens computed twice, counted from every sequence's place."""

    def __init__(self) -> None:
        self.place: dict[tuple[str, int], int] = {}
        self.most: dict[tuple[str, int], int] = {}
        self.twice = 0

    def look(self, frame: Frame) -> None:
        place, most = self.place, self.most
        for e in frame.events:
            if isinstance(e, PrefixLookup):
                place[e.id, e.seq] = e.hit
            elif isinstance(e, BlocksFreed):
                place[e.id, e.seq] = 0
            elif isinstance(e, Forked):
                place[e.id, e.child] = place[e.id, e.parent] if e.prompt_tokens is None else e.prompt_tokens
                most[e.id, e.child] = max(most.get((e.id, e.child), 0), place[e.id, e.child])
            elif isinstance(e, Scheduled):
                for i, (name, tokens) in enumerate(zip(e.ids, e.tokens, strict=True)):
                    key = name, e.seqs[i] if e.seqs else 0
                    start = place.get(key, 0)
                    self.twice += max(0, min(tokens, most.get(key, 0) - start))
                    place[key] = start + tokens
                    most[key] = max(most.get(key, 0), start + tokens)


@pytest.mark.parametrize(
    ("samples", "beams", "shared", "options"),
    [
        (1, None, 0, {}),
        (1, None, 100, {}),
        (1, None, 100, {"preset": "vllm-v0"}),
        (1, None, 100, {"preset": "vllm-v1", "max_num_batched_tokens": 64}),
        (1, None, 100, {"enable_prefix_caching": False}),
        (4, None, 0, {}),
        (4, None, 100, {}),
        (1, 4, 100, {}),
    ],
)
def test_the_tax_is_tokens_computed_twice(samples: int, beams: int | None, shared: int, options: Any) -> None:
    """A sample that returns computes the last part of the prompt again, though the group lost it only once."""
    spec = WorkloadSpec(
        requests=30,
        arrivals=Poisson(20.0),
        prompt=Fixed(32),
        output=Fixed(50),
        prefixes=Prefixes(2, shared) if shared else None,
        samples=((samples, 1.0),),
        beams=((beams, 1.0),),
    )
    again = Again()
    config = EngineConfig(num_gpu_blocks_override=60, **options)
    result = simulate(Simulation(generate(spec), config, CARD), on_frame=again.look)
    totals = result.ledger.totals
    assert totals.preemptions > totals.swaps and again.twice > 0
    assert totals.tokens_recomputed == again.twice
    assert result.measures()["recompute_tax"] == again.twice / totals.tokens_computed
    if beams is None:
        needed = sum(r.prompt_tokens + r.output_tokens - r.samples for r in result.ledger.records) - totals.hit_tokens
        assert totals.tokens_computed - needed == again.twice
