"""The gallery shows what it says, and a file that cannot be used is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.scenario import find_scenario, gallery, load_scenario
from vtop.engine.scenario_check import evaluate
from vtop.engine.scenario_run import run_scenario, run_variant

NAMES = (
    "aging", "churn", "cow", "deadline", "fair", "fair_backlog", "hol", "longprefill", "overload", "prefix", "starve",
    "swapstorm", "thrash",
)  # fmt: skip

GOOD = """
title = "mine"
look = "something"
[engine]
num_gpu_blocks_override = 32
[[jobs]]
id = "a"
count = 3
every = 0.5
prompt = 40
output = 10
[variants.plain]
[variants.shorter]
jobs.a = { output = 5 }
[checks]
"fewer tokens take less time" = "shorter.end < plain.end"
"""


def test_all_thirteen_are_there() -> None:
    assert tuple(gallery()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_check_of_the_gallery_holds(name: str) -> None:
    scenario = find_scenario(name)
    assert scenario.look and scenario.checks
    _, verdicts = run_scenario(scenario)
    failed = [f"{v.text}: {v.sides}" for v in verdicts if not v.holds]
    assert not failed


def test_a_check_can_fail() -> None:
    scenario = find_scenario("hol")
    run = run_variant(scenario, scenario.variant("fcfs"))
    verdict = evaluate("x", 'fcfs.ttft_mean["s*"] < 1', {"fcfs": run})
    assert not verdict.holds and verdict.sides.endswith("< 1")


def test_a_run_gives_the_same_numbers_again() -> None:
    scenario = find_scenario("thrash")
    first = run_variant(scenario, scenario.variant("partial"))
    second = run_variant(scenario, scenario.variant("partial"))
    assert [r.ended for r in first.ledger.records] == [r.ended for r in second.ledger.records]
    assert first.measure("preemptions") == second.measure("preemptions") == 75


def test_the_ledger_counts_what_the_state_counts() -> None:
    """Two folds of the same Frames, of different grain."""
    for name, variant in (("swapstorm", "base"), ("cow", "beam4"), ("churn", "cliff"), ("thrash", "partial_cache")):
        scenario = find_scenario(name)
        run = run_variant(scenario, scenario.variant(variant))
        totals, counts = run.state.totals, run.ledger.counts
        assert counts.preemptions == totals.preemptions
        assert (counts.swapped_out, counts.swapped_in) == (totals.swapped_out_blocks, totals.swapped_in_blocks)
        assert (counts.copies, counts.evictions) == (totals.copies, totals.evictions)
        assert (counts.computed, counts.lost, counts.output) == (
            totals.tokens_computed, totals.tokens_lost, totals.output_tokens,
        )  # fmt: skip
        assert counts.peak_used >= totals.peak_used  # the state looks at the end of a step
        assert run.ledger.used == run.state.used == 0 and run.ledger.entries == 0
        assert run.ledger.waiting == run.ledger.running == run.ledger.alive == 0


def test_a_file_of_ones_own_works_like_the_gallery(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")
    scenario = load_scenario(path)
    runs, verdicts = run_scenario(scenario)
    assert list(runs) == ["plain", "shorter"] and all(v.holds for v in verdicts)
    assert find_scenario(str(path)).title == "mine"


@pytest.mark.parametrize(
    ("old", "new", "field", "remedy"),
    [
        ("every = 0.5", "evry = 0.5", "jobs[0].evry", "did you mean every?"),
        ('look = "something"', 'lok = "x"', "lok", "did you mean look?"),
        (
            "num_gpu_blocks_override",
            "num_gpu_block_override",
            "engine.num_gpu_block_override",
            "num_gpu_blocks_override",
        ),
        ("prompt = 40", 'prompt = "long"', "jobs[0].prompt", "give a whole number"),
        ("prompt = 40", "prompt = 0", "jobs[0].prompt", "1 or more"),
        ("count = 3", "count = 9999999", "jobs.count", "at most 100000"),
        ("output = 5 }", "count = 999999 }", "jobs.count", "variant shorter"),
        ("count = 3", "count = true", "jobs[0].count", "whole number"),
        ("jobs.a = { output = 5 }", "jobs.b = { output = 5 }", "variants.shorter.jobs.b", "no such series"),
        ("shorter.end", "shortr.end", "checks.fewer tokens take less time", "did you mean shorter?"),
        ("shorter.end", "shorter.ttft_meen", "checks.fewer tokens take less time", "did you mean ttft_mean?"),
        (
            "shorter.end < plain.end",
            "__import__('os').system('x')",
            "checks.fewer tokens take less time",
            "not underst",
        ),
        ("shorter.end < plain.end", "shorter.end <", "checks.fewer tokens take less time", "mine.toml"),
        ("num_gpu_blocks_override = 32", "watermark = 7.0", "watermark", "mine.toml, variant plain"),
        ("num_gpu_blocks_override = 32", 'preset = "x"', "preset", "mine.toml, variant plain"),
        ('title = "mine"', 'title = "mine"\ncard = "rtx4080"', "card", "did you mean rtx4090?"),
        ("[[jobs]]", "[cost]\nc7 = 1.0\n[[jobs]]", "cost.c7", "no such time"),
        ("[variants.plain]", "[variants.a-b]", "variants.a-b", "letters"),
        ("= 40", "= = 40", "scenario", "is no TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, old: str, new: str, field: str, remedy: str) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BadValue) as caught:
        load_scenario(path)
    assert caught.value.field == field
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(BadValue, match="did you mean thrash"):
        find_scenario("trash")
