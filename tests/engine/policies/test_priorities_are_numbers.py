"""Priorities are numbers: halves and negative ones order as numbers do, equal ones first come, first served."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from vtop.app.commands.sim.texts import as_number, mix
from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop.engine.events.journal import Recorder, Recording
from vtop_support.engines import AuditedEngine


def admitted(engine: AuditedEngine) -> list[str]:
    return [event.id for event in engine.events(ev.Admitted)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("high-first", ["d", "b", "e", "a", "c"]), ("low-first", ["c", "a", "b", "e", "d"])],
)
def test_they_order_as_numbers_and_ties_by_arrival(order: str, expected: list[str]) -> None:
    engine = AuditedEngine(64, max_num_seqs=1, scheduling_policy="priority", priority_order=order)
    for name, priority in (("a", 1.5), ("b", 1.8), ("c", -2), ("d", 2), ("e", 1.8)):
        engine.add(name, 4, 1, priority=priority)
    engine.run()
    assert admitted(engine) == expected


def test_one_may_be_given_while_it_waits() -> None:
    engine = AuditedEngine(64, max_num_seqs=1, scheduling_policy="priority")
    for name in ("a", "b", "c"):
        engine.add(name, 4, 2, priority=1)
    engine.engine.set_priority("c", 1.25)
    engine.run()
    assert admitted(engine) == ["c", "a", "b"]
    [told] = engine.events(ev.PrioritySet)
    assert (told.before, told.after) == (1, 1.25)


@pytest.mark.parametrize("priority", [math.nan, math.inf, -math.inf, True, "1", 2.0**54])
def test_what_is_no_number_is_refused(priority: object) -> None:
    engine = AuditedEngine(64)
    with pytest.raises(BadValue, match="priority"):
        engine.add("a", 4, 1, priority=priority)


def test_whole_ones_stay_whole_in_a_recording(tmp_path: Path) -> None:
    engine = AuditedEngine(64)
    path = tmp_path / "r.jsonl.gz"
    recorder = Recorder(path, engine.engine.meta)
    engine.engine.on_frame(recorder.write)
    engine.add("a", 4, 1, priority=3)
    engine.add("b", 4, 1, priority=-0.5)
    engine.run()
    recorder.close()
    read = [e for frame in Recording(path).frames() for e in frame.events if isinstance(e, ev.Arrived)]
    assert [msgspec.json.encode(e.priority) for e in read] == [b"3", b"-0.5"]


def test_mixes_of_the_simulator() -> None:
    assert mix("--priorities", "1.5=0.5,-2=0.25,0=0.25", as_number) == [(1.5, 0.5), (-2, 0.25), (0, 0.25)]
    for text in ("nan=1", "inf=1", "x=1"):
        with pytest.raises(BadValue, match="--priorities"):
            mix("--priorities", text, as_number)
