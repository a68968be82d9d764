"""Files that a user names and that are nothing of the kind: one line each, no traceback, no hang, no gigabytes."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vtop.app.commands.run import read_prompts
from vtop.app.settings import load_settings
from vtop.app.terminal.themes import load_themes
from vtop.engine.config import EngineConfig
from vtop.engine.conform.run import run_file
from vtop.engine.errors import BadValue, VtopError
from vtop.engine.events.journal import Recorder, Recording
from vtop.engine.policies.user import load_user_policy
from vtop.engine.scenarios.scenario import load_scenario
from vtop.engine.sim.cards import load_card
from vtop.engine.sim.reference import recorded_config
from vtop.engine.sim.shapes import model_shape
from vtop.engine.traces.read import read_measured, read_trace
from vtop_support.engines import AuditedEngine

DIGITS, DEEP, HEX = "7" * 5000, "[" * 100_000, "0x" + "f" * 5000


def theme(path: Path) -> None:
    found = load_themes(path.parent)
    assert found.themes, "the app starts all the same"
    if found.problems:
        raise VtopError(found.problems[0])


def recording(path: Path) -> None:
    list(Recording(path).frames())


# reader -> (ending of its files, text of a file that holds the value)
READERS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "settings": (lambda path: load_settings({}, {}, path), ".toml", "[app]\nascii = {}"),
    "theme": (theme, ".toml", 'primary = "red"\ndark = {}'),
    "scenario": (load_scenario, ".toml", '[[jobs]]\nid = "a"\noutput = 3\nprompt = {}'),
    "card": (load_card, ".toml", "[cost]\nc0 = 0.1\nct = {}"),
    "prompts": (read_prompts, ".txt", ""),
    "cases": (run_file, ".yaml", "scenarios: {}"),
    "policy": (lambda path: load_user_policy(f"{path}:Mine"), ".py", "class Mine:\n    key = {}"),
    "trace": (read_trace, ".csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,{},1"),
    "sharegpt": (read_trace, ".json", '[{{"conversations": {}}}]'),
    "measured": (
        read_measured, ".jsonl",
        '{{"request_id": "a", "input_toks": {}, "output_toks": 1, "arrival_time": 1}}',
    ),
    "recording": (recording, ".vtop", '{{"schema": {}}}'),
    "shape": (lambda path: model_shape(str(path)), ".json", '{{"num_hidden_layers": {}}}'),
}  # fmt: skip


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk


def unreadable(path: Path) -> None:
    path.write_text("x")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("may read everything")


def one_line(path: Path) -> None:
    path.write_bytes(b"[" + b"a" * 20_000_000)


FILES: dict[str, Callable[[Path], Any]] = {
    "device": link_to_zero,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "endless": endless,
    "no permission": unreadable,
    "one long line": one_line,
    "link to itself": lambda path: path.symlink_to(path),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00\x80"),
}


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A hang fails the test instead of stopping the suite."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(reader: str, path: Path) -> str:
    with within(60), pytest.raises(VtopError) as raised:
        READERS[reader][0](path)
    said = str(raised.value)
    assert "\n" not in said and len(said) < 2000
    assert path.name[-20:] in said
    return said


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_its_kind_is_one_line(reader: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"given{READERS[reader][1]}"
    FILES[kind](path)
    if kind == "folder" and reader == "shape":
        pytest.skip("the folder of a model is a shape")
    refused(reader, path)


@pytest.mark.parametrize(
    "value", [DIGITS, HEX, DEEP, "a." * 100_000 + "a = 1"], ids=["digits", "hex", "deep", "dotted"]
)
@pytest.mark.parametrize("reader", [name for name in READERS if name != "prompts"])
def test_values_without_bounds_are_one_line(reader: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / f"given{READERS[reader][1]}"
    path.write_text(READERS[reader][2].format(value))
    refused(reader, path)


@pytest.mark.parametrize("reader", ["settings", "theme", "scenario", "card"])
def test_a_key_without_end_is_one_line(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    path.write_text("\n".join(f"[{'a.' * 500_000}a{i}]" for i in range(3)))
    refused(reader, path)


def test_aliases_that_stand_for_more_than_memory_holds_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20))]
    path.write_text("\n".join([*lines, "scenarios: *a19"]))
    assert "alias" in refused("cases", path)


@pytest.mark.parametrize("content", [b"\n", b"{", b"[" * 64 + b" "])
@pytest.mark.parametrize("reader", ["trace", "recording"])
def test_a_small_file_that_unzips_without_end_is_one_line(reader: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "given.gz"
    path.write_bytes(gzip.compress(content * (80_000_000 // len(content)), 1))
    refused(reader, path)


@pytest.mark.parametrize("name", ["x\0y", "n" * 5000, "none/there"])
@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("settings", "theme", "shape")])
def test_names_of_no_file_are_one_line(reader: str, name: str, tmp_path: Path) -> None:
    path = Path(f"{tmp_path}/{name}{READERS[reader][1]}")
    with pytest.raises(VtopError) as raised:
        READERS[reader][0](path)
    assert "\n" not in str(raised.value)


def test_a_byte_order_mark_is_dropped_and_only_line_feeds_end_a_prompt(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    text = "\ufeffone\x0ctwo\u2028three\x85four\r\n\n  \nfive\x1csix"
    prompts.write_bytes(text.encode())
    assert read_prompts(prompts) == ["one\x0ctwo\u2028three\x85four", "five\x1csix"]
    settings = tmp_path / "config.toml"
    settings.write_bytes("\ufeff[engine]\r\nblock_size = 8\r\n".encode())
    assert load_settings({}, {}, settings).values["block_size"] == 8
    policy = tmp_path / "mine.py"
    policy.write_bytes(
        "\ufeffclass Mine:\n    def key(self, request):\n        return 'a\x0cb\u2028c'.count('c')\n".encode()
    )
    assert load_user_policy(f"{policy}:Mine").width == 1
    cases = tmp_path / "cases.yaml"
    cases.write_bytes("\ufeffscenarios: []\n".encode())
    assert run_file(cases).ok
    table = tmp_path / "t.csv"
    row = "2023-11-16 18:17:03,5,6"
    table.write_bytes(f"\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n".encode())
    assert read_trace(table).jobs[0].prompt_tokens == 5


def test_a_folder_of_themes_that_may_not_be_read_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list_of = Path.iterdir

    def denied(folder: Path) -> Any:
        if folder == tmp_path:
            raise PermissionError(13, "Permission denied")
        return list_of(folder)

    monkeypatch.setattr(Path, "iterdir", denied)
    found = load_themes(tmp_path)
    assert found.themes and found.problems == [f"theme folder {tmp_path}: cannot be read (Permission denied)"]


SPY = """
from pathlib import Path
Path({marker!r}).write_text("ran")
class Mine:
    def key(self, request):
        return 0
