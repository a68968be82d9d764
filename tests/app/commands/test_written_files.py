"""Every file that vtop writes: nothing is replaced unasked, a full disk or a reader that is gone is one line and loses
nothing else, and nothing waits for a reader that never comes. Real processes, since descriptors are what it is about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vtop.app import files
from vtop.app.cli import main
from vtop.app.commands.headless import drive
from vtop.app.commands.run import Work
from vtop.app.options import AppConfig
from vtop.engine.errors import BadValue
from vtop.engine.events import SCHEMA_VERSION, Frame, Meta, Note, journal
from vtop.engine.events.journal import Recorder, Recording
from vtop_support.stub_engine import StubEngine

VTOP = [sys.executable, "-m", "vtop.app"]
HEADLESS = [
    "run",
    "--headless",
    "--prompt",
    "Once upon a time",
    "--max-tokens",
    "20",
    "--num-gpu-blocks-override",
    "40",
]
SIM = ["sim", "--requests", "3", "--num-gpu-blocks-override", "64", "--workers", "1"]
pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full and pipes with names")


def run(*arguments: str, seconds: float = 60, **more: Any) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    done = subprocess.run([*VTOP, *arguments], timeout=seconds, **options)
    assert "Traceback" not in (done.stderr or ""), done.stderr
    return done


def meta() -> Meta:
    return Meta(SCHEMA_VERSION, "0", "m", "cpu", "float32", "torch", 16, 8, 128, 64, 4, {}, 0.0, 0.0)


def headless(record: Path, tokens: int = 20) -> int:
    """A headless run over the stub, in this process."""
    config = AppConfig(max_tokens=tokens, temperature=0.0)
    return drive(StubEngine(40), config, Work(["a b c"], record=record), as_json=True)


def test_a_full_disk_loses_the_recording_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert headless(Path("/dev/full")) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["output_tokens"] == 20
    assert told.err == "vtop: recording to /dev/full stopped after 0 frames: No space left on device\n"


def test_a_reader_that_is_gone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: pipe.open("rb").close())
    reader.start()
    assert headless(pipe, 2000) == 1
    reader.join(5)
    told = capsys.readouterr()
    assert json.loads(told.out)["output_tokens"] > 20
    assert told.err.count("\n") == 1 and "frames: its reader is gone" in told.err


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "READER_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[object] = []

    def attempt() -> None:
        try:
            got.append(Recorder(pipe, meta()))
        except BadValue as error:
            got.append(str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(5)
    if thread.is_alive():  # let it go before the test fails
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    assert got and "is a pipe that nobody reads" in str(got[0])


def test_a_recording_into_a_pipe_is_whole(tmp_path: Path) -> None:
    pipe, copy = tmp_path / "pipe", tmp_path / "copy"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()))
    reader.start()
    recorder = Recorder(pipe, meta())
    for serial in range(500):
        recorder.write(Frame(serial, serial, float(serial), True, [Note("info", str(serial) * 50)]))
    recorder.close()
    reader.join(5)
    assert not recorder.error
    assert [frame.serial for frame in Recording(copy).frames()] == list(range(500))


def test_what_was_recorded_before_the_disk_was_full_can_be_read(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = tmp_path / "cut.jsonl.gz"
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        recorder = Recorder(path, meta())
        for serial in range(200):
            recorder.write(Frame(serial, serial, float(serial), True, [Note("info", os.urandom(40).hex())]))
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "stopped after" in recorder.error and "File too large" in recorder.error
    read = [frame.serial for frame in Recording(path).frames()]
    assert len(read) > 10 and read == list(range(len(read)))


@pytest.mark.parametrize("arguments", [
    ["run", "--headless", "--prompt", "x", "--record", "FILE"],
    ["run", "--record", "FILE"],
    [*SIM, "--csv", "FILE"],
    ["calibrate", "x.jsonl.gz", "--output", "FILE"],
    ["calibrate", "FOLDER/mine.jsonl.gz"],
    [*SIM, "--plot", "FOLDER"],
], ids=lambda a: " ".join(a[:1] + a[-2:]))  # fmt: skip
def test_no_file_is_replaced_unasked(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = [tmp_path / name for name in ("mine.toml", "cdf.png")]
    for path in mine:
        path.write_text("yesterday's")
    names = {"FILE": str(mine[0]), "FOLDER/mine.jsonl.gz": str(tmp_path / "mine.jsonl.gz"), "FOLDER": str(tmp_path)}
    assert main([names.get(argument, argument) for argument in arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "or add --overwrite" in told
    assert [path.read_text() for path in mine] == ["yesterday's"] * 2


def test_with_overwrite_it_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("yesterday's")
    assert main([*SIM, "--csv", str(path), "--overwrite"]) == 0
    assert path.read_text().startswith("policy,rate,seed")


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"old")
    path.chmod(0o600)
    files.write_file("--csv", path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    files.write_file("--csv", link, b"through the link")
    assert link.is_symlink() and path.read_bytes() == b"through the link"

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(BadValue, match="No space left on device"):
        files.write_file("--csv", path, b"newest")
    assert path.read_bytes() == b"through the link"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "runs.csv"]


@pytest.mark.parametrize("arguments", [SIM, [*SIM, "--json"], ["config"]], ids=lambda a: " ".join(a[:2]))
def test_stdout_that_takes_nothing_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


@pytest.mark.slow
def test_a_full_stdout_costs_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.gz"
    with open("/dev/full", "w") as full:
        assert run(*HEADLESS, "--json", "--record", str(path), stdout=full).returncode == 1
    assert list(Recording(path).frames())


def closed(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """Without a stdout, the first file to be opened would be number 1, and take all that is printed."""
    path = tmp_path / "runs.csv"
    done = run(*SIM, "--csv", str(path), stdout=None, preexec_fn=closed(1))
    assert done.returncode == 1 and done.stderr == "vtop: stdout is closed: give it a file, or /dev/null\n"
    done = run(*SIM, "--csv", str(path), stderr=None, preexec_fn=closed(0, 2))
    assert done.returncode == 0 and "TTFT" in done.stdout
    assert path.read_text().startswith("policy,rate,seed")


def test_errors_need_no_stderr() -> None:
    with open("/dev/full", "w") as full:
        done = run("sim", "--requests", "0", stderr=full)
    assert done.returncode == 2 and done.stdout == ""


def test_a_reader_that_takes_one_line(tmp_path: Path) -> None:
    command = f"{' '.join(VTOP)} config | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("models", "pull", "some/model", env={**os.environ, "VTOP_MODELS": str(tmp_path / "file" / "models")})
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1 and "file" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="address space is not limited elsewhere")
@pytest.mark.parametrize(
    "more",
    [(), pytest.param(("--seeds", "2", "--workers", "2"), marks=pytest.mark.slow)],
    ids=["alone", "two processes"],
)
def test_too_little_memory_is_one_line(more: tuple[str, ...]) -> None:
    import resource

    limit = 900 * 2**20
    done = run(
        "sim",
        "--requests",
        "3",
        "--num-gpu-blocks-override",
        "16000000",
        *more,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1 and "memory" in done.stderr
