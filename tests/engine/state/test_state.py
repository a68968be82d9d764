"""EngineState beyond what the audit compares at every step: owners of shared blocks, copies, missing Frames."""

from __future__ import annotations

import pytest

from vtop_support.engines import AuditedEngine


def test_a_shared_block_belongs_to_who_still_holds_it() -> None:
    engine = AuditedEngine(16)
    engine.add("a", list(range(10, 18)), 9)
    engine.step()
    engine.add("b", [*range(10, 18), 99], 9)
    engine.step()
    a, b = (engine.state.requests[name] for name in "ab")
    shared = b.sequences[0].blocks[0]
    assert (engine.state.ref_count[shared], engine.state.owner[shared]) == (2, b.number)
    engine.engine.abort_request("b")
    engine.check()
    assert (engine.state.ref_count[shared], engine.state.owner[shared]) == (1, a.number)
    engine.engine.abort_request("a")
    engine.check()
    assert engine.state.owner[shared] == -1


def test_a_copy_stands_still() -> None:
    engine = AuditedEngine(16)
    engine.add("done", list(range(50, 54)), 1)
    engine.add("a", list(range(10, 18)), 9)
    engine.step()
    still = engine.state.copy()
    engine.run()
    assert still.requests["a"].output_tokens == 1 and still.used == 2 and list(still.running) == ["a"]
    assert still.finished[0] is engine.state.finished[0] and len(engine.state.finished) == 2
    assert engine.state.used == 0


def test_a_missing_frame_is_noticed() -> None:
    engine = AuditedEngine(16)
    engine.add("a", 4, 5)
    engine.step()
    with pytest.raises(ValueError, match="does not follow"):
        engine.state.apply(engine.frames[0])
