"""The app on a feed: keys, prompt, panels, sizes."""

from __future__ import annotations

import pytest

from vtop.app.actions import ACTIONS, PANELS, key_sign
from vtop.app.main import VtopApp
from vtop.app.options import AppConfig
from vtop.app.screens.dialogs import ConfirmScreen
from vtop.app.screens.form import FormScreen
from vtop.app.screens.help import HelpScreen
from vtop.app.screens.request import RequestScreen
from vtop.engine import commands as cmd
from vtop.engine import events as ev
from vtop.engine.request import SamplingParams
from vtop_support.app_driver import running_app, screen_lines, screen_text, settle, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine

PARAMS = SamplingParams(max_tokens=30)


def busy_feed(requests: int = 20, steps: int = 8, blocks: int = 64) -> FakeFeed:
    feed = FakeFeed(StubEngine(blocks))
    for number in range(1, requests + 1):
        feed.engine.add_request(f"r{number}", "word " * (5 + 7 * number), PARAMS)
    feed.run(steps)
    return feed


def on_overview(app: VtopApp) -> bool:
    return app.screen is app.overview


async def test_loading_then_panels() -> None:
    feed = FakeFeed(loaded=False)
    async with running_app(feed) as (app, pilot, _):
        await until(pilot, lambda: "weights, 3 of 10" in screen_text(app))
        assert "KV BLOCKS" not in screen_text(app)
        feed.load()
        await until(pilot, lambda: "KV BLOCKS" in screen_text(app))
        assert "loading" not in screen_text(app)


async def test_typing_a_prompt_and_enter_injects_it() -> None:
    async with running_app() as (app, pilot, feed):
        await pilot.press("p")
        await pilot.press(*"hi", "space", *"there", "enter")
        assert feed.sent == [cmd.AddRequest("r1", "hi there", app.injector.params)]
        assert app.overview.prompt.input.value == ""
        await pilot.press("escape")
        await settle(pilot, app)
        assert "r1" in screen_text(app)


async def test_letters_in_the_prompt_are_only_letters() -> None:
    """T023: no shortcut fires while typing."""
    text = "queue spa p q ? 123456 xXiItTmMzFyShr.>+-"
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press("p")
        await pilot.press(*("space" if c == " " else c for c in text))
        assert app.overview.prompt.input.value == text
        assert feed.sent == [] and app.screen is app.overview and not app._leaving
        await pilot.press("f1")  # documented function keys work in the field
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await pilot.press("escape")
        assert not app.overview.typing
        await pilot.press("space")
        assert feed.sent == [cmd.Pause()]


async def test_a_footer_click_acts_even_while_typing() -> None:
    async with running_app(busy_feed()) as (app, pilot, _):
        await pilot.press("p")
        await settle(pilot, app)
        line = screen_lines(app)[-1]
        await pilot.click("#keys", offset=(line.index("F10"), 0))
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("space", cmd.Pause()),
        ("full_stop", cmd.Step()),
        ("greater_than_sign", cmd.RunUntil(frozenset({"preempted", "swapped-out", "finished", "refused"}))),
        ("minus", cmd.SetSpeed(16.0)),
    ],
)
async def test_engine_keys(key: str, command: cmd.Command) -> None:
    async with running_app(busy_feed()) as (_, pilot, feed):
        await pilot.press(key)
        assert feed.sent == [command]


async def test_space_resumes_and_the_footer_says_so() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press("space")
        await settle(pilot, app)
        assert "PAUSED" in screen_text(app) and "space resume" in screen_lines(app)[-1]
        await pilot.press("space")
        await settle(pilot, app)
        assert feed.sent == [cmd.Pause(), cmd.Resume()]
        assert "RUNNING" in screen_text(app)


async def test_speed_halves_doubles_and_is_lifted() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press("minus", "minus", *["plus"] * 8)
        caps = [command.steps_per_second for command in feed.sent if isinstance(command, cmd.SetSpeed)]
        assert caps == [16, 8, 16, 32, 64, 128, 256, 512, 1024, None]
        await pilot.press("plus")
        assert len(feed.sent) == len(caps)
        await pilot.press("minus")
        await settle(pilot, app)
        assert "cap 16/s" in screen_text(app)


