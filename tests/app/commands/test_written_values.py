"""What is written on the command line is what is meant: nothing is rounded, null is no value."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from vtop.app.cli import main
from vtop.app.options import AppConfig
from vtop.engine.errors import BadValue


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["config", "--max-num-seqs", "1.5"], "--max-num-seqs = '1.5': give a whole number"),
        (["config", "--block-size", "7.99"], "--block-size = '7.99': give a whole number"),
        (["config", "--max-num-seqs", "1_0"], "--max-num-seqs = '1_0': give a whole number"),
        (["config", "--fps", "12.5"], "--fps = '12.5': give a whole number"),
        (["config", "--max-num-seqs", "null"], "--max-num-seqs = 'null': give a whole number"),
        (["config", "--max-waiting", "null"], "--max-waiting = 'null': give a whole number, or none"),
        (["config", "--preset", "null"], "--preset = 'null': choose one of"),
        (["config", "--ascii=null"], "--ascii = 'null': give true or false"),
        (["config", "--watermark", "null"], "--watermark = 'null': give a number"),
        (["run", "--burst", "1.5"], "--burst = '1.5': give a whole number"),
        (["run", "--duration", "null"], "--duration = 'null': give a number"),
        (["run", "--headless", "--duration", "inf"], "--duration = inf: give seconds above 0"),
        (
            ["run", "--headless", "--prompt", "x", "--speed", "1e-12"],
            "--speed = 1e-12: give steps per second from 0.001",
        ),
        (["run", "--headless", "--prompt", "\udcff"], "--prompt = '\\\\udcff': character 1 is no Unicode"),
        (["sim", "--seeds", "1000000000"], "--seeds = 1000000000: give at least 1, at most 1,000"),
        (["sim", "--seeds", "2.5"], "--seeds = '2.5': give a whole number"),
        (["sim", "--workers", "1000000000"], "--workers = 1000000000: give at least 1, at most 1,024"),
        (["sim", "--seeds", "1000", "--rates", "1,2,3,4,5,6,7,8,9,10,11"], "give at most 10,000 runs"),
        (["sim", "--limit", "null"], "--limit = 'null': give a whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert text.replace("\\\\", "\\") in told and len(told.splitlines()) == 1


def test_none_is_a_value_of_what_may_be_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTOP_MAX_WAITING", "3")
    assert main(["config", "--max-waiting", "none"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("max_waiting"))
    assert line.split()[1:] == ["none", "command", "line"]


@pytest.mark.parametrize(
    "values", [{"speed": 1e-12}, {"speed": float("nan")}, {"max_tokens": 10**22}, {"cache_salt": "\ud800"}, {"fps": 0}]
)
def test_options_of_requests_have_the_ranges_of_requests(values: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=next(iter(values))):
        AppConfig(**values)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "vtop.app", "run", "--headless", "--max-tokens", "1", *arguments]
    environment = {**os.environ, "VTOP_NUM_GPU_BLOCKS_OVERRIDE": "16", **environment}
    return subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)


@pytest.mark.slow
def test_a_run_in_which_all_were_refused_did_not_succeed() -> None:
    """Exit code 1; with one accepted request, 0."""
    refused = run("--prompt", "word " * 2000)
    assert refused.returncode == 1 and b"refused" in refused.stderr
    assert run("--prompt", "word " * 2000, "--prompt", "To be").returncode == 0


def test_a_prompt_in_a_locale_without_utf8_is_utf8() -> None:
    done = run("--prompt", "\u00e9", "--json", LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0 and b"Traceback" not in done.stderr
