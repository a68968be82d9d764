"""The command line as a user runs it: one line for a mistake, no torch for what needs none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtop.app.cli import main


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in [n for n in os.environ if n.startswith("VTOP_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--block-size", "x"], "--block-size = 'x': give a whole number"),
        (["--block-size", "5"], "--block-size = 5: choose one of"),
        (["--block-sise", "5"], "--block-size"),
        (["--batching", "x"], "--batching = 'x': choose one of chunked, prefill-first"),
        (["--fps", "0"], "--fps = 0: give 1 to 60"),
        (["fly"], "fly"),
        (["run", "--headless"], "give --prompt, --prompts FILE or --burst N"),
        (["run", "--headless", "--burst", "-1"], "--burst = -1"),
        (["run", "--headless", "--burst", "2", "--burst-lengths", "tall"], "choose one of fixed"),
        (["run", "--headless", "--prompts", "/no/such"], "--prompts = '/no/such': cannot be read (No such file"),
        (["run", "--headless", "--prompt", "x", "--duration", "0"], "--duration = 0"),
        (["run", "--json"], "--json = True: it goes with --headless"),
        (["run", "--record", "/no/such/file"], "--record = '/no/such/file'"),
        (["models", "remove", "tiny"], "tiny"),
        (["config", "--seed", "x"], "--seed = 'x': give a whole number"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.startswith("vtop: ") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_without_a_terminal_it_names_headless(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "is not a terminal" in capsys.readouterr().err


def test_a_dumb_terminal_is_refused() -> None:
    from vtop.app.terminal.guard import NoTerminal, check_terminal

    class Tty:
        def isatty(self) -> bool:
            return True

    for environment in ({"TERM": "dumb"}, {}):
        with pytest.raises(NoTerminal, match="--headless"):
            check_terminal(Tty(), Tty(), environment)  # type: ignore[arg-type]
    check_terminal(Tty(), Tty(), {"TERM": "xterm"})  # type: ignore[arg-type]


def test_config_shows_values_and_origins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTOP_SEED", "7")
    assert main(["config", "--block-size", "32"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["block_size"] == ["32", "command", "line"]
    assert lines["seed"] == ["7", "environment"]
    assert lines["model"] == ["tiny", "default"]
    assert lines["batching"] == ["chunked", "preset", "sensible"]
    assert lines["max_num_batched_tokens"] == ["512", "preset", "sensible"]
    assert main(["config", "--preset", "vllm-v0", "--watermark", "0.2"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["batching"] == ["prefill-first", "preset", "vllm-v0"]
    assert lines["watermark"] == ["0.2", "command", "line"]
    assert lines["max_num_batched_tokens"][:3] == ["at", "least", "2048"]


def test_version_and_models_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vtop 0.")
    assert main(["models", "list"]) == 0
    assert "tiny" in capsys.readouterr().out


HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numba", "triton")


@pytest.mark.parametrize("arguments", [["--help"], ["config"], ["models", "list"], ["--version"]])
def test_light_commands_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom vtop.app.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} + ('textual.app', 'numpy') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert done.stderr.strip() == "[]"


def test_the_first_picture_comes_before_torch() -> None:
    code = f"""
import asyncio, sys
from vtop.app.live.engine import LiveFeed
from vtop.app.main import VtopApp
from vtop.engine.config import EngineConfig
feed = LiveFeed.of_config(EngineConfig())
start = feed.start
async def go():
    app = VtopApp(feed, model="tiny")
    def check():
        lines = ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]
        painted = any("loading model tiny" in line for line in lines)
        print([m for m in {HEAVY!r} if m in sys.modules], painted, file=sys.stderr)
        app.exit()
    feed.start = check
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(1.0)
asyncio.run(go())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == "[] True", done.stderr
