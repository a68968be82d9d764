"""Recordings that somebody changed: whatever folds their Frames raises one typed error that says where."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.errors import BadValue, VtopError
from vtop.engine.events import InconsistentFrame
from vtop.engine.events.journal import Recorder, Recording
from vtop.engine.sim.calibrate import step_samples
from vtop.engine.state.fold import EngineState
from vtop.engine.state.ledger import Ledger
from vtop.engine.traces.read import read_trace
from vtop_support.engines import AuditedEngine

NUMBERS = (-1, 0, 1, 7, 2**31, -(2**40), 2**63, 10**30)


@functools.cache
def recorded() -> tuple[ev.Meta, list[Any]]:
    """A run with samples, prefix hits, preemptions both ways and a pool resized; Frames as plain data."""
    engine = AuditedEngine(
        24, preemption_mode="swap", num_host_blocks_override=20, max_num_batched_tokens=16, request_timeout=200
    )
    shared = list(range(10, 22))
    for i in range(3):
        engine.add(f"s{i}", shared, 20, n=2, temperature=1.0, group="ab"[i % 2], priority=i)
        engine.add(f"r{i}", [50 + i] * 9, 24)
    for _ in range(12):
        engine.step()
    engine.engine.set_option("preemption_mode", "recompute")
    engine.engine.resize_pool(16)
    engine.run()
    kinds = {type(event) for frame in engine.frames for event in frame.events}
    needed = {ev.SwappedOut, ev.SwappedIn, ev.Preempted, ev.Forked, ev.CopiedOnWrite, ev.Evicted, ev.PoolResized}
    assert needed <= kinds, needed - kinds
    return engine.engine.meta, msgspec.to_builtins(engine.frames)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree of lists and dicts, those of lists and dicts too."""
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        if key not in ("type", "serial"):
            found += leaves(child, (*path, key))
    return found


def mutate(frames: list[Any], rng: random.Random) -> None:
    frame = frames[rng.randrange(len(frames))]
    events = frame["events"]
    how = rng.randrange(6)
    if how == 0 and events:
        del events[rng.randrange(len(events))]
    elif how == 1 and events:
        events.insert(rng.randrange(len(events)), copy.deepcopy(rng.choice(events)))
    elif how == 2 and events:
        events.append(copy.deepcopy(rng.choice(rng.choice(frames)["events"] or events)))
    elif how == 3:
        rng.shuffle(events)
    elif events:
        event = rng.choice(events)
        path = rng.choice(leaves(event) or [("x",)])
        parent = functools.reduce(lambda at, key: at[key], path[:-1], event)
        value = parent.get(path[-1]) if isinstance(parent, dict) else parent[path[-1]]
        if isinstance(value, list) and rng.random() < 0.5:
            value.append(copy.deepcopy(value[0])) if value else value.append(rng.choice(NUMBERS))
        elif isinstance(value, list) and value:
            value.pop(rng.randrange(len(value)))
        elif isinstance(value, str):
            parent[path[-1]] = rng.choice(["nobody", "r0", "s1", "", "a\x1b[31m\nb"])
        elif isinstance(value, (int, float)):
            parent[path[-1]] = rng.choice([*NUMBERS, value + 1, value - 1])


def changed(seed: int) -> list[ev.Frame] | None:
    """Frames with one to three changes; None when they are none any more, which the reader says."""
    rng = random.Random(seed)
    frames = copy.deepcopy(recorded()[1])
    for _ in range(rng.randint(1, 3)):
        mutate(frames, rng)
    try:
        return msgspec.json.decode(msgspec.json.encode(frames), type=list[ev.Frame])
    except (msgspec.MsgspecError, OverflowError):
        return None


FOLDS: dict[str, Callable[[ev.Meta], Callable[[ev.Frame], None]]] = {
    "state": lambda meta: EngineState(meta).apply,
    "ledger": lambda meta: Ledger(meta, keep_gaps=True, keep_spans=True).apply,
}


@pytest.mark.parametrize("fold", FOLDS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_changed_recording_folds_or_says_which_event_cannot_be(fold: str, seed: int) -> None:
    frames = changed(seed)
    if frames is None:
        return
    apply, at = FOLDS[fold](recorded()[0]), -1
    try:
        for at, frame in enumerate(frames):  # noqa: B007  read below
            apply(frame)
    except InconsistentFrame as error:
        assert (error.step, error.serial) == (frames[at].step, frames[at].serial)
        said = str(error)
        assert said.isprintable() and len(said) < 500
        assert f"step {error.step}, frame {error.serial}, event " in said and f"({error.event})" in said


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_changed_recording_as_a_trace_or_for_calibration_is_read_or_refused(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    frames = changed(seed)
    if frames is None:
        return
    path = tmp_path_factory.getbasetemp() / "changed.vtop"
    recorder = Recorder(path, recorded()[0])
    for frame in frames:
        recorder.write(frame)
    recorder.close()
    for read in (read_trace, lambda path: step_samples(Recording(path))):
        try:
            read(path)
        except VtopError as error:
            assert "\n" not in str(error)


def test_the_error_names_step_frame_event_and_reason() -> None:
    meta, plain = recorded()
    frames = msgspec.convert(plain, list[ev.Frame])
    state = EngineState(meta)
    at = next(i for i, frame in enumerate(frames) if any(isinstance(e, ev.Admitted) for e in frame.events))
    for frame in frames[:at]:
        state.apply(frame)
    place = next(i for i, event in enumerate(frames[at].events) if isinstance(event, ev.Admitted))
    bad = msgspec.structs.replace(frames[at].events[place], id="no\x1bbody")
    events = [*frames[at].events[:place], bad, *frames[at].events[place + 1 :]]
    with pytest.raises(InconsistentFrame) as raised:
        state.apply(msgspec.structs.replace(frames[at], events=events))
    where = f"step {frames[at].step}, frame {frames[at].serial}, event {place + 1} (admitted)"
    assert str(raised.value).startswith(f"{where} does not follow from what came before: KeyError: 'no")
    assert "\x1b" not in str(raised.value) and "record it again" in str(raised.value)


@pytest.mark.parametrize("field", ["num_blocks", "num_host_blocks", "block_size"])
@pytest.mark.parametrize("value", [-1, 10**12, 2**70])
def test_sizes_that_no_pool_has_are_refused_when_the_recording_is_opened(
    field: str, value: int, tmp_path: Path
) -> None:
    path = tmp_path / "sizes.vtop"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(recorded()[0]) | {field: value}) + b"\n")
    with pytest.raises(BadValue, match="recording"):
        Recording(path)