async def test_quit_asks_while_requests_are_alive_only() -> None:
    async with running_app() as (app, pilot, _):
        await pilot.press("q")
        assert app._leaving and app.return_code == 0
    async with running_app(busy_feed()) as (app, pilot, _):
        await pilot.press("q")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen) and not app._leaving
        await pilot.press("n")
        assert not app._leaving
        await pilot.press("q", "y")
        assert app._leaving and app.return_code == 0


async def test_selecting_opening_and_aborting() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        app.overview.panels["running"].focus()
        await pilot.press("down")
        assert app.view.selected is not None
        first = app.view.selected
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RequestScreen)
        await settle(pilot, app)
        assert first in screen_text(app)
        await pilot.press("n")
        assert app.view.selected != first
        await pilot.press("escape")
        assert on_overview(app)
        chosen = app.view.selected
        await pilot.press("x")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("x")  # the same key again is a yes
        await pilot.pause()
        assert feed.sent == [cmd.AbortRequest(chosen)]


async def test_follow_goes_on_to_the_next_request() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press("F")
        await settle(pilot, app)
        first = app.view.selected
        assert first == "r1"
        feed.engine.abort_request("r1")
        feed.engine.flush()
        await settle(pilot, app)
        assert app.view.selected == "r2"


async def test_an_action_that_makes_no_sense_says_why() -> None:
    async with running_app(FakeFeed(loaded=False)) as (app, pilot, feed):
        await pilot.press("space")
        assert feed.sent == []
        await until(pilot, lambda: "still loading" in screen_text(app))


async def test_inject_form_checks_and_injects() -> None:
    async with running_app() as (app, pilot, feed):
        await pilot.press("i")
        await pilot.pause()
        assert isinstance(app.screen, FormScreen)
        await pilot.press("enter")
        assert "prompt = '': type something" in screen_text(app)
        await pilot.press(*"hello", "tab", "backspace", "backspace", "backspace", *"9x", "enter")
        assert "max_tokens = '9x': give a whole number" in screen_text(app)
        await pilot.press(
            "backspace", "tab", "tab", "backspace", "5", "tab", "tab", "backspace", "3", "tab", "7", "enter"
        )
        await pilot.pause()
        assert on_overview(app)
        added = [c for c in feed.sent if isinstance(c, cmd.AddRequest)]
        assert [c.request_id for c in added] == ["r1", "r2", "r3"]
        assert [c.params.seed for c in added] == [7, 8, 9]
        assert {(c.prompt, c.params.max_tokens, c.priority, c.group) for c in added} == {("hello", 9, 5, "default")}


async def test_burst_dialog() -> None:
    async with running_app() as (_, pilot, feed):
        await pilot.press("I")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("backspace", "backspace", "5", "tab", "right", "enter")
        await pilot.pause()
        added = [c for c in feed.sent if isinstance(c, cmd.AddRequest)]
        assert [c.request_id for c in added] == [f"b1-{n}" for n in range(1, 6)]
        assert len({c.prompt for c in added}) > 1


async def test_resize_dialog() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        await pilot.press("r")
        await pilot.pause()
        assert "64 blocks of 16" in screen_text(app)
        await pilot.press("backspace", "backspace", "4", "0", "enter")
        await pilot.pause()
        assert feed.sent == [cmd.ResizePool(40)]
        await settle(pilot, app)
        assert "/40" in screen_text(app)


async def test_freeze_stands_still_and_loses_nothing() -> None:
    feed = busy_feed()
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        await pilot.press("z")
        before = [line for line in screen_lines(app) if "FROZEN" not in line]
        feed.run(30)
        await settle(pilot, app)
        assert "FROZEN" in screen_text(app)
        assert [line for line in screen_lines(app) if "FROZEN" not in line] == before
        await pilot.press("z")
        await settle(pilot, app)
        assert app.view.state is app.pump.live and app.view.state is not None
        assert app.view.state.step == 38 and "step 38" in screen_text(app)


