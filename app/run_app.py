"""Runs the screen, and leaves the terminal as it was on every way out."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from vtop.app.live.feed import Feed
from vtop.app.live.playing import Playing
from vtop.app.options import AppConfig
from vtop.app.terminal.guard import ExitGuard
from vtop.app.terminal.printing import tell
from vtop.app.terminal.stray import StrayOutput

SWITCH_INTERVAL = 0.001  # seconds until a thread that computes in Python lets the screen's thread go on
ENGINE_GRACE = 1.0  # seconds for the engine to finish its step when the person has left


def run_app(
    make_feed: Callable[[], Feed],
    config: AppConfig,
    *,
    model: str = "",
    keymap: dict[str, str] | None = None,
    injected: tuple[int, int] = (0, 0),
    playing: Playing | None = None,
) -> int:
    """Show the feed until the person leaves. Returns the exit code.

    There must be a terminal (`check_terminal`). `make_feed` must return at once; `injected` counts the requests and
    bursts that it sent already, so that ids go on from there. `playing` says what runs, when it is not a plain engine.
    """
    from vtop.app.main import VtopApp
    from vtop.app.settings import config_folder
    from vtop.app.terminal.driver import screen_driver
    from vtop.app.terminal.themes import load_themes

    sys.setswitchinterval(SWITCH_INTERVAL)
    stray = StrayOutput()
    with stray:
        terminal = stray.terminal
        assert terminal is not None
        folder = config_folder()
        themes = load_themes(None if folder is None else folder / "themes")
        feed = make_feed()
        app = VtopApp(feed, config, model=model, keymap=keymap, themes=themes, stray=stray, playing=playing)
        app.injector.skip(*injected)
        driver = screen_driver(terminal, alt=any("alt+" in keys for keys in (keymap or {}).values()))
        if driver is not None:
            app.driver_class = driver
        app.on_leave = lambda code: guard.arm(code)
        with ExitGuard(terminal.fileno(), app.leave_from_anywhere) as guard:
            app.run(mouse=config.mouse)
            code = guard.code if guard.code is not None else (app.return_code or 0)
            crash = app.crash
            if crash:
                code = code or 1
            stopped = feed.close(ENGINE_GRACE)
    if feed.problem:  # told on the screen too, if there was time
        code = code or 1
        tell(f"vtop: {feed.problem}")
    last_words = _last_words(app.last_words, crash, stray)
    if last_words:
        tell(last_words)
    if not stopped or "torch" in sys.modules:
        # Either a step or a load is still going on in a thread that cannot be interrupted, or torch would take its
        # time, on a busy machine seconds, to be taken down. Recording and log are closed: nothing is left to save.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    return code


def _last_words(failure: str, crash: str, stray: StrayOutput) -> str:
    if crash:
        return f"vtop: the screen crashed: {crash}; full text: {stray.path}"
    if failure:
        return f"vtop: {failure}" + (f"; full text: {stray.path}" if stray.path.exists() else "")
    return ""
