"""How often the screen is drawn, and what the charts keep of what was."""

from __future__ import annotations

import pytest

from vtop.app.live.history import HistoryWriter
from vtop.app.live.pump import Pacer
from vtop.app.live.view import History
from vtop.app.widgets.charts import time_axis
from vtop.engine.state.fold import EngineState, StepView
from vtop_support.stub_engine import StubEngine


def test_the_rate_halves_when_ticks_are_dear_and_recovers() -> None:
    pacer = Pacer(12)
    pacer.took(0.05)
    assert pacer.fps == 6
    for _ in range(10):
        pacer.took(10.0)
    assert pacer.fps == 2
    for _ in range(100):
        pacer.took(0.001)
    assert pacer.fps == 12
    pacer.took(0.02)
    assert pacer.fps == 12


def test_history_has_a_point_per_span_and_a_bound() -> None:
    state = EngineState(StubEngine(10).meta)
    history = History(capacity=20)
    writer = HistoryWriter(history, state, span=0.5)
    writer.update(state)
    assert history.kv_used == [0.0] and history.span == 0.5
    state.time = state.began = 1e6
    writer.update(state)
    assert len(history.running) == 20


def lived(*frames: tuple[float, float, int, int]) -> tuple[History, HistoryWriter, EngineState]:
    """A history of a state with frames of (began, ended, blocks used after it, output tokens in it)."""
    state = EngineState(StubEngine(10).meta)
    state.time = state.began = 0.0
    history = History()
    writer = HistoryWriter(history, state, span=0.5)
    for frame in frames:
        go(writer, state, *frame)
    return history, writer, state


def go(writer: HistoryWriter, state: EngineState, began: float, ended: float, used: int, tokens: int) -> None:
    """A step in which 2 ran, 1 waited and 8 blocks were held."""
    state.began, state.time, state.used, state.paused = began, ended, used, False
    state.step += 1
    state.last_step = StepView(state.step, sequences=1, used=8, running=2, waiting=1)
    state.totals.output_tokens += tokens
    writer.update(state)


def test_a_span_shows_what_was_in_it() -> None:
    # idle for a second, a step of a second that held 8 of 10 blocks and gave 6 tokens, idle for a second, another one
    history, _, _ = lived((1.0, 2.0, 3, 6), (3.0, 3.5, 0, 1))
    assert history.kv_used == pytest.approx([0, 0, 0, 0.8, 0.8, 0.3, 0.3, 0.8])
    assert history.running == pytest.approx([0, 0, 0, 2, 2, 0, 0, 2])
    assert history.waiting == pytest.approx([0, 0, 0, 1, 1, 0, 0, 1])
    assert history.tokens_per_second == pytest.approx([0, 0, 0, 6, 6, 0, 0, 2])


def test_a_pause_is_no_part_of_the_charts_and_slows_no_rate() -> None:
    history, writer, state = lived((0.0, 0.5, 3, 6))
    before = list(history.tokens_per_second)
    assert before[-1] == pytest.approx(12)
    state.paused = True
    writer.update(state)
    state.time = state.began = 20.0  # an option was set meanwhile
    writer.update(state)
    assert history.tokens_per_second == before
    go(writer, state, 40.0, 40.5, 3, 6)
    assert history.tokens_per_second == pytest.approx([*before, 12])


def test_a_cap_on_speed_slows_the_rate_evenly() -> None:
    history, writer, state = lived((0.0, 0.01, 3, 1))
    state.running["r"] = None  # type: ignore[assignment]
    writer.update(state)
    for second in (1, 2, 3):
        go(writer, state, second, second + 0.01, 3, 2)
    assert history.tokens_per_second[2:] == pytest.approx([2] * 5, rel=0.05)


def test_the_time_axis_ends_now() -> None:
    assert time_axis(40, 30) == "-30s              -15s               now"
    assert time_axis(12, 7.5) == "-7.5s    now" and time_axis(4, 30) == " now" and time_axis(2, 3) == "no"
