"""`vtop sim --plot`: every figure, what is left out, and labels from outside."""

from __future__ import annotations

import functools
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from vtop.app import plots
from vtop.app.commands.sim import work as sim_work
from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.plots.latency import knees
from vtop.app.plots.pareto import Place, front
from vtop.app.plots.service import both, drifts, waiting_times
from vtop.app.plots.style import drawing
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.sim.compare import Curves, Outcome, run_cases
from vtop.engine.state.records import RequestRecord, Sample

ALL = ["latency.png", "latency.svg", "cdf.png", "timeline.png", "gantt.png", "service.png", "pareto.png"]
NASTY = r"$\frac{_x^2$ a_b$"


def compare(
    policies: str, rates: str, groups: str = "A=0.7,B=0.3", seeds: int = 1, requests: int = 30
) -> list[Outcome]:
    """A small comparison in a pool so small that requests are preempted."""
    arguments = SimArguments(
        policies=policies,
        rates=rates,
        groups=groups,
        seeds=seeds,
        requests=requests,
        priorities="0=0.7,5=0.3",
        prompt_tokens="16-64",
        output_tokens="8-64",
    )
    config = EngineConfig(num_gpu_blocks_override=16)
    return run_cases(sim_work.cases(arguments, config), curves=True)


@functools.cache
def two_rates() -> list[Outcome]:
    return compare("fcfs,fair", "2,20", seeds=2)


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n"), path
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_every_figure_is_drawn_and_the_same_every_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = two_rates()
    assert sum(o.measures["preemptions"] for o in outcomes) > 0  # otherwise less is drawn than should be
    first = plots.draw_all(tmp_path, outcomes)
    assert [path.name for path in first] == ALL
    assert capsys.readouterr().err == ""
    for path in first:
        assert path.stat().st_size > 15_000, path
        if path.suffix == ".png":
            width, height = size_of(path)
            assert width > 700 and height > 200, path
    before = first[1].read_bytes()
    with drawing():
        figure = plots.draw_one("latency", outcomes)
        assert not isinstance(figure, str)
        assert plots._save(figure, first[1]).read_bytes() == before


def test_one_rate_leaves_out_latency_and_one_group_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("timeline", "gantt"):  # always drawn; it takes time
        monkeypatch.delitem(plots.FIGURES, name)
    made = plots.draw_all(tmp_path, compare("fcfs", "4", groups="A=1", requests=10))
    assert made == list(tmp_path.iterdir()) == [tmp_path / "cdf.png"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0] == "not drawn: latency (one rate; give two or more with --rates)"
    assert lines[1].startswith("not drawn: service (one group")
    assert lines[2].startswith("not drawn: pareto (one run")


def test_labels_are_characters_not_formulas_and_legends_cover_nothing() -> None:
    outcomes = compare("fcfs", "2,8", groups=f"{NASTY}=0.4,_hidden=0.3,\x1b[31m\nred=0.3", requests=12)
    for outcome in outcomes:
        outcome.policy = NASTY
    with drawing():
        for name in plots.FIGURES:
            figure = plots.draw_one(name, outcomes)
            assert not isinstance(figure, str), name
            figure.draw_without_rendering()  # a formula would be parsed here, and fail
            legend = figure.legends[0].get_window_extent()
            for axis in figure.axes:
                assert not legend.overlaps(axis.get_window_extent()), (name, legend, axis.get_window_extent())
            texts = [text.get_text() for text in figure.legends[0].get_texts()]
            if name == "service":
                assert [text for text in texts if "hidden" in text] == ["group _hidden"]
                assert any(NASTY in text for text in texts)
                assert all(text.isprintable() for text in texts)
            elif name in ("latency", "cdf", "pareto"):
                assert NASTY in texts


def test_missing_matplotlib_and_bad_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plots.check_plots(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="folder cannot be made"):
        plots.check_plots(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)  # whatever the user who runs this may do
        with pytest.raises(BadValue, match="cannot be written to"):
            plots.check_plots(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadValue) as caught:
        plots.check_plots(tmp_path / "never")
    assert "pip install 'vtop-llm[plots]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "never").exists()


def record(number: int, arrival: float, admitted: float, ended: float, group: str = "A") -> RequestRecord:
    return RequestRecord(str(number), number, arrival, 8, group, 0, 1, first_scheduled=admitted, ended=ended)


