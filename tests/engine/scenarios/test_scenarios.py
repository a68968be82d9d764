"""The gallery shows what it says, and a file that cannot be used is told in one line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.scenarios.check import check_names, evaluate
from vtop.engine.scenarios.run import MEASURES, PART_MEASURES, ScenarioRun
from vtop.engine.scenarios.scenario import find_scenario, gallery, load_scenario, run_scenario, run_variant
from vtop.engine.state.records import RunTotals

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
        for field in fields(RunTotals):
            assert getattr(run.ledger.totals, field.name) == getattr(run.state.totals, field.name), field.name
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
        ("num_gpu_blocks_override = 32", "watermark = 7.0", "engine.watermark", "mine.toml: give a share"),
        (
            "num_gpu_blocks_override = 32",
            'preset = "vllm-v1"\nscheduling_policy = "sjf"',
            "scheduling_policy",
            "mine.toml, variant plain",
        ),
        ("num_gpu_blocks_override = 32", 'preset = "x"', "engine.preset", "mine.toml"),
        ("num_gpu_blocks_override = 32", 'max_num_seqs = "x"', "engine.max_num_seqs", "mine.toml: give a whole number"),
        ("num_gpu_blocks_override = 32", "num_gpu_blocks_override = 2.5", "engine.num_gpu_blocks_override", "whole"),
        ("num_gpu_blocks_override = 32", "block_size = 16.0", "engine.block_size", "whole number"),
        ("num_gpu_blocks_override = 32", 'enable_prefix_caching = "no"', "engine.enable_prefix_caching", "true or"),
        ("num_gpu_blocks_override = 32", "max_model_len = true", "engine.max_model_len", "whole number"),
        ("num_gpu_blocks_override = 32", "skip_ahead = 1.5", "engine.skip_ahead", "whole number"),
        ("num_gpu_blocks_override = 32", "aging_rate = nan", "engine.aging_rate", "give a number"),
        ("num_gpu_blocks_override = 32", "victim = 3", "engine.victim", "choose one of"),
        ("[variants.plain]", "[variants.plain]\nengine = {seed = []}", "variants.plain.engine.seed", "whole number"),
        ('title = "mine"', 'title = "mine"\nuntil = 0', "until", "seconds above 0"),
        ('title = "mine"', 'title = "mine"\nuntil = -5', "until", "seconds above 0"),
        ('title = "mine"', 'title = "mine"\nuntil = nan', "until", "number"),
        ('title = "mine"', 'title = "mine"\nuntil = inf', "until", "number"),
        ('title = "mine"', f'title = "mine"\nuntil = 1{"0" * 400}', "until", "number"),
        ('title = "mine"', f'title = "mine"\nuntil = 1{"0" * 5000}', "scenario", "is not TOML"),
        ('title = "mine"', f"title = {'[' * 5000}", "scenario", "nested too deeply"),
        ("every = 0.5", "every = 0.5\ntimeout = 0", "jobs[0].timeout", "above 0"),
        ("every = 0.5", f"every = 0.5\ndeadline = 1{'0' * 400}", "jobs[0].deadline", "number"),
        ("every = 0.5", "rate = 1e-300", "jobs[0].rate", "requests per second"),
        ("every = 0.5", "every = 0.5\nshared = -1", "jobs[0].shared", "0 (nothing) or more"),
        ("every = 0.5", f"every = 0.5\npriority = {2**60}", "jobs[0].priority", "53 bits"),
        ("[[jobs]]", "[cost]\nscale = 0\n[[jobs]]", "scale", "mine.toml, variant plain"),
        ("[[jobs]]", "[cost]\nc0 = nan\n[[jobs]]", "cost.c0", "give a number"),
        ('title = "mine"', 'title = "mine"\ncard = "rtx4080"', "card", "did you mean rtx4090?"),
        ("[[jobs]]", "[cost]\nc7 = 1.0\n[[jobs]]", "cost.c7", "no such time"),
        ("[variants.plain]", "[variants.a-b]", "variants.a-b", "letters"),
        ("= 40", "= = 40", "scenario", "is not TOML"),
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


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ('plain.hit_rate["a*"] > 0', "of the whole run"),
        ('plain.end["a*"] > 0', "of the whole run"),
        ('plain.jain["group:A"] > 0', "of the whole run"),
        ('(1 + 2)["a"] > 0', "not understood"),
        ('plain.at(1).free["s"] > 0', "not understood"),
        ("plain.at(1) > 0", "not understood"),
        ("plain.at('x').free > 0", "number of seconds"),
        ("plain.at(True).free > 0", "number of seconds"),
        ("plain.at(1e400).free > 0", "number of seconds"),
        ("plain.at(1, x=2).free > 0", "not understood"),
        ("plain.gaps_over('abc') > 0", "number of seconds"),
        ("plain.gaps_over() > 0", "not understood"),
        ("min() > 0", "2 values or more"),
        ("min(1) > 0", "2 values or more"),
        ("abs(1, 2) > 0", "1 value"),
        ("abs('a') > 0", "give a number"),
        ("plain.at(1).head < 3", "with a text"),
        ("plain.at(1).head < 'a'", "by == or !="),
        ("plain.at(1).head == 3", "with a text"),
        ("'a' < plain.end", "with a text"),
        ("-'a' == 1", "give a number"),
        ("not plain.end", "a comparison"),
        ("plain.end and plain.end > 0", "a comparison"),
        ("(plain.end > 0) + 1 > 0", "give a number"),
        ("(plain.end > 0) == (shorter.end > 0)", "join two with and"),
        ("-" * 5000 + "1 > 0", "letters"),
        ("-" * 1500 + "1 > 0", "nested too deeply"),
        ("(" * 900 + "1" + ")" * 900 + " > 0", "nested"),
        ("1 + " * 400 + "1 > 0", "nested too deeply"),
        ("plain.ttft_mean", "a comparison"),
        ("1", "a comparison"),
        ("True", "give a number"),
        ("'text'", "a comparison"),
        ("1e400 > 0", "give a number"),
        ("1" + "0" * 400 + " > 0", "give a number"),
        ("1j == 1", "not understood"),
        ("plain.end > True", "give a number"),
        ("plain.end in plain.end", "not understood"),
        ("lambda: 1", "not understood"),
        ("", "invalid syntax"),
        ("\\u0000", "null"),
    ],
)
def test_a_check_that_cannot_be_evaluated_is_told(tmp_path: Path, expression: str, remedy: str) -> None:
    path = tmp_path / "mine.toml"
    text = expression.replace('"', '\\"')
    path.write_text(GOOD.replace("shorter.end < plain.end", text), encoding="utf-8")
    with pytest.raises(BadValue) as caught:
        load_scenario(path)
    assert caught.value.field == "checks.fewer tokens take less time"
    assert "mine.toml" in caught.value.remedy and remedy in caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def runs() -> dict[str, ScenarioRun]:
    scenario = find_scenario("hol")
    return {"fcfs": run_variant(scenario, scenario.variant("fcfs"))}


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ('fcfs.ttft_mean["nobody"] < 1', False),
        ('fcfs.ttft_mean["nobody"] != 1', False),
        ('not fcfs.ttft_mean["nobody"] < 1', False),
        ('not (fcfs.ttft_mean["nobody"] < 1 and fcfs.end > 0)', False),
        ('not (fcfs.ttft_mean["nobody"] < 1 and fcfs.end < 0)', True),
        ('fcfs.ttft_mean["nobody"] < 1 or fcfs.end > 0', True),
        ('max(1, fcfs.ttft_mean["nobody"]) >= 1', False),
        ("0 / 0 == 0 / 0", False),
        ("1 / 0 > 5 and -1 / 0 < 5 and 1 / 0 == 1 / 0", True),
        ("1 / 0 == 1", False),
        ("1 / 0 != 1", True),
        ("min(3, 2, 1) == 1 and abs(-2) == max(1, 2)", True),
        ("fcfs.at(100000).head == ''", True),
        ("  fcfs.gaps_over(0) > 0 and fcfs.gaps_over(0)['nobody'] == 0", True),
        ("fcfs.end['*'] == fcfs.end", True),
        ("not fcfs.end < 0 and fcfs.end > 0", True),
    ],
)
def test_what_holds(runs: dict[str, ScenarioRun], expression: str, holds: bool) -> None:
    check_names("hol.toml", list(runs), "x", expression)
    assert evaluate("x", expression, runs).holds is holds


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_that_a_check_may_name_is_there(runs: dict[str, ScenarioRun], name: str) -> None:
    for expression in (f"fcfs.{name} >= 0", f'fcfs.{name}["s*"] >= 0')[: 2 if name in PART_MEASURES else 1]:
        check_names("hol.toml", list(runs), "x", expression)
        evaluate("x", expression, runs)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(BadValue, match="did you mean thrash"):
        find_scenario("trash")
