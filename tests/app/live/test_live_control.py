"""Options, priorities and policies changed from the screen while requests run; bars of groups; samples."""

from __future__ import annotations

import pytest

from vtop.app.screens.dialogs import option_form
from vtop.app.screens.fields import TextInput
from vtop.app.screens.form import FormScreen
from vtop.engine import commands as cmd
from vtop.engine.sched.live import LIVE_OPTIONS
from vtop_support.app_driver import running_app, screen_lines, screen_text, settle, until
from vtop_support.stub_feed import StubFeed


def type_into(form: FormScreen, name: str, text: str) -> None:
    field = form._inputs[name]
    assert isinstance(field, TextInput)
    field.value = text


def feed_of(**options: object) -> StubFeed:
    feed = StubFeed(64, **options)
    feed.audited.add("a", 8, 30)
    feed.audited.add("b", 8, 30)
    feed.run()
    return feed


async def test_options_are_set_and_mistakes_are_said_in_the_dialog() -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await pilot.press("o")
        await pilot.pause()
        form = app.screen
        assert isinstance(form, FormScreen)
        assert "who goes first: fcfs" in screen_text(app)
        assert {f"field-{name}" for name in LIVE_OPTIONS} == {w.id for w in form._inputs.values()}
        type_into(form, "max_num_seqs", "0")
        await pilot.press("enter")
        assert "max_num_seqs = 0: give at least 1" in screen_text(app) and feed.sent == []
        type_into(form, "max_num_seqs", "7")
        victim = form._inputs["victim"]
        victim.focus()
        while victim.value != "most-blocks":
            await pilot.press("right")
        await pilot.press("enter")
        await pilot.pause()
        assert feed.sent == [cmd.SetOption("victim", "most-blocks"), cmd.SetOption("max_num_seqs", 7)]
        await settle(pilot, app)
        assert feed.audited.state.options["max_num_seqs"] == 7


async def test_what_the_engine_refuses_is_a_notice() -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        feed.send(cmd.SetOption("scheduling_policy", "/no/such/file.py:Mine"))
        await until(pilot, lambda: "/no/such/file.py" in screen_text(app))


@pytest.mark.parametrize("policy", ["fcfs", "priority+fair"])
def test_the_form_shows_values_as_they_are(policy: str) -> None:
    form = option_form({"scheduling_policy": policy, "watermark": 0.25, "unknown": 3})
    values = {field.name: field.value for field in form._fields}
    assert values["scheduling_policy"] == policy and values["watermark"] == "0.25" and values["max_waiting"] == "none"
    assert form._make(values) == []


def test_a_preset_offers_only_what_it_lets_change() -> None:
    form = option_form({"preset": "vllm-v0"})
    assert [field.name for field in form._fields] == ["max_num_seqs", "max_waiting", "request_timeout"]


async def test_priority_of_the_selected_request() -> None:
    feed = feed_of(scheduling_policy="priority")
    async with running_app(feed) as (app, pilot, _):
        await settle(pilot, app)
        app.select("b")
        await pilot.press("P")
        await pilot.pause()
        await pilot.press("5", "enter")
        await pilot.pause()
        assert feed.sent == [cmd.SetPriority("b", 5)]
        await settle(pilot, app)
        assert "b  priority 0 → 5" in screen_text(app)


async def test_reloading_needs_a_policy_of_ones_own() -> None:
    feed = feed_of()
    async with running_app(feed) as (app, pilot, _):
        await pilot.press("R")
        await settle(pilot, app)
        assert feed.sent == [] and "not one of yours" in screen_text(app)


def two_groups() -> StubFeed:
    feed = StubFeed(64, scheduling_policy="fair", max_num_seqs=2)
    for number in range(3):
        feed.audited.add(f"a{number}", 10, 30, group="[/]alpha")
        feed.audited.add(f"b{number}", 30, 30, group="beta")
    feed.run(5)
    return feed


async def test_groups_have_bars_when_there_are_several() -> None:
    feed = two_groups()
    async with running_app(feed, size=(120, 40)) as (app, pilot, _):
        await settle(pilot, app)
        await settle(pilot, app)
        rows = [line for line in screen_lines(app) if line.startswith(" group ")]
        assert len(rows) == 2 and "[/]alpha" in rows[0] and "waiting" in rows[0] and "counter" in rows[0]
        assert "%" in rows[0] and "tok" in rows[1]
        await pilot.resize_terminal(80, 24)
        await settle(pilot, app)
        await settle(pilot, app)
        line = next(line for line in screen_lines(app) if line.startswith(" groups "))
        assert "beta" in line and "%" in line and "+1" in line  # the one with most stays
        assert len(screen_lines(app)) == 24 and "help" in screen_lines(app)[-1]


async def test_one_group_has_no_bars() -> None:
    async with running_app(feed_of()) as (app, pilot, _):
        await settle(pilot, app)
        assert not app.overview.service.display


def test_groups_are_counted_prompts_once_and_output() -> None:
    feed = two_groups()
    feed.audited.run()
    assert feed.audited.state.totals.group_tokens == {"[/]alpha": 3 * 40, "beta": 3 * 60}


async def test_samples_are_seen_in_the_details_and_the_log() -> None:
    feed = StubFeed(64)
    feed.audited.add("many", 10, 12, n=3, temperature=1.0, seed=1)
    feed.run(4)
    async with running_app(feed, size=(140, 60)) as (app, pilot, _):
        await settle(pilot, app)
        assert "many  3 samples" in screen_text(app)
        app.select("many")
        await pilot.press("enter")
        await settle(pilot, app)
        text = screen_text(app)
        assert all(f"sample {index}" in text for index in range(3)) and "goes on" in text


async def test_the_form_injects_samples() -> None:
    async with running_app() as (app, pilot, feed):
        await pilot.press("i")
        await pilot.pause()
        form = app.screen
        assert isinstance(form, FormScreen)
        type_into(form, "prompt", "hello")
        type_into(form, "samples", "3")
        await pilot.press("enter")
        await pilot.pause()
        (added,) = [c for c in feed.sent if isinstance(c, cmd.AddRequest)]
        assert added.params.n == 3
