"""`vtop sim` from its command line: tables, files, exit codes, and errors of one line."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from vtop.app.cli import main

SMALL = ["sim", "--requests", "20", "--num-gpu-blocks-override", "96", "--workers", "1"]


def test_a_table_per_policy_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--policies", "fcfs,priority:aging_rate=1", "--rates", "2,6"]) == 0
    out = capsys.readouterr().out
    assert "RTX 4090, llama-8b, 96 blocks of 16" in out.replace("\n", " ")
    lines = [line.split() for line in out.splitlines() if line.strip().startswith(("fcfs", "priority:aging_rate=1"))]
    assert [tuple(line[:2]) for line in lines] == [
        ("fcfs", "2"), ("priority:aging_rate=1", "2"), ("fcfs", "6"), ("priority:aging_rate=1", "6"),
    ] * 2  # fmt: skip
    for name in ("TTFT p99", "TPOT", "ITL p90", "e2e p50", "tok/s", "preempt", "tax", "KV use", "goodput"):
        assert name in out


def test_json_and_csv_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    assert main([*SMALL, "--policies", "fcfs,sjf", "--rate", "5", "--seeds", "2", "--json", "--csv", str(file)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(run["policy"], run["seed"]) for run in data["runs"]] == [("fcfs", 0), ("sjf", 0), ("fcfs", 1), ("sjf", 1)]
    assert data["card"] == "rtx4090" and data["config"]["num_gpu_blocks_override"] == 96
    [fcfs, sjf] = data["rows"]
    assert fcfs["seeds"] == 2 and fcfs["half_width"]["ttft_mean"] > 0
    lines = list(csv.DictReader(file.open()))
    for line, run in zip(lines, data["runs"], strict=True):
        assert float(line["ttft_mean"]) == pytest.approx(run["ttft_mean"])
        assert int(line["seed"]) == run["seed"]
    mean = sum(run["ttft_mean"] for run in data["runs"] if run["policy"] == "sjf") / 2
    assert math.isclose(sjf["mean"]["ttft_mean"], mean)


def test_a_shipped_trace_by_name_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sim", "--trace", "mooncake-conversation", "--limit", "30", "--scale-length", "1/16", "--json"]
    assert main([*arguments, "--num-gpu-blocks-override", "2048"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["completed"] == 30 and run["hit_rate"] > 0  # the prefix structure survives
    assert main([*arguments, "--num-gpu-blocks-override", "2048", "--rates", "1,100"]) == 0
    slow, fast = json.loads(capsys.readouterr().out)["runs"]
    assert fast["seconds"] < slow["seconds"]


@pytest.mark.parametrize("name", ["deadline", "hol"])
def test_a_scenario_is_checked(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["sim", "--scenario", name, "--check"]) == 0
    out = capsys.readouterr().out
    assert "checks hold on rtx4090" in out and "FAILS" not in out


def test_a_failing_check_is_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[engine]\nnum_gpu_blocks_override = 32\n[[jobs]]\nid = "a"\nprompt = 8\noutput = 4\n'
        '[checks]\n"[bold]impossible" = "base.end < 0"\n',
        encoding="utf-8",
    )
    assert main(["sim", "--scenario", str(file), "--check"]) == 1
    out = capsys.readouterr().out
    assert "FAILS" in out and "[bold]impossible" in out  # a file's text is never markup
    assert main(["sim", "--scenario", str(file)]) == 0
    assert main(["sim", "--scenario", str(file), "--check", "--json"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "--rate = 0.0: give requests per second above 0"),
        (["--rates", "1;2"], "--rates = '1;2': give numbers"),
        (["--prompt-tokens", "many"], "--prompt-tokens = 'many'"),
        (["--prompt-tokens", "9-3"], "--prompt-tokens = '9-3'"),
        (["--output-tokens", "lognormal:0:1"], "--output-tokens"),
        (["--groups", "A=x"], "--groups = 'A=x'"),
        (["--arrivals", "sometimes"], "--arrivals = 'sometimes'"),
        (["--prefixes", "4"], "--prefixes = '4'"),
        (["--policies", "lifo"], "--scheduling-policy = 'lifo'"),
        (["--policies", "fcfs:victms=latest"], "did you mean victim?"),
        (["--card", "rtx4099"], "did you mean rtx4090?"),
        (["--card", "rtx4090", "--gpus", "4"], "was fitted with one GPU"),
        (["--card", "h100", "--model-shape", "lama-70b"], "did you mean llama-70b?"),
        (["--card", "l40s", "--model-shape", "llama-70b"], "leaves no room for KV"),
        (["--seeds", "0"], "--seeds = 0"),
        (["--workers", "0"], "--workers = 0"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--trace", "rtx4090", "--scale-length", "1/0"], "--scale-length = '1/0'"),
        (["--trace", "rtx4090", "--scenario", "hol"], "one workload at a time"),
        (["--scenario", "holl"], "did you mean hol?"),
        (["--check"], "it goes with --scenario"),
        (["--against", "x.jsonl"], "give the arrivals with --trace"),
        (["--csv", "/nowhere/x.csv"], "there is no such folder"),
        (["--time-scale", "2"], "it goes with --tui"),
        (["--ttft-limit", "0"], "--ttft-limit = 0"),
        (["--num-gpu-blocks-override", "4", "--prompt-tokens", "0"], "--prompt-tokens"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["sim", *arguments]) == 2
    out, error = capsys.readouterr()
    assert message in error
    assert error.startswith("vtop: ") and error.count("\n") == 1 and not out
