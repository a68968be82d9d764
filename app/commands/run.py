"""`vtop run`: what it is asked to do, and the engine with a screen."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtop.app.files import check_target
from vtop.app.live.burst import MAX_BURST, Lengths, burst_prompts
from vtop.app.live.feed import Feed
from vtop.app.live.playing import Playing
from vtop.app.settings import Settings
from vtop.engine.commands import AddRequest
from vtop.engine.errors import BadValue
from vtop.engine.fields import check, check_text
from vtop.engine.request import SamplingParams
from vtop.engine.user_files import lines_of, read_text


@dataclass(frozen=True, slots=True)
class Work:
    """What to run, and for how long. `prompts` come first, then `burst` made-up ones."""

    prompts: Sequence[str] = ()
    burst: int = 0
    burst_lengths: Lengths = Lengths.MIXED
    duration: float | None = None
    record: Path | None = None

    @property
    def empty(self) -> bool:
        return not self.prompts and not self.burst

    def all_prompts(self, seed: int) -> Iterator[tuple[str, str]]:
        """(request id, prompt) of everything."""
        for number, prompt in enumerate(self.prompts, 1):
            yield f"r{number}", prompt
        if self.burst:
            made_up = burst_prompts(self.burst_lengths, self.burst, abs(seed))
            for number, prompt in enumerate(made_up, 1):
                yield f"b1-{number}", prompt


@dataclass(frozen=True, slots=True)
class RunArguments:
    """What is given to `run` besides options."""

    headless: bool
    prompt: list[str]
    prompts: Path | None
    burst: int
    burst_lengths: Lengths
    duration: float | None
    record: Path | None
    json: bool
    overwrite: bool = False

    def work(self) -> Work:
        """Checked; BadValue names what cannot be used."""
        if not 0 <= self.burst <= MAX_BURST:
            raise BadValue("--burst", self.burst, f"give 0 to {MAX_BURST} requests")
        if self.duration is not None:
            check("timeout", self.duration, shown="--duration", remedy="give seconds above 0")
        if self.json and not self.headless:
            raise BadValue("--json", True, "it goes with --headless")
        if self.duration is not None and not self.headless:
            raise BadValue("--duration", self.duration, "it goes with --headless")
        if self.record is not None:
            check_target("--record", self.record, self.overwrite)
        elif self.overwrite:
            raise BadValue("--overwrite", True, "it goes with --record")
        prompts = [*map(_typed, self.prompt), *(read_prompts(self.prompts) if self.prompts is not None else [])]
        return Work(prompts, self.burst, self.burst_lengths, self.duration, self.record)


def _typed(prompt: str) -> str:
    """A prompt from the command line. In a locale without UTF-8 its bytes come as half surrogates: they are UTF-8."""
    with contextlib.suppress(UnicodeError):
        prompt = os.fsencode(prompt).decode("utf-8")
    check_text("--prompt", prompt)
    return prompt


def read_prompts(path: Path) -> list[str]:
    """One prompt per line; empty lines are left out."""
    text = read_text("--prompts", path, "a text file with one prompt per line")
    prompts = [line for line in lines_of(text) if line.strip()]
    if not prompts:
        raise BadValue("--prompts", str(path), "the file holds no prompt; write one per line")
    return prompts


def check_screen() -> None:
    """Raise NoTerminal unless the app can be shown."""
    from vtop.app.terminal.guard import check_terminal

    check_terminal(sys.stdin, sys.stdout, os.environ)


def run_command(settings: Settings, arguments: RunArguments) -> int:
    """Run with a screen; returns the exit code."""
    work = arguments.work()
    engine_config, app_config = settings.engine_config(), settings.app_config()
    check_screen()
    from vtop.app.live.engine import LiveFeed

    def make_feed() -> Feed:
        return LiveFeed.of_config(
            engine_config, paused=app_config.paused, steps_per_second=app_config.speed, record=work.record
        )

    return show(settings, make_feed, work, model=engine_config.model, seed=engine_config.seed)


def show(
    settings: Settings,
    make_feed: Callable[[], Feed],
    work: Work,
    *,
    model: str,
    seed: int,
    playing: Playing | None = None,
) -> int:
    """Show the feed, with the prompts of `work` sent to it, until the person leaves. `check_screen` comes before."""
    from vtop.app.run_app import run_app

    config = settings.app_config()

    def with_prompts() -> Feed:
        feed = make_feed()
        params = SamplingParams(max_tokens=config.max_tokens, temperature=config.temperature)
        for request_id, prompt in work.all_prompts(seed):
            feed.send(AddRequest(request_id, prompt, params, cache_salt=config.cache_salt))
        return feed

    injected = (len(work.prompts), 1 if work.burst else 0)
    return run_app(with_prompts, config, model=model, keymap=settings.keys, injected=injected, playing=playing)
