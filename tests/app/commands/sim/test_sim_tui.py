"""A simulation in the app: virtual time, its pace, prompts as made-up tokens, arrivals that are waited for."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from vtop.app.cli import main
from vtop.app.commands.sim.play import make_engine
from vtop.app.live.engine import LiveFeed
from vtop.app.live.playing import Playing
from vtop.app.main import VtopApp
from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.executor import StepPlan
from vtop.engine.request import SamplingParams
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.simulator import Simulation
from vtop.engine.state.fold import EngineState
from vtop.engine.thread import EngineThread, ThreadState
from vtop.engine.workload.engine import WorkloadEngine
from vtop.engine.workload.jobs import Job, MadeUpTokenizer, Workload
from vtop.engine.workload.speed import decode_seconds
from vtop_support.app_driver import screen_lines, screen_text, until
from vtop_support.pty_program import PtyProgram
from vtop_support.pty_screen import PtyScreen
from vtop_support.stub import StubExecutor

CARD = find_card("rtx4090")


def simulation(*jobs: Job, **options: object) -> Simulation:
    return Simulation(Workload("w", jobs), EngineConfig(num_gpu_blocks_override=64, **options), CARD)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def watched(
    what: Simulation, scale: float, size: tuple[int, int] = (140, 40)
) -> AsyncIterator[tuple[VtopApp, Pilot[None]]]:
    feed = LiveFeed.of_engine(make_engine(what, scale))
    app = VtopApp(feed, playing=Playing(time_scale=scale))
    async with app.run_test(size=size, notifications=True) as pilot:
        try:
            await until(pilot, lambda: app.pump.live is not None)
            yield app, pilot
        finally:
            feed.close(2.0)


class Watched:
    """An engine in its thread, and the fold of what it told."""

    def __init__(self, engine: WorkloadEngine, paused: bool = False) -> None:
        self.thread = EngineThread(lambda progress: engine, paused=paused)
        self.subscription = self.thread.subscribe("test")
        self.thread.start()
        assert self.thread.wait_ready(5.0)
        self.state = EngineState(engine.meta)
        self.frames: list[ev.Frame] = []

    def pull(self) -> EngineState:
        for frame in self.subscription.drain():
            self.frames.append(frame)
            self.state.apply(frame)
        return self.state

    def until(self, what: Callable[[EngineState], object], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not what(self.pull()):
            assert time.monotonic() < end, f"not in {seconds} s: {self.thread.status}"
            time.sleep(0.005)


@contextlib.contextmanager
def threaded(engine: WorkloadEngine, paused: bool = False) -> Iterator[Watched]:
    watched = Watched(engine, paused)
    try:
        yield watched
    finally:
        assert watched.thread.shutdown(3.0)


async def test_it_ends_idle_and_takes_a_prompt_as_made_up_tokens() -> None:
    async with watched(simulation(Job("a", 0.0, 40, 5)), 0.0) as (app, pilot):
        state = app.pump.live
        assert state is not None
        await until(pilot, lambda: state.totals.finished.get("length") == 1)
        await until(pilot, lambda: "IDLE" in screen_text(app) and "made-up" in screen_lines(app)[-2])
        assert "virtual ×max" in screen_text(app)
        await pilot.press("p", *"hello", "space", *"you", "enter")
        await until(pilot, lambda: state.totals.finished.get("length") == 2)
        request = state.find("r1")
        assert request is not None and request.prompt == "hello you" and request.prompt_tokens == 3
        assert app.troubles.failure == ""


async def test_virtual_time_keeps_its_pace_and_is_shown() -> None:
    jobs = [Job("a", 0.0, 16, 200)]
    began = time.monotonic()
    async with watched(simulation(*jobs), 2.0) as (app, pilot):
        state = app.pump.live
        assert state is not None
        await until(pilot, lambda: state.time > 0.8)
        assert state.time <= 2 * (time.monotonic() - began) + 0.1  # never ahead of its pace by more than a step
        await until(pilot, lambda: f"t {state.time:.1f} s virtual ×2" in screen_text(app))
        await pilot.press("space")
        await until(pilot, lambda: state.paused)
        at = state.time
        await pilot.pause(0.3)
        app.pump.pull()
        assert state.time == at
        steps = state.step
        await pilot.press("full_stop")
        await until(pilot, lambda: state.step == steps + 1 and state.paused)


def test_an_arrival_far_ahead_is_waited_for_and_a_prompt_is_not() -> None:
    engine = make_engine(simulation(Job("late", 300.0, 16, 4)), 1.0)
    with threaded(engine) as run:
        run.until(lambda _: run.thread.status.state is ThreadState.RUNNING)
        assert run.pull().step == 0 and engine.has_unfinished_requests()
        time.sleep(0.3)
        run.thread.send(cmd.AddRequest("now", "some text", SamplingParams(max_tokens=3)))
        run.until(lambda s: s.totals.finished["length"] == 1)
        request = run.state.find("now")
        assert request is not None and 0.2 < request.arrival < 30.0  # it came in between, not at 300 s
        assert engine.has_unfinished_requests() and len(engine.arrivals) == 1


def test_a_step_by_hand_goes_to_the_next_arrival_and_a_pause_stops_the_clock() -> None:
    engine = make_engine(simulation(Job("late", 300.0, 16, 4)), 1.0)
    with threaded(engine, paused=True) as run:
        run.until(lambda s: s.paused)
        run.thread.send(cmd.Step())
        run.until(lambda s: s.step >= 1 and s.paused)
        assert run.state.time >= 300.0 and set(run.state.requests) == {"late"}
        run.thread.send(cmd.Resume())  # and the pace goes on from here
        run.until(lambda s: s.totals.finished["length"] == 1)


def test_run_until_and_options_work_as_live() -> None:
    jobs = [Job(f"j{n}", 0.0, 100, 40) for n in range(20)]
    engine = make_engine(simulation(*jobs), 0.0)
    with threaded(engine, paused=True) as run:
        run.thread.send(cmd.RunUntil(frozenset({"finished"})))
        run.until(lambda s: s.paused and s.totals.finished["length"] > 0)
        assert run.state.pause_reason == "finished" and run.state.requests
        run.thread.send(cmd.SetOption("max_num_seqs", 2))
        run.thread.send(cmd.ResizePool(40))
        run.thread.send(cmd.Resume())
        run.until(lambda s: s.totals.finished["length"] == 20)
        assert run.state.options["max_num_seqs"] == 2 and run.state.num_blocks == 40


def test_a_run_with_an_end_pauses_there_and_can_go_on() -> None:
    jobs = tuple(Job(f"j{n}", 0.2 * n, 30, 20) for n in range(20))
    what = Simulation(Workload("mine/base", jobs), EngineConfig(num_gpu_blocks_override=64), CARD, until=1.0)
    with threaded(make_engine(what, 0.0)) as run:
        run.until(lambda s: s.paused)
        assert 1.0 <= run.state.time < 1.2 and run.state.pause_reason == "end" and run.state.requests
        told = [e.text for f in run.frames for e in f.events if isinstance(e, ev.Paused)]
        assert told == ["mine/base ends here, 1.0 s after its start; resume to go on"]
        run.thread.send(cmd.Resume())
        run.until(lambda s: s.totals.finished["length"] == 20)
        assert not run.state.paused
    with threaded(make_engine(replace(what, until=6.0), 0.0)) as run:  # all is done before
        run.until(lambda s: s.totals.finished["length"] == 20)
        run.thread.send(cmd.AddRequest("long", "a b", SamplingParams(max_tokens=600)))
        run.until(lambda s: s.totals.finished["length"] == 21)
        assert run.state.time > 7.0 and not any(isinstance(e, ev.Paused) for f in run.frames for e in f.events)


def test_the_end_of_a_loaded_workload_is_stretched_too() -> None:
    with threaded(make_engine(simulation(Job("before", 0.0, 16, 200)), 0.0), paused=True) as run:
        jobs = tuple(Job(f"j{n}", 0.1 * n, 30, 20) for n in range(20))
        run.thread.send(cmd.LoadWorkload(Workload("w", jobs), 2.0, until=1.5))
        run.thread.send(cmd.Resume())
        run.until(lambda s: s.pause_reason == "end")
        assert 3.0 <= run.state.time < 3.2 and run.state.requests


def test_nobody_can_go_on_is_no_end_of_the_program() -> None:
    engine = make_engine(simulation(Job("a", 0.0, 16, 4)), 0.0)
    engine._scheduler.schedule = lambda now: StepPlan()  # type: ignore[method-assign]
    with threaded(engine) as run:
        run.until(lambda s: s.step >= 2)
        assert run.thread.status.state is ThreadState.RUNNING
        engine.abort_request("a")


def real_engine(*jobs: Job) -> WorkloadEngine:
    """On the machine's clock, with an executor that computes nothing."""
    config = EngineConfig(num_gpu_blocks_override=64, block_size=4)
    return WorkloadEngine(StubExecutor(64, 4), config, Workload("w", jobs) if jobs else None)