async def test_panels_by_number_and_maximise() -> None:
    panels = [name for name in PANELS if name != "host"]  # there is no host pool
    async with running_app(busy_feed()) as (app, pilot, _):
        assert app.overview.layout_now.visible == set(panels)
        for number, name in enumerate(panels, 1):
            await pilot.press(str(number))
            assert name not in app.overview.layout_now.visible
            await pilot.press(str(number))
            assert name in app.overview.layout_now.visible
        app.overview.panels["waiting"].focus()
        await pilot.press("M")
        assert app.overview.layout_now.visible == {"waiting"}
        assert "all panels" in screen_lines(app)[-1]
        await pilot.press("escape")
        assert app.overview.layout_now.visible == set(panels)


async def test_a_small_window_says_what_is_hidden_and_a_key_brings_it() -> None:
    async with running_app(busy_feed(), size=(80, 24)) as (app, pilot, _):
        await settle(pilot, app)
        assert "no room: 4 finished, 6 charts" in screen_lines(app)[-1]
        await pilot.press("4")
        await settle(pilot, app)
        assert "finished" in app.overview.layout_now.visible
        assert "events" not in app.overview.layout_now.visible


async def test_the_smallest_window_has_a_short_hint() -> None:
    async with running_app(busy_feed(), size=(60, 16)) as (app, pilot, _):
        await settle(pilot, app)
        assert screen_lines(app)[-1].rstrip().endswith("no room: 3 4 5 6")


@pytest.mark.parametrize("size", [(59, 30), (100, 15), (10, 3)])
async def test_too_small_is_a_message(size: tuple[int, int]) -> None:
    async with running_app(busy_feed(), size=size) as (app, pilot, _):
        await settle(pilot, app)
        assert "60" in screen_text(app) or size[0] < 20
        await pilot.resize_terminal(120, 40)
        await settle(pilot, app)
        assert "KV BLOCKS" in screen_text(app)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (81, 25), (99, 30), (100, 30), (120, 40), (160, 50), (200, 60)])
async def test_every_size_is_exactly_filled(size: tuple[int, int]) -> None:
    async with running_app(busy_feed(), size=size) as (app, pilot, _):
        await settle(pilot, app)
        lines = screen_lines(app)
        assert len(lines) == size[1]
        from rich.cells import cell_len

        assert {cell_len(line) for line in lines} == {size[0]}
        assert "help" in lines[-1] and "quit" in lines[-1]


async def test_help_names_every_action() -> None:
    async with running_app(busy_feed(), size=(120, 170)) as (app, pilot, _):
        await pilot.press("question_mark")
        await pilot.pause()
        text = screen_text(app)
        for action in ACTIONS:
            assert action.title in text, action.id
            assert key_sign(action.keys[0]) in text, action.id


async def test_palette_names_every_enabled_action() -> None:
    async with running_app(busy_feed()) as (app, _, _feed):
        titles = {command.title for command in app.get_system_commands(app.screen)}
        missing = {a.title for a in app.actions if a.enabled(app.situation)} - titles
        assert missing == {"Command palette", "Next panel", "Previous panel"}


async def test_palette_runs_an_action() -> None:
    async with running_app(busy_feed()) as (_, pilot, feed):
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"pause")
        await pilot.pause(0.6)
        await pilot.press("down", "enter")
        await until(pilot, lambda: feed.sent == [cmd.Pause()])


async def test_own_keys() -> None:
    async with running_app(busy_feed(), keymap={"pause": "f2", "theme": "q"}) as (app, pilot, feed):
        await pilot.press("space")
        assert feed.sent == []
        await pilot.press("f2")
        assert feed.sent == [cmd.Pause()]
        before = app.theme
        await pilot.press("q")
        assert app.theme != before and not app._leaving
        assert "F2" in screen_lines(app)[-1]


