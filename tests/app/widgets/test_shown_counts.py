"""Sequences beside requests, fill, and use of the pool: what header, chart and summary make of them."""

from __future__ import annotations

import json

import pytest

from vtop.app.commands.headless import drive
from vtop.app.commands.run import Work
from vtop.app.live.history import HistoryWriter
from vtop.app.live.view import History, View
from vtop.app.options import AppConfig
from vtop.app.widgets.header_bar import HeaderBar
from vtop.engine.clock import ManualClock
from vtop.engine.executor import StepOutput, StepPlan
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState
from vtop_support.stub_engine import StubEngine
from vtop_support.widget_harness import lines_of, mounted


def engine_and_state() -> tuple[StubEngine, EngineState]:
    engine = StubEngine(64)
    state = EngineState(engine.meta)
    engine.on_frame(state.apply)
    return engine, state


async def test_header_counts_sequences_where_they_differ_and_tells_fill() -> None:
    engine, state = engine_and_state()
    engine.add_request("one", "word " * 8, SamplingParams(max_tokens=9))
    engine.step()
    header = HeaderBar()
    async with mounted(header, View(state=state), 160) as pilot:
        assert "running 1  " in lines_of(header)[1] and "fill 50%" in lines_of(header)[1]  # 8 of 16 slots
        engine.add_request("three", "word " * 16, SamplingParams(max_tokens=9, n=3, temperature=1.0))
        engine.step()
        header.show(view := View(state=state, version=1))
        await pilot.pause()
        assert view.state is not None
        # 9 slots of one, 16 of a prompt that three share
        assert "running 2 (4 seqs)" in lines_of(header)[1] and f"fill {100 * 25 / 32:.0f}%" in lines_of(header)[1]


def test_the_chart_shows_what_a_step_held() -> None:
    engine, state = engine_and_state()
    clock, execute = engine.clock, engine.executor.execute
    assert isinstance(clock, ManualClock)

    def takes_time(plan: StepPlan) -> StepOutput:
        clock.advance(0.02)
        return execute(plan)

    engine.executor.execute = takes_time  # type: ignore[method-assign]
    history = History()
    writer = HistoryWriter(history, state, span=0.02)
    engine.on_frame(lambda frame: writer.update(state))
    engine.add_request("a", "word " * 32, SamplingParams(max_tokens=1))
    engine.step()
    assert state.used == 0 and history.kv_used[-1] == 2 / 64


def test_the_summary_tells_sequences_and_fill(capsys: pytest.CaptureFixture[str]) -> None:
    drive(StubEngine(64), AppConfig(max_tokens=1), Work(["word " * 12]), as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert (data["sequences"], data["peak_running"], data["peak_sequences"]) == (1, 1, 1)
    assert data["fill"] == 12 / 16 and data["peak_kv"] == 1 / 64
    engine = StubEngine(64)
    engine.add_request("several", "word " * 12, SamplingParams(max_tokens=1, n=3, temperature=1.0))
    drive(engine, AppConfig(max_tokens=1), Work(["word " * 12]), as_json=False)
    out = capsys.readouterr().out
    assert "2 accepted (4 sequences)" in out and "slots of used blocks" in out
