"""The small parts that know nothing of Textual: layout, actions, bursts, pacer, history, themes, stray output."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from vtop.app.actions import ACTIONS, BY_ID, PANELS, Situation, bindings, key_problem, key_sign, with_keys
from vtop.app.handlers import Handlers
from vtop.app.live.burst import MAX_BURST, Lengths, burst_prompts, draw_lengths
from vtop.app.live.history import HistoryWriter
from vtop.app.live.pump import Pacer
from vtop.app.live.view import History
from vtop.app.screens.layout import HIDE_ORDER, plan
from vtop.app.terminal.stray import StrayOutput
from vtop.app.terminal.themes import DEFAULT, load_themes, theme_of
from vtop.app.widgets.charts import time_axis
from vtop.engine.errors import BadValue
from vtop.engine.state.fold import EngineState, StepView
from vtop_support.stub_engine import StubEngine

# --- layout -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 99, 100, 120, 159, 160, 200, 400])
@pytest.mark.parametrize("height", [16, 20, 24, 30, 40, 60, 120])
def test_every_column_is_filled_exactly(width: int, height: int) -> None:
    layout = plan(width, height, PANELS, chrome=5)
    assert not layout.too_small and layout.columns
    for column in layout.columns:
        assert sum(rows for _, rows in column.panels) == height - 5
        assert all(rows >= 4 for _, rows in column.panels)
    assert layout.visible | set(layout.hidden) == set(PANELS)
    assert layout.visible.isdisjoint(layout.hidden)


def test_panels_leave_in_the_stated_order() -> None:
    seen: list[str] = []
    for height in range(60, 15, -1):
        seen += [name for name in plan(80, height, PANELS).hidden if name not in seen]
    assert seen == list(HIDE_ORDER[: len(seen)]) and len(seen) >= 3


def test_what_was_asked_for_stays() -> None:
    assert "charts" in plan(80, 24, PANELS).hidden
    layout = plan(80, 24, PANELS, asked=["charts"])
    assert "charts" in layout.visible


def test_too_small_and_maximised() -> None:
    assert plan(59, 40, PANELS).too_small and plan(80, 15, PANELS).too_small
    assert plan(80, 24, PANELS, only="events").visible == {"events"}
    assert plan(80, 24, []).columns == ()


# --- actions ----------------------------------------------------------------------------------------------------


def test_the_table_is_consistent() -> None:
    assert len(BY_ID) == len(ACTIONS)
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys)), "a key stands for two actions"
    for action in ACTIONS:
        assert action.title and action.keys, action.id
        assert all(not key_problem(key) for key in action.keys), action.id
        handler = action.id.replace("-", "_")
        assert action.id.startswith("panel-") or callable(getattr(Handlers, handler)), action.id
    assert len(bindings()) == len(ACTIONS)


def test_nothing_needs_ctrl_but_what_must() -> None:
    """Terminal multiplexers take Ctrl keys; only these use one (T: posting#95)."""
    assert {k for a in ACTIONS for k in a.keys if k.startswith("ctrl+")} == {"ctrl+p", "ctrl+c", "ctrl+z"}


def test_a_users_key_leaves_the_default_action() -> None:
    actions = {action.id: action for action in with_keys({"theme": "q,T"})}
    assert actions["theme"].keys == ("q", "T")
    assert actions["quit"].keys == ("f10",)


def test_signs_of_keys() -> None:
    signs = [key_sign(k) for k in ("question_mark", "full_stop", "ctrl+p", "f10", "x", "escape")]
    assert signs == ["?", ".", "^p", "F10", "x", "Esc"]


def test_nothing_touches_a_stopped_engine() -> None:
    now = Situation(loaded=True, failed=True, alive=3, selected=True, selected_alive=True)
    enabled = {a.id for a in ACTIONS if a.enabled(now)}
    assert not enabled & {
        "pause",
        "step",
        "run-until",
        "inject",
        "burst",
        "abort",
        "resize",
        "slower",
        "faster",
        "prompt",
    }
    assert {"quit", "help", "theme", "copy", "details"} <= enabled


# --- bursts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", list(Lengths))
def test_a_burst_follows_from_its_seed(lengths: Lengths) -> None:
    one = list(burst_prompts(lengths, 50, seed=3))
    assert one == list(burst_prompts(lengths, 50, seed=3)) != list(burst_prompts(lengths, 50, seed=4))
    assert len(one) == 50 and all(prompt.strip() for prompt in one)


def test_lengths_are_as_they_say() -> None:
    rng = random.Random(0)
    assert set(draw_lengths(Lengths.FIXED, 20, rng, 33)) == {33}
    assert all(1 <= n <= 80 for n in draw_lengths(Lengths.UNIFORM, 200, rng, 40))
    assert all(4 <= n <= 24 for n in draw_lengths(Lengths.SHORT, 200, rng))
    assert all(150 <= n <= 400 for n in draw_lengths(Lengths.LONG, 200, rng))
    drawn = draw_lengths(Lengths.LOGNORMAL, 4000, rng, 100)
    assert 90 < sum(drawn) / len(drawn) < 110 and max(drawn) > 400
    assert [len(p.split()) for p in burst_prompts(Lengths.FIXED, 3, 0, 300)] == [300] * 3


@pytest.mark.parametrize(("count", "mean"), [(0, 5), (MAX_BURST + 1, 5), (5, 0), (5, 10**9)])
def test_impossible_bursts_are_refused(count: int, mean: int) -> None:
    with pytest.raises(BadValue):
        draw_lengths(Lengths.FIXED, count, random.Random(0), mean)


# --- pacer and history ------------------------------------------------------------------------------------------


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


# --- themes -----------------------------------------------------------------------------------------------------


def test_our_themes_load() -> None:
    themes = load_themes()
    assert themes.problems == []
    assert next(iter(themes.themes)) == DEFAULT and {"vtop-light", "vtop-contrast", "vtop-colourblind"} <= set(
        themes.themes
    )
    assert themes.after(list(themes.themes)[-1]) == DEFAULT


def test_a_bad_theme_costs_a_line_only(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('primary = "#123456"\n')
    (tmp_path / "a.toml").write_text("primary = ")
    (tmp_path / "b.toml").write_text('primary = "#12345"')
    (tmp_path / "c.toml").write_text('primry = "#123456"')
    (tmp_path / "d.toml").write_text('primary = "#123456"\n[variables]\nborder = "no colour"')
    (tmp_path / "e.toml").write_bytes(b"\xff\xfe")
    themes = load_themes(tmp_path)
    assert "mine" in themes.themes and not {"a", "b", "c", "d", "e"} & set(themes.themes)
    assert len(themes.problems) == 5 and all("\n" not in p for p in themes.problems), themes.problems
    assert "did you mean primary?" in themes.problems[2]
    assert themes.chosen("mine") == "mine" and themes.chosen("vtop-drak") == DEFAULT
    assert "did you mean vtop-dark?" in themes.problems[-1]


def test_a_theme_needs_a_colour() -> None:
    with pytest.raises(BadValue, match="primary"):
        theme_of("x", {})


# --- stray output -----------------------------------------------------------------------------------------------


def test_stray_output_goes_to_the_log_and_streams_come_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """T012: prints, warnings, handlers made before, and raw writes."""
    path = tmp_path / "log"
    before = (sys.stdout, sys.stderr)
    with StrayOutput(path) as stray:
        assert stray.news() == ""
        print("one [/] line")
        os.write(2, b"two\nthree\n")
        news = stray.news()
        assert news.startswith("3 lines of output caught") and news.endswith(": three")
        assert stray.news() == ""
        stray.write("our own")
        assert stray.news() == ""
    assert (sys.stdout, sys.stderr) == before
    assert path.read_text() == "one [/] line\ntwo\nthree\nour own\n"
    print("back")
    os.write(2, b"back too\n")
    assert capfd.readouterr() == ("back\n", "back too\n")


def test_an_empty_log_is_removed(tmp_path: Path) -> None:
    with StrayOutput(tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()