async def test_themes_go_round_and_come_back() -> None:
    async with running_app(busy_feed()) as (app, pilot, _):
        seen = []
        for _ in app.themes.themes:
            seen.append(app.theme)
            await pilot.press("t")
            await settle(pilot, app)
        assert sorted(seen) == sorted(app.themes.themes) and app.theme == seen[0]


async def test_engine_failure_is_told_at_once_and_quits_with_1() -> None:
    feed = busy_feed()
    async with running_app(feed) as (app, pilot, _):
        feed.fail("RuntimeError: [/red] out of [b]luck", "Traceback ...")
        await until(pilot, lambda: "engine stopped: RuntimeError: [/red] out of [b]luck" in screen_text(app), 1.0)
        assert "stale" in screen_text(app) and "FAILED" in screen_text(app)
        await pilot.press("space")
        assert feed.sent == []
        await pilot.press("q")
        assert app.return_code == 1


async def test_stalled_is_marked() -> None:
    feed = FakeFeed()
    feed.engine.add_request("r1", "a b c", PARAMS)
    feed.engine._blocks.pool.allocate(64)  # all of them, for nobody: a fault that no scheduler gets over
    feed.run(25)
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        assert "STALLED" in screen_text(app)


async def test_screenshot_and_copy(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    async with running_app(busy_feed()) as (app, pilot, _):
        await pilot.press("S")
        import pathlib

        assert len(list(pathlib.Path(str(tmp_path)).glob("vtop-*.svg"))) == 1
        app.select("r1")
        await pilot.press("y")
        assert app.clipboard.startswith("word word")


async def test_no_redraw_without_news() -> None:
    feed = busy_feed()
    async with running_app(feed, config=AppConfig(fps=60)) as (app, pilot, _):
        await settle(pilot, app)
        drawn = 0
        draw = app.overview.draw

        def counted(view: object, status: str) -> None:
            nonlocal drawn
            drawn += 1
            draw(view, status)  # type: ignore[arg-type]

        app.overview.draw = counted  # type: ignore[method-assign]
        await pilot.pause(0.5)
        assert drawn == 0
        feed.run(1)
        await pilot.pause(0.2)
        assert drawn == 1


@pytest.mark.parametrize("key", ["", "i", "I", "r", "question_mark", "q", "ctrl+p", "p", "space"])
async def test_ascii_means_ascii(key: str) -> None:
    async with running_app(busy_feed(), config=AppConfig(ascii=True)) as (app, pilot, _):
        await settle(pilot, app)
        if key:
            await pilot.press(key)
            await pilot.pause(0.1)
        app.say("a notice")
        await pilot.pause(0.1)
        odd = {c for line in screen_lines(app) for c in line if not c.isascii()}
        assert not odd, (odd, [line for line in screen_lines(app) if not line.isascii()][:3])


async def test_a_refused_prompt_is_a_notice() -> None:
    async with running_app(FakeFeed(StubEngine(4))) as (app, pilot, _):
        await pilot.press("p")
        app.overview.prompt.input.value = "word " * 200
        await pilot.press("enter")
        await until(pilot, lambda: "request r1 refused: prompt tokens = 200: needs 13" in screen_text(app))
        app.pump._take(ev.Frame(app.pump.live.serial + 1, 0, 0.0, False, [ev.Note("error", "[/] no")] * 3))  # type: ignore[union-attr]
        assert app.pump.alarm() == "[/] no (and 2 more, see the event log)" and app.pump.alarm() == ""


async def test_a_recording_that_stops_is_told() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        feed.problem = "recording to /x stopped: OSError: disk full"
        await until(pilot, lambda: screen_text(app).count("recording to /x") == 2)  # a notice, and in the log


async def test_notes_of_the_engine_reach_the_log() -> None:
    feed = busy_feed()
    async with running_app(feed) as (app, pilot, _):
        feed.engine.note(ev.Note("warning", "[/] look at this"))
        feed.engine.flush()
        await until(pilot, lambda: "[/] look at this" in screen_text(app))


def test_an_app_is_made_without_a_terminal() -> None:
    assert VtopApp(FakeFeed()).return_code is None