def test_on_a_real_clock_arrivals_come_in_time_and_pauses_hold_them() -> None:
    with threaded(real_engine(Job("a", 0.0, 8, 2), Job("b", 0.4, 8, 2))) as run:
        run.until(lambda s: s.totals.finished["length"] == 1)
        run.thread.send(cmd.Pause())
        run.until(lambda s: s.paused)
        time.sleep(0.5)
        assert run.pull().totals.arrived == 1
        run.thread.send(cmd.Resume())
        run.until(lambda s: s.totals.finished["length"] == 2)
        arrivals = {r.id: r.arrival for r in run.state.finished}
        assert arrivals["b"] - arrivals["a"] == pytest.approx(0.4)  # engine time stood still
        came = [f.unix_time for f in run.frames if any(isinstance(e, ev.Arrived) for e in f.events)]
        assert came[0] is not None and came[1] is not None and came[1] - came[0] > 0.8


def test_a_workload_is_stretched_to_the_machine_and_refusals_are_told() -> None:
    with threaded(real_engine()) as run:
        jobs = (Job("a", 0.0, 8, 2, timeout=1000.0), Job("big", 0.1, 5000, 2), Job("b", 30.0, 8, 2))
        options = (cmd.SetOption("aging_rate", 1.0), cmd.SetOption("block_size", 8))
        run.thread.send(cmd.LoadWorkload(Workload("mine", jobs), None, 50, options))
        run.until(lambda s: s.totals.finished["length"] == 2)
        assert [r.id for r in run.state.refused] == ["big"] and run.state.num_blocks == 50
        notes = [e.text for f in run.frames for e in f.events if isinstance(e, ev.Note)]
        assert "mine: 3 requests over" in notes[0] and "a decode step takes" in notes[0]
        assert any("block_size" in text and "cannot be changed" in text for text in notes)
        assert run.state.options["aging_rate"] > 10  # a stub is much faster than the card


