"""Loading a scenario into a running engine: the picker, the form, the command, and what is told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual.widgets import OptionList

from vtop.app.live.engine import LiveFeed
from vtop.app.live.playing import Look, Playing, differences, differences_text, options_to_set
from vtop.app.main import VtopApp
from vtop.app.screens.form import FormScreen
from vtop.app.screens.loader import BURST, FILE, MARK, LoadPicker, ScenarioForm
from vtop.app.screens.look_bar import LookBar
from vtop.engine import commands as cmd
from vtop.engine.config import EngineConfig
from vtop.engine.scenarios.scenario import find_scenario, gallery
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.workload.jobs import Workload
from vtop_support.app_driver import running_app, screen_lines, screen_text, settle, until
from vtop_support.fake_feed import FakeFeed

OWN = """
title = "[red]mine[/red]"
look = "watch [b]this[/b]"
[engine]
num_gpu_blocks_override = 77
[[jobs]]
id = "j"
count = 3
every = 0.1
prompt = 20
output = 4
"""


async def picked(pilot: object, option: str) -> None:
    """Open the picker and choose."""
    await pilot.press("I")  # type: ignore[attr-defined]
    await pilot.pause()  # type: ignore[attr-defined]
    screen = pilot.app.screen  # type: ignore[attr-defined]
    assert isinstance(screen, LoadPicker)
    listed = screen.query_one(OptionList)
    listed.highlighted = listed.get_option_index(option)
    await pilot.press("enter")  # type: ignore[attr-defined]
    await pilot.pause()  # type: ignore[attr-defined]


async def test_the_picker_names_everything() -> None:
    async with running_app(size=(120, 40)) as (app, pilot, _):
        await pilot.press("I")
        await pilot.pause()
        listed = app.screen.query_one(OptionList)
        assert [o.id for o in listed.options] == [BURST, FILE, *(MARK + name for name in gallery())]
        assert len(gallery()) == 13
        assert "Head-of-line blocking" in screen_text(app) and "burst..." in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.overview


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (200, 60)])
async def test_picker_and_form_fit(size: tuple[int, int]) -> None:
    async with running_app(size=size) as (app, pilot, _):
        await pilot.press("I")
        await pilot.pause()
        assert "Enter: load" in screen_text(app)
        await pilot.press("escape")
        await picked(pilot, MARK + "swapstorm")
        assert isinstance(app.screen, ScenarioForm)
        assert "Load  Enter" in screen_text(app)


async def test_a_scenario_is_sent_with_its_options_or_without() -> None:
    async with running_app(FakeFeed()) as (app, pilot, feed):
        await picked(pilot, MARK + "hol")
        assert "expects blocks 128 (here 64)" in " ".join(screen_text(app).split())
        await pilot.press("enter")
        await pilot.pause()
        command = feed.sent[-1]
        assert isinstance(command, cmd.LoadWorkload)
        assert command.workload.name == "hol/fcfs" and command.num_blocks == 128 and command.stretch is None
        await until(pilot, lambda: "hol:fcfs: 11 requests to come" in screen_text(app))
        assert "at 1.5 s 9 wait, the head" in screen_text(app)  # the line to look at, below the header
        assert "differs: blocks 128 (here 64), " in screen_text(app)
        await picked(pilot, MARK + "hol")
        await pilot.press("right", "down", "right", "enter")
        await pilot.pause()
        command = feed.sent[-1]
        assert isinstance(command, cmd.LoadWorkload) and command.num_blocks is None and command.options == ()
        assert command.workload.name == f"hol/{find_scenario('hol').variants[1].name}"


async def test_a_file_of_ones_own_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace("prompt =", "promt ="))
    async with running_app(size=(160, 40)) as (app, pilot, feed):
        await picked(pilot, FILE)
        form = app.screen
        assert isinstance(form, FormScreen)
        form._inputs["path"].value = str(path)  # type: ignore[union-attr, misc]
        await pilot.press("enter")
        await pilot.pause()
        said = " ".join(screen_text(app).split())
        assert "jobs[0].promt = 20: mine.toml: no such key; did you mean prompt?" in said
        path.write_text(OWN)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ScenarioForm)
        assert "[red]mine[/red]" in screen_text(app)  # anybody's text, never markup
        await pilot.press("enter")
        await until(pilot, lambda: "watch [b]this[/b]" in screen_lines(app)[2] + screen_lines(app)[3])
        command = feed.sent[-1]
        assert isinstance(command, cmd.LoadWorkload) and len(command.workload.jobs) == 3


def test_differences_are_told_and_set() -> None:
    thrash = find_scenario("thrash")
    card = find_card("rtx4090")
    config = EngineConfig(num_gpu_blocks_override=300)
    state = build(Simulation(Workload("none", ()), config, card)).watch()
    found = differences(thrash.config(thrash.variants[0]), state)
    text = differences_text(found)
    assert "blocks 128 (here 300)" in text and "admission first-chunk (here reserve-full-prompt)" in text
    assert "cannot be set while it runs: " in text and "preset vllm-v1 (here sensible)" in text
    blocks, options = options_to_set(found)
    names = {option.name: option.value for option in options}
    assert blocks == 128 and names["admission"] == "first-chunk" and names["max_num_batched_tokens"] == 256
    assert "preset" not in names and "enable_prefix_caching" not in names
    assert "blocks" not in differences_text(found, setting=True)
    assert differences(config, state) == []


@contextlib.asynccontextmanager
async def simulated() -> AsyncIterator[tuple[VtopApp, object, LiveFeed]]:
    """The app on an idle simulation, in its thread."""
    from vtop.app.commands.sim.play import make_engine

    simulation = Simulation(Workload("none", ()), EngineConfig(num_gpu_blocks_override=300), find_card("rtx4090"))
    feed = LiveFeed.of_engine(make_engine(simulation, 0.0))
    app = VtopApp(feed, playing=Playing(time_scale=0.0))
    async with app.run_test(size=(140, 40), notifications=True) as pilot:
        try:
            await until(pilot, lambda: app.pump.live is not None)
            yield app, pilot, feed
        finally:
            feed.close(2.0)


async def test_a_scenario_runs_in_the_engine_that_is_there_and_again_under_other_names() -> None:
    async with simulated() as (app, pilot, _):
        for _ in range(2):
            await picked(pilot, MARK + "thrash")
            await pilot.press("enter")  # type: ignore[attr-defined]
            await pilot.pause(0.1)  # type: ignore[attr-defined]
        state = app.pump.live
        assert state is not None
        await until(pilot, lambda: sum(state.totals.finished.values()) == 6, 30.0)  # type: ignore[arg-type]
        assert {r.id for r in state.finished} == {"d0", "d1", "big", "d0.2", "d1.2", "big.2"}
        assert state.num_blocks == 128 and state.options["admission"] == "first-chunk"
        assert state.totals.preemptions > 0
        await settle(pilot, app)  # type: ignore[arg-type]
        line = screen_lines(app)[2]
        said = "differs: enable_prefix_caching off (here on), preset vllm-v1 (here sensible)"
        assert said in line and "blocks" not in line
        assert "IDLE" in screen_text(app) and "virtual ×max" in screen_text(app)


async def test_the_line_hides_on_a_key_and_a_click_and_in_a_small_window() -> None:
    feed = FakeFeed()
    look = Look("a:b", "t" * 200, "l\x1b[31m" * 100)
    async with running_app(feed, size=(80, 24), playing=Playing(look)) as (app, pilot, _):
        await until(pilot, lambda: "KV BLOCKS" in screen_text(app))
        assert "a:b" in screen_lines(app)[2] and "…" in screen_lines(app)[2] and "␛" in screen_lines(app)[2]
        await pilot.press("L")
        await pilot.pause()
        assert "a:b" not in screen_lines(app)[2]
        await pilot.press("L")
        await until(pilot, lambda: "a:b" in screen_lines(app)[2])
        await pilot.click(LookBar)
        await pilot.pause()
        assert "a:b" not in screen_lines(app)[2]
        await pilot.press("L")
        await pilot.resize_terminal(70, 18)
        await settle(pilot, app)
        assert not any("a:b" in line for line in screen_lines(app))
        await pilot.resize_terminal(120, 40)
        await settle(pilot, app)
        assert "a:b" in screen_lines(app)[2] and "l␛" in screen_lines(app)[3]


async def test_without_a_scenario_its_key_says_nothing_to_look_at() -> None:
    async with running_app() as (app, pilot, _):
        await pilot.press("L")
        await pilot.pause()
        assert app.overview.look.look is None and not app.overview.look.display


async def test_the_line_says_what_of_a_scenario_is_not_in_force() -> None:
    thrash = find_scenario("thrash")
    look = Look("thrash:x", "title", "watch it", thrash.config(thrash.variants[0]))
    feed = FakeFeed()
    async with running_app(feed, size=(160, 40), playing=Playing(look)) as (app, pilot, _):
        await until(pilot, lambda: "KV BLOCKS" in screen_text(app))
        await settle(pilot, app)
        said = screen_lines(app)[2]
        assert "differs: blocks 128 (here 64), max_num_batched_tokens 256 (here 128)" in said
        feed.send(cmd.ResizePool(128))
        feed.send(cmd.SetOption("max_num_batched_tokens", 256))
        await settle(pilot, app)
        said = " ".join(screen_lines(app)[2:4])
        assert "blocks" not in said and "max_num_batched_tokens" not in said and "watch it" in said
        feed.send(cmd.ResizePool(32))
        await settle(pilot, app)
        assert "differs: blocks 128 (here 32)" in screen_lines(app)[2]
    async with running_app(FakeFeed(), size=(80, 24), playing=Playing(look)) as (app, pilot, _):
        await until(pilot, lambda: "KV BLOCKS" in screen_text(app))
        await settle(pilot, app)
        assert "differs: blocks 128 (here 64)" in screen_lines(app)[2]


def test_only_what_decides_is_compared() -> None:
    """How fast the machine is and where it runs is no matter of the scenario."""
    state = FakeFeed().engine.watch()
    plain = EngineConfig(block_size=16, num_gpu_blocks_override=64, max_num_seqs=16, max_num_batched_tokens=128)
    for name, value in (("compile", True), ("enforce_eager", True), ("cpu_pack_weights", False)):
        assert name in state.options
        state.options[name] = value
    assert {d.name for d in differences(plain, state)} == {"enable_prefix_caching"}