def test_the_knee_is_where_the_backlog_grows() -> None:
    def outcome(policy: str, rate: float, times: Sequence[float]) -> Outcome:
        records = [record(i, i / rate, i / rate, i / rate + seconds) for i, seconds in enumerate(times)]
        return Outcome(policy, rate, 0, {}, 0.0, 1, Curves(records, [], {}, 8))

    steady, late = [0.1] * 100, [0.1 * i for i in range(100)]
    outcomes = [outcome("a", rate, steady if rate < 3 else late) for rate in (1.0, 2.0, 3.0, 4.0)]
    outcomes += [outcome("b", rate, steady) for rate in (1.0, 2.0, 3.0, 4.0)]
    assert knees(outcomes) == {"a": 3.0}


def test_measures_of_urgent_requests_and_of_groups() -> None:
    for outcome in two_rates():
        assert outcome.curves is not None
        records, found = outcome.curves.records, outcome.measures
        assert all(r.ttft is not None for r in records)
        urgent = [
            r.ttft or 0.0 for r in records if r.priority == 5
        ]  # high numbers go first unless the preset says else
        assert found["ttft_urgent_mean"] == pytest.approx(sum(urgent) / len(urgent))
        groups = {g: [r.ttft or 0.0 for r in records if r.group == g] for g in ("A", "B")}
        means = {group: sum(values) / len(values) for group, values in groups.items()}
        assert found["ttft_worst_group_mean"] == pytest.approx(max(means.values()))
        assert found["ttft_smallest_group_mean"] == pytest.approx(means[min(groups, key=lambda g: len(groups[g]))])
        assert found["service_bound"] == 2 * 2 * 16 * 16


def test_the_front_holds_those_nobody_beats() -> None:
    places = [Place("a", 1.0, 10, 1.0), Place("b", 1.0, 10, 2.0), Place("a", 2.0, 20, 3.0), Place("b", 2.0, 15, 4.0)]
    assert [(place.speed, place.ttft) for place in front(places)] == [(10, 1.0), (20, 3.0)]


def test_drift_counts_only_while_both_groups_wait() -> None:
    records = [record(0, 0, 4, 9, "A"), record(1, 1, 2, 9, "B"), record(2, 3, 5, 9, "B"), record(3, 8, 9, 9, "B")]
    waiting = waiting_times(records, 9.0)
    assert waiting == {"A": [(0, 4)], "B": [(1, 2), (3, 5), (8, 9)]}
    assert both(waiting["A"], waiting["B"]) == [(1, 2), (3, 4)]
    series = [Sample(t / 2, 0, 0, 0, 0, 0, 0, {"A": float(t * t), "B": float(t)}) for t in range(18)]
    # A - B is t² - t at time t/2: from time 1 (2) to before 2 (6), and from 3 (30) to before 4 (42)
    assert drifts(records, series) == [([1.0, 1.5], [0.0, 4.0]), ([3.0, 3.5], [0.0, 12.0])]


def test_large_runs_are_drawn_without_the_figure_of_single_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phases of requests are kept of small runs only; by default a run has 1,000 requests."""
    monkeypatch.setattr("vtop.engine.sim.compare.SPANS_OF", 5)
    outcomes = compare("fcfs,sjf", "2,20", requests=12)
    assert not any(o.curves and o.curves.spans for o in outcomes)
    made = [path.name for path in plots.draw_all(tmp_path, outcomes)]
    assert sorted(made) == sorted(name for name in ALL if name != "gantt.png")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("not drawn: gantt (no run of at most ")


def test_runs_without_a_request_that_ended_cost_a_line_per_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every request is refused: its prompt never fits the pool."""
    arguments = SimArguments(policies="fcfs,sjf", rates="2,20", requests=5, prompt_tokens="900", groups="A=0.5,B=0.5")
    outcomes = run_cases(sim_work.cases(arguments, EngineConfig(num_gpu_blocks_override=4)), curves=True)
    assert plots.draw_all(tmp_path, outcomes) == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == list(plots.FIGURES)


@pytest.mark.parametrize("name", plots.FIGURES)
def test_no_runs_are_no_figure(name: str) -> None:
    with drawing():
        assert isinstance(plots.draw_one(name, []), str)