def test_the_speed_of_a_step_is_measured_in_small_pools_too() -> None:
    for blocks, size in ((1, 1), (1, 4), (3, 4), (64, 16)):
        assert 0 < decode_seconds(StubExecutor(blocks, size), size, 2048) < 1.0


def test_equal_beginnings_are_equal_tokens() -> None:
    one, two = (MadeUpTokenizer()(text).input_ids for text in ("the cat sat", "the cat ran"))
    assert one[:2] == two[:2] and one != two and all(3 <= token < 32_000 for token in one + two)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "trash"], "did you mean thrash?"),
        (["--scenario", "thrash:no"], "thrash.toml has partial, reserved"),
        (["--scenario", "thrash", "--headless"], "vtop sim --scenario"),
        (["--scenario", "thrash", "--time-scale", "-1"], "--time-scale = -1.0"),
        (["--scenario", "thrash", "--on-engine", "--time-scale", "2"], "leave out --on-engine"),
        (["--time-scale", "2"], "it goes with --scenario"),
        (["--scenario", "thrash", "--victim", "nobody"], "--victim = 'nobody'"),
        (["sim", "--tui", "--rates", "2,4"], "it shows one run, not 2"),
        (["sim", "--tui", "--json"], "it goes without --tui"),
        (["sim", "--tui", "--card", "h100", "--model-shape", "llama-70b"], "leaves no room for KV"),
        (["sim", "--tui", "--scenario", "thrash:no"], "thrash.toml has partial"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_a_mistake_in_ones_own_file_names_file_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[jobs]]\nid = "a"\nprompt = 5\noutputs = 5\n')
    assert main(["--scenario", str(path)]) == 2
    assert "jobs[0].outputs = 5: mine.toml: no such key; did you mean output?" in capsys.readouterr().err


def test_a_simulation_imports_no_torch() -> None:
    code = "import sys, vtop.app.commands.sim.play, vtop.app.commands.sim.play, vtop.app.run_app, vtop.app.main; "
    code += "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        (("--scenario", "thrash", "--time-scale", "0"), "thrash:partial"),
        (
            (*["sim", "--tui", "--card", "h100", "--model-shape", "llama-70b", "--num-gpu-blocks-override", "50000"],
             *["--max-num-seqs", "1000", "--rate", "40", "--time-scale", "0"]),
            "llama-70b",
        ),
    ],
)  # fmt: skip
def test_in_a_terminal(options: tuple[str, ...], shows: str, tmp_path: Path) -> None:
    vtop = str(Path(sys.executable).with_name("vtop"))
    home = {"XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with PtyProgram([vtop, *options], columns=120, rows=40, environment=home) as program:
        screen = PtyScreen(program, 120, 40)
        screen.until(lambda text: "KV BLOCKS" in text and shows in text and "virtual ×max" in text)
        screen.until(lambda text: "step 0 " not in text)
        program.press("I")
        screen.until(lambda text: "Load requests" in text and "Rescue by aging" in text)
        program.press("\x03")
        assert program.wait() == 130
        assert program.unrestored() == []


@pytest.mark.parametrize("options", [
    ("--scenario",), pytest.param(("sim", "--tui", "--scenario"), marks=pytest.mark.slow),
    pytest.param(("--on-engine", "--scenario"), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_scenario_ends_at_its_until(options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "until = 0.5\n[engine]\nnum_gpu_blocks_override = 64\n"
        '[[jobs]]\nid = "j"\ncount = 100\nevery = 0.05\nprompt = 30\noutput = 20\n',
        encoding="utf-8",
    )
    vtop = str(Path(sys.executable).with_name("vtop"))
    home = {"XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with PtyProgram([vtop, *options, str(file)], columns=120, rows=40, environment=home) as program:
        screen = PtyScreen(program, 120, 40)
        screen.until(lambda text: "PAUSED (end)" in text and "mine/base ends here, " in text)
        program.press(" ")
        screen.until(lambda text: "PAUSED" not in text)
        program.press("\x03")
        assert program.wait() == 130
