"""`vtop sim` from its command line: tables, files, exit codes, and errors of one line."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vtop.app.cli import main
from vtop.app.commands.sim import work as sim_work
from vtop.app.commands.sim.arguments import SimArguments
from vtop.engine.config import EngineConfig
from vtop.engine.sim.cards import card_text, find_card
from vtop.engine.sim.reference import reference_pair
from vtop.engine.sim.simulator import simulate

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


def test_weights_of_groups_are_an_option_of_a_policy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, weighted = tmp_path / "runs.csv", 'fair:group_weights="A=9,B=1":max_num_seqs=4'
    load = ["--rate", "50", "--groups", "A=0.5,B=0.5", "--json", "--csv", str(file)]
    assert main([*SMALL, *load, "--max-num-seqs", "4", "--policies", f"fair,{weighted}"]) == 0
    plain, nine = json.loads(capsys.readouterr().out)["runs"]
    assert nine["policy"] == weighted and nine["config"]["group_weights"] == "A=9,B=1"
    assert nine["ttft_mean"] != plain["ttft_mean"]
    assert [line["policy"] for line in csv.DictReader(file.open())] == ["fair", weighted]


def test_every_run_in_the_json_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    policies = "fcfs,priority:aging_rate=2:max_num_seqs=8,fcfs:preset=vllm-v0"
    assert main([*SMALL, "--rate", "5", "--policies", policies, "--seeds", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = [(r["config"]["aging_rate"], r["config"]["max_num_seqs"], r["config"]["preset"]) for r in data["runs"]]
    assert found == [(0.0, 64, "sensible"), (2.0, 8, "sensible"), (0.0, 64, "vllm-v0")] * 2
    assert [run["config"]["seed"] for run in data["runs"]] == [run["seed"] for run in data["runs"]]
    shared = data["config"]
    assert shared["num_gpu_blocks_override"] == 96
    assert not shared.keys() & {"scheduling_policy", "aging_rate", "max_num_seqs", "preset", "watermark", "seed"}
    assert all(run["config"].items() >= shared.items() for run in data["runs"])


def test_a_shipped_trace_by_name_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sim", "--trace", "mooncake-conversation", "--limit", "30", "--scale-length", "1/16", "--json"]
    assert main([*arguments, "--num-gpu-blocks-override", "2048"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["completed"] == 30 and run["hit_rate"] > 0  # the prefix structure survives
    assert main([*arguments, "--num-gpu-blocks-override", "2048", "--rates", "1,100"]) == 0
    slow, fast = json.loads(capsys.readouterr().out)["runs"]
    assert fast["seconds"] < slow["seconds"]


def test_refusals_are_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*SMALL, "--rate", "5", "--policies", "fcfs,sjf"]
    assert main([*arguments, "--prompt-tokens", "lognormal:600:1.2", "--json"]) == 0
    out, error = capsys.readouterr()
    for run in json.loads(out)["runs"]:
        [(code, refusals)] = run["refusals"].items()
        assert run["requests"] == 20 == run["completed"] + refusals["count"] and run["refused"] == refusals["count"]
        told = f"vtop: policy {run['policy']}, rate 5, seed 0: {refusals['count']} refused ({code}), as in: "
        assert told + refusals["example"] in error
    assert len(error.splitlines()) == 2
    assert main([*arguments, "--prompt-tokens", "3000"]) == 1
    assert "20 refused" in capsys.readouterr().err


def test_a_policy_that_fails_on_the_way_is_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Late:\n    def key(self, request): return 0.0\n"
        "    def on_tokens(self, request, computed, outputs): raise ValueError('la\\x1b[31mte')\n",
        encoding="utf-8",
    )
    assert main([*SMALL, "--rate", "5", "--policies", f"fcfs,{file}:Late", "--json"]) == 1
    out, error = capsys.readouterr()
    fcfs, late = json.loads(out)["runs"]
    assert fcfs["notes"] == [] and [note["level"] for note in late["notes"]] == ["error"]
    [line] = error.splitlines()
    assert line.startswith(f"vtop: policy {file}:Late, rate 5, seed 0: ") and "on_tokens failed" in line
    assert "\x1b" not in line


def test_a_rate_given_twice_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--rates", "2,2,4", "--rate", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sorted(row["rate"] for row in data["rows"]) == [2, 4]
    assert all(row["seeds"] == 1 and row["half_width"]["ttft_mean"] is None for row in data["rows"])


def test_the_header_counts_the_requests_of_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seconds", "10", "--rates", "1,9", "--num-gpu-blocks-override", "96", "--workers", "1"]) == 0
    counts = re.search(r"(\d+) to (\d+) requests of", capsys.readouterr().out)
    assert counts is not None and int(counts[1]) < 30 < int(counts[2])


def test_urgent_is_by_the_order_of_the_base(capsys: pytest.CaptureFixture[str]) -> None:
    policies = "priority:priority_order=high-first,priority:priority_order=low-first"
    load = ["--rate", "50", "--priorities", "0=0.5,10=0.5", "--max-num-seqs", "2", "--json"]
    for base in ("high-first", "low-first"):
        assert main([*SMALL, *load, "--policies", policies, "--priority-order", base]) == 0
        high, low = (run["ttft_urgent_mean"] for run in json.loads(capsys.readouterr().out)["runs"])
        assert (high < low) == (base == "high-first")


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


def test_refusals_and_notes_of_a_scenario_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy, file = tmp_path / "mine.py", tmp_path / "mine.toml"
    policy.write_text(
        "class Late:\n    def key(self, request): return 0.0\n"
        "    def on_tokens(self, request, computed, outputs): raise ValueError('la\\x1b[31mte')\n",
        encoding="utf-8",
    )
    file.write_text(
        '[engine]\nnum_gpu_blocks_override = 32\n[[jobs]]\nid = "a"\nprompt = 8\noutput = 4\n'
        '[[jobs]]\nid = "big"\nprompt = 4000\noutput = 4\n[variants.plain]\n'
        "[variants.late]\nengine = { max_num_seqs = 2 }\n",
        encoding="utf-8",
    )
    own = ["--scheduling-policy", f"{policy}:Late"]  # code comes from the command line only
    assert main(["sim", "--scenario", str(file), *own, "--seed", "3"]) == 1  # as with --policies: what failed is told
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    for variant, (late, refused) in zip(("plain", "late"), (lines[:2], lines[2:]), strict=True):
        assert late.startswith(f"vtop: variant {variant}, seed 3: ") and "on_tokens failed" in late
        assert "1 refused (never-fits), as in: " in refused and "\x1b" not in late
    assert main(["sim", "--scenario", str(file), *own, "--json"]) == 1
    variants = json.loads(capsys.readouterr().out)["variants"]
    assert [v["notes"][0]["level"] for v in variants.values()] == ["error", "error"]
    assert [v["refusals"]["never-fits"]["count"] for v in variants.values()] == [1, 1]
    assert [v["config"]["max_num_seqs"] for v in variants.values()] == [64, 2]
    assert main(["sim", "--scenario", str(file)]) == 0
    refused, _ = capsys.readouterr().err.splitlines()
    assert refused.startswith("vtop: variant plain, seed 0: 1 refused (never-fits), as in: ")


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
        (["--policies", "lifo"], "--policies = 'lifo'"),
        (["--policies", "fcfs:preempt_for_waiting=maybe"], "'preempt_for_waiting=maybe': give true or false"),
        (["--policies", "priority:aging_rate=x"], "--policies = 'aging_rate=x': give a number"),
        (["--policies", "fcfs:max_num_seqs=2.5"], "--policies = 'max_num_seqs=2.5': give a whole number"),
        (["--policies", "fcfs:watermark=3"], "--policies = 'watermark=3': give a share from 0"),
        (["--policies", "fcfs:seed=3"], "all policies get the same requests"),
        (["--policies", "fcfs:model=x"], "a simulation runs no model"),
        (["--policies", "fair:preset=vllm-v1"], "preset vllm-v1 has fcfs and priority"),
        (["--policies", "fair:group_weights=a=2,b=1"], "--policies = 'b=1': begin with a policy; a value that holds"),
        (["--policies", 'fair:group_weights="a=2,b=1'], 'a " is not closed'),
        (["--policies", 'fair:group_weights="a=2,b=x"'], "'b=x': write group=weight"),
        (["--policies", "none.py:Mine:aging_rate=1"], "none.py cannot be read"),
        (["--length-error", "-1"], "--length-error = -1.0"),
        (["--trace", "rtx4090", "--limit", "0"], "--limit = 0"),
        (["--trace", "rtx4090", "--scale-time", "-1"], "--scale-time = -1.0"),
        (["--trace", ""], "--trace = ''"),
        (["--gpus", "0"], "--gpus = 0"),
        (["--card", "rtx4099"], "--card = 'rtx4099'"),
        (["--card", "h100", "--model-shape", "no"], "--model-shape = 'no'"),
        (["--gpu-memory-utilization", "0.01"], "--gpu-memory-utilization = 0.01"),
        (["--samples", "4", "--beams", "2"], "--beams = 2"),
        (["--requests", "0"], "--requests = 0"),
        (["--rates", ","], "--rates = ','"),
        (["--rates", "0"], "--rates = 0.0"),
        (["--arrivals", "closed:4", "--rate", "3"], "--arrivals closed has no rate"),
        (["--arrivals", "ramp:1:2:9", "--rates", "3"], "--arrivals ramp has no rate"),
        (["--think", "2"], "it goes with --turns"),
        (["--model", "tiny"], "a simulation runs no model"),
        (["--theme", "vtop-dark"], "it goes with --tui"),
        (["--trace", "rtx4090", "--seeds", "2"], "--seeds = 2: it does not go with --trace"),
        (["--trace", "rtx4090", "--groups", "A=1"], "--groups = 'A=1': it does not go with --trace"),
        (["--trace", "rtx4090", "--rate", "2", "--scale-time", "2"], "give one of the two"),
        (["--scale-length", "1/4"], "it goes with --trace"),
        (["--scenario", "hol", "--rates", "2"], "it does not go with --scenario"),
        (["--scenario", "hol", "--policies", "fcfs"], "it does not go with --scenario"),
        (["--scenario", "hol", "--plot", "x"], "it does not go with --scenario"),
        (["--reference", "rtx4090", "--card", "h100"], "it does not go with --reference"),
        (["--reference", "rtx4090", "--seed", "1"], "has the settings of the recorded run"),
        (["--trace", "rtx4090", "--against", "x", "--rate", "1"], "it does not go with --against"),
        (["--tui", "--seeds", "2"], "it goes without --tui"),
        (["--tui", "--policies", "fcfs,sjf"], "it shows one run, not 2"),
        (["--policies", "fcfs:victms=latest"], "did you mean victim?"),
        (["--policies", "fcfs,fcfs"], "fcfs is given twice"),
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


def test_a_closed_loop_ends_with_the_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sim", "--seconds", "6", "--arrivals", "closed:3:0.2", "--output-tokens", "20", "--json"]
    assert main(arguments) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert 5.5 < run["seconds"] < 6.5 and run["requests"] > 20


def test_no_client_of_a_closed_loop_runs_out_before_the_end() -> None:
    arguments = SimArguments(arrivals="closed:3", seconds=5.0, output_tokens="1-40", prompt_tokens="10")
    [case] = sim_work.cases(arguments, EngineConfig())
    assert case.simulation.until == 5.0
    ledger = simulate(case.simulation).ledger
    assert len(ledger.records) < len(case.simulation.workload.jobs)
    assert sum(record.ended is None for record in ledger.records) <= 3


def test_presets_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    policies = "fcfs,fcfs:preset=vllm-v1,fcfs:preset=vllm-v0:num_gpu_blocks_override=64"
    assert main(["sim", "--requests", "10", "--workers", "1", "--policies", policies]) == 0
    facts = capsys.readouterr().out.splitlines()[0]
    assert "preset sensible/vllm-v1/vllm-v0 (by policy)" in facts and "/64 (by policy) blocks" in facts
    choices = sim_work.configs(SimArguments(policies=policies), EngineConfig(), {"max_num_seqs": 9})
    assert [config.priority_order for _, config in choices] == ["high-first", "low-first", "low-first"]
    assert [config.max_num_seqs for _, config in choices] == [9, 9, 9]


def test_a_policy_of_ones_own_with_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def key(self, request):\n        return 0\n", encoding="utf-8")
    [(_, config)] = sim_work.configs(SimArguments(policies=f"{file}:Mine+priority:aging_rate=2"), EngineConfig(), {})
    assert config.scheduling_policy == f"{file}:Mine+priority" and config.aging_rate == 2.0


def test_a_scenario_on_another_card_with_options_as_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = []
    file = tmp_path / "runs.csv"
    for more in (["--card", "rtxpro6000"], ["--max-num-seqs", "1"], []):
        assert main(["sim", "--scenario", "hol", "--json", "--csv", str(file), "--overwrite", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
        lines = list(csv.DictReader(file.open()))
        assert [line["policy"] for line in lines] == list(found[-1]["variants"])
    assert [data["card"] for data in found] == ["rtxpro6000", "rtx4090", "rtx4090"]
    assert len({data["variants"]["fcfs"]["e2e_mean"] for data in found}) == 3


def test_a_card_of_a_file_has_its_own_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text(card_text(replace(find_card("rtx4090"), name="mine", device="\x1b[31mred")), encoding="utf-8")
    for more in (["--gpus", "2"], ["--model-shape", "llama-1b"]):
        assert main([*SMALL, "--card", str(file), *more]) == 2
        assert f"{more[0]} = " in capsys.readouterr().err
    assert main([*SMALL, "--card", str(file)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "␛[31mred" in out


def test_the_reference_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reference_pair("rtx4090")
    some = replace(whole.simulation, workload=whole.simulation.workload.scaled(limit=20))
    ids = [job.id for job in some.workload.jobs]
    pair = replace(whole, simulation=some, measured={i: whole.measured[i] for i in ids})
    monkeypatch.setattr("vtop.app.commands.sim.reference.reference_pair", lambda name: pair)
    main(["sim", "--reference", "rtx4090", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert {(line["metric"], line["part"]) for line in data["plain"]["lines"]} > {("ttft", "mean"), ("e2e", "p50")}
    assert all("error" in line for line in data["fitted"]["lines"])


def test_requests_that_a_trace_leaves_out_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,50,5\n2023-11-16 18:15:47,50,0\n",
        encoding="utf-8",
    )
    assert main(["sim", "--trace", str(file), "--json"]) == 0
    out, error = capsys.readouterr()
    assert error.count("\n") == 1 and "azure.csv" in error and "1 with no output tokens" in error
    assert json.loads(out)["runs"][0]["requests"] == 1


def test_in_a_pipe_facts_are_one_line_and_stderr_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    out, error = capsys.readouterr()
    assert "requests of generated" in out.splitlines()[0] and error == ""
    assert main(["sim", "--scenario", "hol"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_tables_come_though_the_csv_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--csv", "/dev/full"]) == 2
    out, error = capsys.readouterr()
    assert "TTFT p99" in out and "--csv = '/dev/full': cannot be written" in error


def test_a_csv_that_cannot_be_written_is_told_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SMALL, "--csv", str(tmp_path / ("x" * 300))]) == 2
    out, error = capsys.readouterr()
    assert not out and "cannot be written" in error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["tables", "json"])
def test_a_full_disk_is_one_line(more: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "vtop.app", *SMALL, *more]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "vtop: the output cannot be written (No space left on device)\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "vtop.app", *SMALL, "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
