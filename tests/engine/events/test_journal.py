"""Recordings: the fold of the file equals the fold of the run, and a cut file reads up to its last whole Frame."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vtop.engine.errors import BadValue
from vtop.engine.events import Frame
from vtop.engine.events.journal import Recorder, Recording
from vtop.engine.state.fold import EngineState
from vtop_support.engines import AuditedEngine


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AuditedEngine]:
    path = tmp_path_factory.mktemp("journal") / "run.vtop.jsonl.gz"
    engine = AuditedEngine(10, max_num_batched_tokens=16)
    recorder = Recorder(path, engine.engine.meta)
    engine.engine.on_frame(recorder.write)
    for i in range(6):
        engine.add(f"[/] 请求 {i}\x1b[31m", [3 + i] * (5 + 3 * i), 14)
    with pytest.raises(BadValue):
        engine.add("too big", 400, 3)
    engine.run()
    recorder.close()
    assert engine.state.totals.preemptions
    return path, engine


def fold(recording: Recording) -> EngineState:
    state = EngineState(recording.meta)
    for frame in recording.frames():
        state.apply(frame)
    return state


def test_the_fold_of_the_file_is_the_fold_of_the_run(recorded: tuple[Path, AuditedEngine]) -> None:
    path, engine = recorded
    recording = Recording(path)
    assert recording.meta == engine.engine.meta
    assert list(recording.frames()) == engine.frames
    state = fold(recording)
    engine.engine.audit(state)
    assert [v.sequences[0].output_tokens for v in state.finished] == [
        v.sequences[0].output_tokens for v in engine.state.finished
    ]
    assert state.totals == engine.state.totals


def test_a_recording_from_before_the_backend_note_is_read(recorded: tuple[Path, AuditedEngine], tmp_path: Path) -> None:
    meta, *frames = gzip.decompress(recorded[0].read_bytes()).splitlines(keepends=True)
    assert b',"backend_note":""' in meta
    old = tmp_path / "old.vtop"
    old.write_bytes(b"".join((meta.replace(b',"backend_note":""', b""), *frames)))
    assert Recording(old).meta == Recording(recorded[0]).meta


def test_it_is_gzipped_json_lines_with_meta_first(recorded: tuple[Path, AuditedEngine]) -> None:
    lines = gzip.decompress(recorded[0].read_bytes()).splitlines()
    assert msgspec.json.decode(lines[0])["block_size"] == 4
    assert msgspec.json.decode(lines[1])["events"][0]["event"] == "arrived"


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@example(share=1.0)
@given(share=st.floats(0, 1))
def test_a_file_cut_anywhere_reads_to_its_last_whole_frame(
    recorded: tuple[Path, AuditedEngine], tmp_path: Path, share: float
) -> None:
    path, engine = recorded
    data = path.read_bytes()
    cut = tmp_path / "cut.gz"
    cut.write_bytes(data[: int(share * len(data))])
    try:
        frames = list(Recording(cut).frames())
    except BadValue as error:
        assert "cut before" in str(error)
        assert share < 0.9
    else:
        assert frames == engine.frames[: len(frames)]
        if share == 1:
            assert len(frames) == len(engine.frames)


def test_a_killed_process_loses_at_most_a_second(recorded: tuple[Path, AuditedEngine], tmp_path: Path) -> None:
    """Never closed: Frames a second of engine time old are on disk."""
    _, engine = recorded
    path = tmp_path / "killed.gz"
    recorder = Recorder(path, engine.engine.meta)
    for frame in engine.frames:
        recorder.write(frame)
    on_disk: list[Frame] = list(Recording(path).frames())
    assert engine.frames[-1].time - on_disk[-1].time <= 1.0


def test_an_unzipped_one_is_read_as_well(recorded: tuple[Path, AuditedEngine], tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(gzip.decompress(recorded[0].read_bytes()))
    assert Recording(plain).meta == Recording(recorded[0]).meta
    assert list(Recording(plain).frames()) == list(Recording(recorded[0]).frames())


def test_bad_files_give_one_line(recorded: tuple[Path, AuditedEngine], tmp_path: Path) -> None:
    missing = tmp_path / "none.gz"
    with pytest.raises(BadValue, match="cannot be read"):
        Recording(missing)
    plain = tmp_path / "plain.gz"
    plain.write_bytes(b"hello, this is text\n")
    with pytest.raises(BadValue, match="gzip"):
        Recording(plain)
    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(b'{"a": 1}\n'))
    with pytest.raises(BadValue, match="not a vtop recording"):
        Recording(other)
    with pytest.raises(BadValue, match="cannot be written"):
        Recorder(tmp_path / "no" / "folder.gz", recorded[1].engine.meta)