"""


def spy(tmp_path: Path) -> tuple[str, Path]:
    marker = tmp_path / "ran"
    (tmp_path / "spy.py").write_text(SPY.format(marker=str(marker)))
    return f"{tmp_path}/spy.py:Mine", marker


@pytest.mark.parametrize("where", ["engine", "variant"])
@pytest.mark.parametrize("spec", ["{}", "priority+{}", " {} +fcfs"])
def test_a_scenario_names_no_code(where: str, spec: str, tmp_path: Path) -> None:
    policy, marker = spy(tmp_path)
    section = "[engine]" if where == "engine" else "[variants.a.engine]"
    path = tmp_path / "given.toml"
    path.write_text(
        f'{section}\nscheduling_policy = "{spec.format(policy)}"\n[[jobs]]\nid = "a"\nprompt = 4\noutput = 3\n'
    )
    with pytest.raises(BadValue, match=r"scheduling_policy.*spy.py.*command line or the settings only"):
        load_scenario(path)
    assert not marker.exists()


def test_a_recording_names_no_code_but_the_command_line_does(tmp_path: Path) -> None:
    policy, marker = spy(tmp_path)
    engine = AuditedEngine(8, scheduling_policy=policy)
    marker.unlink()
    path = tmp_path / "run.vtop"
    Recorder(path, engine.engine.meta).close()
    with pytest.raises(BadValue, match=r"spy.py.*run.vtop: it names a file of code"):
        recorded_config(Recording(path), EngineConfig())
    assert not marker.exists()
    assert recorded_config(Recording(path), EngineConfig(scheduling_policy="priority")).scheduling_policy == "priority"
    assert recorded_config(Recording(path), EngineConfig(scheduling_policy=policy)).scheduling_policy == policy
