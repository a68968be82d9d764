"""`vtop conform`: every recorded case of kind steps holds under its preset, and what does not hold is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vtop.app.commands.conform import conform
from vtop.engine.conform.run import SKIPS, BadCaseFile, run_cases, run_file

RECORDED = Path(__file__).parents[2] / "data" / "scheduling-cases" / "recorded.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(RECORDED.read_text())["scenarios"]


def case(name: str) -> dict[str, Any]:
    """A copy of a recorded case, to be changed."""
    return copy.deepcopy(next(c for c in CASES if c["id"] == name))


@pytest.mark.parametrize("name", [c["id"] for c in CASES if c["kind"] == "steps"])
def test_every_recorded_case_holds(name: str) -> None:
    report = run_cases([case(name)])
    assert report.lines()[-1] in ("1 passed, 0 failed, 0 skipped", "0 passed, 0 failed, 1 skipped")
    assert report.ok, report.lines()


def test_counts_of_the_whole_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform(RECORDED) == 0
    assert capsys.readouterr().out == "94 passed, 0 failed, 10 skipped\n"


def test_only_quirks_and_errors_may_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, quirk = case("admit.sequence_cap.v0"), case("preempt.alone_last_block_partly_empty.v0")
    for listed in (wrong, quirk):
        listed["steps"][0]["expect"]["free"] = 99
    skips = tmp_path / "skips.toml"
    skips.write_text('[skip]\n"admit.sequence_cap.v0" = "no"\n"preempt.alone_last_block_partly_empty.v0" = "why"\n')
    monkeypatch.setattr("vtop.engine.conform.run.SKIPS", skips)
    report = run_cases([wrong, quirk])
    assert report.failed == ["admit.sequence_cap.v0"]
    assert report.skipped == {"preempt.alone_last_block_partly_empty.v0": "why"}


def test_the_file_of_skips_names_recorded_cases_and_reasons() -> None:
    import tomllib

    listed = tomllib.loads(SKIPS.read_text())["skip"]
    assert all(reason.strip() for reason in listed.values())


def change_run(wrong: dict[str, Any]) -> None:
    wrong["steps"][1]["expect"]["run"] = {"A": 2}


def change_order(wrong: dict[str, Any]) -> None:
    wrong["steps"][3]["expect"]["order"] = ["B", "A"]


def change_blocks(wrong: dict[str, Any]) -> None:
    wrong["steps"][2]["expect"]["blocks"] = {"A": 2}


def change_finished(wrong: dict[str, Any]) -> None:
    wrong["steps"][0]["expect"]["finished"] = {"A": "stop"}


def change_unknown(wrong: dict[str, Any]) -> None:
    wrong["steps"][0]["expect"]["speed"] = 3


def change_error(wrong: dict[str, Any]) -> None:
    wrong["steps"][0]["expect"] = {"error": "internal_assertion"}


def change_config(wrong: dict[str, Any]) -> None:
    wrong["config"]["warp"] = 9


WRONG: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (change_run, "step 2: expected run {A: 2}; got run {A: 1}"),
    (change_order, "step 4: expected order [B, A]; got order [A, B]"),
    (change_blocks, "step 3: expected blocks {A: 2}; got blocks {A: 2, B: 1}"),
    (change_finished, "step 1: expected finished {A: stop}; got finished {}"),
    (change_unknown, "step 1: expected speed 3; got speed is not known to this runner"),
    (change_error, "step 1: expected error internal_assertion; got no error"),
    (change_config, "step 0: expected a case that can be run; got CaseError: config.warp is not known to this runner"),
]


@pytest.mark.parametrize(("change", "line"), WRONG)
def test_a_wrong_case_fails_with_its_line(
    change: Callable[[dict[str, Any]], None], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = case("admit.sequence_cap.v0")
    change(wrong)
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"scenarios": [wrong, case("stop.max_tokens")]}))
    assert conform(file) == 1
    out = capsys.readouterr().out.splitlines()
    assert out == [f"admit.sequence_cap.v0 [v0] {line}", "1 passed, 1 failed, 0 skipped"]


def test_wrong_block_ids_are_told() -> None:
    wrong = case("swap.abort_swapped")
    wrong["steps"][1]["expect"]["ids"]["swap_out"] = [[2, 1], [3, 0]]
    assert run_cases([wrong]).lines()[0] == (
        "swap.abort_swapped [v0] step 2: expected ids.swap_out [[2, 1], [3, 0]]; got ids.swap_out [[2, 0], [3, 1]]"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read"),
        ("a: [", "not YAML"),
        ("- 1", "no list of `scenarios`"),
        ("scenarios: {}", "no list of `scenarios`"),
        ("scenarios: [{kind: steps}]", "scenario 1 has no id"),
        ("\x00", "not YAML"),
    ],
)
def test_a_bad_file_is_one_line(text: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "cases.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadCaseFile) as caught:
        run_file(file)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
