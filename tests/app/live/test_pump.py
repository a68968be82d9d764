"""Folding Frames into the view, and standing still."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from vtop.app.live.pump import KEPT_WHILE_FROZEN, Pump
from vtop.app.live.view import View
from vtop.engine import events as ev
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine


def plain(value: Any) -> Any:
    """A value as lists, dictionaries and numbers, to be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {key: plain(held) for key, held in value.items()}
    if isinstance(value, list) or type(value).__name__ == "deque":
        return [plain(held) for held in value]
    return value


def busy() -> tuple[FakeFeed, Pump, list[ev.Frame]]:
    feed = FakeFeed(StubEngine(30))
    for number in range(10):
        feed.engine.add_request(f"r{number}", "word " * (20 + 5 * number), SamplingParams(max_tokens=40))
    log: list[ev.Frame] = []
    pump = Pump(feed, View(), log.append)
    feed.run(12)
    pump.pull()
    return feed, pump, log


def test_a_frozen_copy_stands_still_in_every_part() -> None:
    feed, pump, _ = busy()
    state = pump.live
    assert state is not None
    still = state.copy()
    before = copy.deepcopy(plain(vars(still)))
    assert before == plain(vars(state))
    feed.run(60)
    feed.engine.abort_request("r9")
    feed.run(1)
    pump.pull()
    assert plain(vars(still)) == before != plain(vars(state))
    assert isinstance(still, EngineState) and still.waiting_order()[0] is still.requests[still.waiting_order()[0].id]


def test_charts_and_rate_stand_still_with_the_view() -> None:
    feed, pump, _ = busy()
    pump.freeze()
    history, rate = plain(pump.view.history), pump.view.tokens_per_second
    feed.run(60)
    pump.pull()
    assert plain(pump.view.history) == history and pump.view.tokens_per_second == rate
    pump.thaw()
    assert plain(pump.view.history) != history


def test_the_log_catches_up_after_a_freeze() -> None:
    feed, pump, log = busy()
    seen = len(log)
    pump.freeze()
    feed.run(50)
    version = pump.view.version
    while feed.pending:
        pump.pull()
    assert len(log) == seen and pump.view.version == version and pump.view.state is not pump.live
    pump.thaw()
    assert len(log) == seen + 50 and pump.view.state is pump.live and pump.view.version > version


def test_a_long_freeze_keeps_a_bounded_log() -> None:
    feed, pump, log = busy()
    pump.freeze()
    for _ in range(KEPT_WHILE_FROZEN + 500):
        feed.engine.note(ev.Note("info", "x"))
        feed.engine.flush()
    while feed.pending:
        pump.pull()
    seen = len(log)
    pump.thaw()
    assert len(log) == seen + KEPT_WHILE_FROZEN


def test_a_pull_ends_in_time_and_leaves_the_rest() -> None:
    feed = FakeFeed(StubEngine(30))
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.02
        return now

    pump = Pump(feed, View(), lambda frame: None, budget=0.03, monotonic=clock)
    for _ in range(400):
        feed.engine.note(ev.Note("info", "x"))
        feed.engine.flush()
    pump.pull()
    assert 0 < feed.pending < 400


def test_nothing_new_changes_nothing() -> None:
    _, pump, _ = busy()
    version = pump.view.version
    assert not pump.pull() and pump.view.version == version
