"""Keys that come faster than the focus moves: each acts where it would have, typed slowly."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.keys import _character_to_key

from vtop.app.main import VtopApp
from vtop.app.screens.form import FormScreen
from vtop.app.terminal.driver import lone_escapes
from vtop.engine import commands as cmd
from vtop.engine.request import SamplingParams
from vtop_support.app_driver import running_app, screen_text, until
from vtop_support.fake_feed import FakeFeed
from vtop_support.stub_engine import StubEngine

PARAMS = SamplingParams(max_tokens=30)
NAMED = {"\n": "enter", "\t": "tab", "\x1b": "escape", " ": "space"}


def busy_feed() -> FakeFeed:
    feed = FakeFeed(StubEngine(64))
    for number in range(1, 21):
        feed.engine.add_request(f"r{number}", "word " * (5 + 7 * number), PARAMS)
    feed.run(8)
    return feed


def at_once(app: VtopApp, *texts: str) -> None:
    """Send keys as a terminal does that was read late: all of them before the first one is looked at.

    A text of several characters that is the name of a key is that key.
    """
    for text in texts:
        keys = [text] if text in ("down", "up", "pagedown", "ctrl+p", "backspace", "f1", "f7") else text
        for key in keys:
            name = NAMED.get(key, key)
            if len(name) == 1 and not name.isalnum():
                name = _character_to_key(name)
            app.post_message(events.Key(name, key if len(key) == 1 else None))


async def test_a_prompt_typed_with_its_key() -> None:
    text = "Move M 1 and z until q . > x"
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "p", text, "\n")
        await until(pilot, lambda: feed.sent)
        assert feed.sent == [cmd.AddRequest("r1", text, app.injector.params)]
        assert app.overview.maximised is None and app.screen is app.overview


async def test_a_paste_after_its_key() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "p")
        app.post_message(events.Paste("M is not z"))
        at_once(app, "\n")
        await until(pilot, lambda: feed.sent)
        assert feed.sent == [cmd.AddRequest("r1", "M is not z", app.injector.params)]


async def test_a_form_filled_in_at_once() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "i", "q and space", "\t", "7", "down", "0.5", "\t", "3", "\n")
        await until(pilot, lambda: feed.sent)
        (sent,) = feed.sent
        assert isinstance(sent, cmd.AddRequest)
        assert (sent.prompt, sent.params.max_tokens, sent.params.temperature, sent.priority) == (
            "q and space",
            7,
            0.5,
            3,
        )


async def test_what_is_wrong_in_a_form_is_corrected_at_once() -> None:
    """The field with the error gets the focus, and what was typed behind goes there."""
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "i", "hello", "\t", "x", "\t", "\n", "9", "\n")
        await until(pilot, lambda: feed.sent)
        (sent,) = feed.sent
        assert isinstance(sent, cmd.AddRequest) and (sent.prompt, sent.params.max_tokens) == ("hello", 9)


async def test_options_and_the_prompt_behind_each_other() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "o", "sjf", "\n", "p", "zzz", "\n", "\x1b", " ")
        await until(pilot, lambda: len(feed.sent) == 3)
        assert feed.sent[0] == cmd.SetOption("scheduling_policy", "sjf")
        assert feed.sent[1:] == [cmd.AddRequest("r1", "zzz", app.injector.params), cmd.Pause()]


async def test_from_the_list_of_loads_into_the_form_of_a_burst() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "I", "\n", "5", "\n")
        await until(pilot, lambda: feed.sent)
        assert [c.request_id for c in feed.sent if isinstance(c, cmd.AddRequest)] == [f"b1-{n}" for n in range(1, 6)]


async def test_questions_answered_at_once() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "down", "x", "n", "x", "y", "q", "\x1b", "r", "\x1b", "?", "\x1b", " ")
        await until(pilot, lambda: len(feed.sent) == 2)
        assert app.screen is app.overview and not app._leaving
        assert isinstance(feed.sent[0], cmd.AbortRequest) and feed.sent[1] == cmd.Pause()


async def test_a_request_opened_and_left_at_once() -> None:
    async with running_app(busy_feed()) as (app, pilot, feed):
        at_once(app, "down", "\n", "n", "w", "w", "\x1b", "p", "n", "\n")
        await until(pilot, lambda: feed.sent)
        assert app.screen is app.overview
        assert feed.sent == [cmd.AddRequest("r1", "n", app.injector.params)]


async def test_the_palette_and_a_leap_at_once() -> None:
    async with running_app(busy_feed()) as (app, pilot, _):
        at_once(app, "ctrl+p", "pagedown", "pagedown", "up", "\x1b", "\x1b", "r")
        await until(pilot, lambda: isinstance(app.screen, FormScreen))


async def test_one_that_hangs_holds_keys_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtop.app.terminal.key_gate.LIMIT", 0.1)
    async with running_app(busy_feed()) as (app, pilot, feed):
        never = asyncio.Event()
        asyncio.get_running_loop().call_later(3, never.set)
        app.overview.panels["events"].call_later(never.wait)
        await pilot.pause(0.05)
        at_once(app, " ", " ", " ")
        await until(pilot, lambda: len(feed.sent) == 3, 1.0)


async def test_the_key_that_quits_at_once_does_not_wait() -> None:
    async with running_app(busy_feed()) as (app, pilot, _feed):
        never = asyncio.Event()
        asyncio.get_running_loop().call_later(3, never.set)
        app.overview.panels["events"].call_later(never.wait)
        await pilot.pause(0.05)
        at_once(app, "p", "q")
        app.post_message(events.Key("ctrl+c", None))
        await until(pilot, lambda: app._leaving, 1.0)
        assert app.return_code == 130


async def test_a_prompt_typed_while_the_model_loads_is_kept() -> None:
    feed = FakeFeed(loaded=False)
    async with running_app(feed) as (app, pilot, _):
        at_once(app, "p", "Move and quit q", "\n")
        await until(pilot, lambda: "the model is still loading" in screen_text(app))
        assert app.overview.prompt.input.value == "Move and quit q" and not app.is_leaving
        feed.load()
        await until(pilot, lambda: "KV BLOCKS" in screen_text(app))
        at_once(app, "\n")
        await until(pilot, lambda: feed.sent)
        assert feed.sent == [cmd.AddRequest("r1", "Move and quit q", app.injector.params)]


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("\x1bq", ["escape", "q"]),
        ("\x1b\r", ["escape", "enter"]),
        ("\x1b ", ["escape", "space"]),
        ("\x1b\x1bp", ["escape", "escape", "p"]),
        ("\x1bthe quick brown fox jumps over", ["escape", *"the", "space", *"quick"]),
        ("\x1b[B\x1bOA\x1b[6~x", ["down", "up", "pagedown", "x"]),
        ("\x1b\x1b[B", ["escape", "down"]),
        ("\x1b\t\x1bf\x1bb", ["shift+tab", "ctrl+right", "ctrl+left"]),
        ("\x1b[27uq", ["escape", "q"]),
    ],
)
def test_escape_is_told_apart_from_what_is_typed_behind_it(typed: str, keys: list[str]) -> None:
    parser = XTermParser()
    seen = [event.key for event in parser.feed(lone_escapes(typed)) if isinstance(event, events.Key)]
    assert seen[: len(keys)] == keys
