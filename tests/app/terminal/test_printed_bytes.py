"""Nothing that comes from outside reaches the terminal as a control sequence, whichever way it came in and out.

A hostile value goes through every option, variable, settings key and file name; what is printed is looked at.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from vtop.app import actions, cli
from vtop.app.cli import main
from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.options import options
from vtop.app.terminal.printing import CleanConsole, put, tell

# clipboard (OSC 52), title, colour by C1, erase line, right-to-left override, zero width, backspace, line ends
HOSTILE = "x\x1b]52;c;aGk=\x07\x1b]0;t\x07\x9b31m\x1b[2K\u202ey\u2066\u200b\x08\r\x7f\u2028\n\x85z"
IN_FILE_NAMES = HOSTILE.replace("/", "")
COLOURS = re.compile("\x1b\\[[0-9;]*m")


def assert_clean(text: str, where: object) -> None:
    for character in text:
        assert character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"), (
            f"{character!r} in {text!r}, from {where!r}"
        )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(arguments)
    told = capsys.readouterr()
    assert_clean(told.out, arguments)
    assert_clean(told.err, arguments)
    if code == 2:
        assert told.err.count("\n") == 1, told.err
    return told.out + told.err


@pytest.fixture(autouse=True)
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "config.toml"
    path.write_text("")
    monkeypatch.chdir(tmp_path)  # some values name files, which are then written
    monkeypatch.setenv("VTOP_CONFIG", str(path))
    monkeypatch.setenv("VTOP_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield path


@pytest.mark.parametrize("key", options())
def test_an_option(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "config", options()[key].flag, HOSTILE)
    run(capsys, "config", f"{options()[key].flag}={HOSTILE}")


@pytest.mark.parametrize("key", options())
def test_a_variable(key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options()[key].variable, HOSTILE)
    run(capsys, "config")


def toml(text: str) -> str:
    return '"' + "".join(f"\\U{ord(character):08X}" for character in text) + '"'


@pytest.mark.parametrize("key", options())
def test_a_key_of_the_settings(key: str, capsys: pytest.CaptureFixture[str], settings_file: Path) -> None:
    section = options()[key].section
    for line in (f"{key} = {toml(HOSTILE)}", f"{toml(key + HOSTILE)} = 1", f"{key} = {{ {toml(HOSTILE)} = 1 }}"):
        settings_file.write_text(f"[{section}]\n{line}\n")
        run(capsys, "config")


@pytest.mark.parametrize("text", [
    f"[{toml(HOSTILE)}]\n",
    f"engine = {toml(HOSTILE)}\n",
    f"[keys]\n{toml(HOSTILE)} = 'f2'\n",
    *(f"[keys]\n{action.id} = {toml(HOSTILE)}\n" for action in actions.ACTIONS[:3]),
    f"[keys]\nquit = ['f2', {toml(HOSTILE)}]\n",
    f"[keys]\nquit = {{ {toml(HOSTILE)} = 2 }}\n",
    f"a {HOSTILE} = 3",
], ids=str)  # fmt: skip
def test_the_settings_file(text: str, capsys: pytest.CaptureFixture[str], settings_file: Path) -> None:
    settings_file.write_text(text, encoding="utf-8", newline="")
    run(capsys, "config")


def test_the_name_of_the_settings_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / IN_FILE_NAMES
    monkeypatch.setenv("VTOP_CONFIG", str(path))
    run(capsys, "config")
    path.write_text("[app]\nfps = 30\n")
    assert "30" in run(capsys, "config")
    path.write_text("[nothing")
    run(capsys, "config")


@pytest.mark.parametrize("name", [field.name for field in fields(SimArguments)])
def test_an_argument_of_sim(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--" + name.replace("_", "-")
    quick = ("--requests", "3", "--workers", "1") if name in ("csv", "plot") else ()
    run(capsys, "sim", *quick, flag, HOSTILE)
    run(capsys, "sim", *quick, f"{flag}={HOSTILE}")


@pytest.mark.parametrize("arguments", [
    [HOSTILE],
    ["--" + HOSTILE],
    ["-" + HOSTILE],
    ["sim", HOSTILE],
    ["models", HOSTILE],
    ["models", "pull", HOSTILE],
    ["models", "pull", f"some/{HOSTILE}"],
    ["models", "remove", HOSTILE],
    ["conform", HOSTILE],
    ["calibrate", HOSTILE],
    ["calibrate", "x.gz", "--output", f"/nowhere/{IN_FILE_NAMES}"],
    ["run", "--headless", "--prompts", HOSTILE],
    ["run", "--headless", "--prompt", "x", "--record", f"/nowhere/{IN_FILE_NAMES}"],
    ["run", "--headless", "--burst", HOSTILE],
    ["run", "--burst-lengths", HOSTILE],
    ["run", "--scenario", HOSTILE],
    ["run", "--scenario", f"hol:{HOSTILE}"],
    ["run", "--duration", HOSTILE, "--headless"],
], ids=lambda arguments: " ".join(arguments)[:30].encode("ascii", "replace").decode())  # fmt: skip
def test_the_rest_of_the_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *arguments)


@pytest.mark.parametrize("arguments", [
    ["conform"], ["calibrate"], ["run", "--headless", "--prompts"], ["sim", "--trace"], ["sim", "--scenario"],
    ["sim", "--card"], ["sim", "--model-shape"], ["run", "--scenario"],
], ids=" ".join)  # fmt: skip
def test_files_with_hostile_names_and_content(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for suffix in ("", ".toml", ".json"):
        path = tmp_path / (IN_FILE_NAMES + suffix)
        for content in (b"\x00\xff", HOSTILE.encode(), b'{"' + HOSTILE.encode("unicode_escape") + b'": 1}', b""):
            if arguments[-1] == "--prompts" and content.strip() and b"\xff" not in content:
                continue  # prompts, and the model would be loaded for them
            path.write_bytes(content)
            run(capsys, *arguments, str(path))


def test_a_scenario_that_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shipped = Path(str(cli.__file__)).parents[1] / "engine" / "scenarios" / "hol.toml"
    text = re.sub(r'(?m)^(title|look|summary) = ".*"$', lambda m: f"{m[1]} = {toml(HOSTILE)}", shipped.read_text())
    assert text != shipped.read_text()
    path = tmp_path / f"{IN_FILE_NAMES}.toml"
    path.write_text(text)
    run(capsys, "sim", "--scenario", str(path))


def test_names_of_groups_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    policy = f'fair:group_weights="{HOSTILE.replace(chr(10), "")}=2"'
    run(capsys, "sim", "--requests", "3", "--workers", "1", "--groups", f"{HOSTILE}=1", "--policies", f"fcfs,{policy}")


def test_in_colour_only_colours_are_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("VTOP_THEME", HOSTILE)
    monkeypatch.setenv("VTOP_GROUP_WEIGHTS", f"{HOSTILE.replace(chr(10), '')}=2")
    main(["config"])
    told = capsys.readouterr()
    assert "\x1b[1m" in told.out
    assert_clean(COLOURS.sub("", told.out), "config")


def test_the_ways_out_clean(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever prints later: what these are given is clean, and nothing else in the folder prints."""
    tell(HOSTILE)
    put(HOSTILE)
    console = CleanConsole()
    console.print(Text(HOSTILE))
    console.print(HOSTILE, markup=False, highlight=False)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE))
    console.print(table)
    told = capsys.readouterr()
    assert_clean(told.out, "stdout")
    assert_clean(told.err, "stderr")


def test_nobody_prints_but_through_them() -> None:
    folder = Path(str(cli.__file__)).parent
    pattern = re.compile(r"(?<!_)\bprint\(|\bConsole\(|\bstd(out|err)\.write\b")
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        if path.name != "printing.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line) and not re.search(r"onsole(\(\))?\.print\(|def |in _print", line)
    ]
    assert found == []
