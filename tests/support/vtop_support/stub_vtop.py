"""The whole program with a stub in place of the model: `python stub_vtop.py [options]` in a terminal."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path

from vtop.app.__main__ import fill_descriptors
from vtop.app.commands.headless import drive
from vtop.app.commands.run import Work
from vtop.app.live.burst import Lengths
from vtop.app.live.engine import LiveFeed
from vtop.app.live.inject import Burst, Injector
from vtop.app.options import AppConfig
from vtop.app.run_app import run_app
from vtop.engine.clock import MonotonicClock
from vtop.engine.commands import Command
from vtop.engine.request import SamplingParams
from vtop.engine.thread import EngineThread, Progress
from vtop_support.stub_engine import StubEngine

_early_handler = logging.StreamHandler()  # holds the stderr of before the start


def _noise() -> None:
    print("NOISE print")
    print("NOISE stderr", file=sys.stderr)
    os.write(2, b"NOISE fd 2\n")
    os.write(1, b"NOISE fd 1\n")
    warnings.warn("NOISE warning", stacklevel=1)
    logger = logging.getLogger("noise")
    logger.addHandler(_early_handler)
    logger.warning("NOISE logging")
    from tqdm import tqdm

    for _ in tqdm(range(3), desc="NOISE tqdm"):
        pass


def _written(feed: LiveFeed, path: str) -> None:
    send = feed.send

    def keep(command: Command) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{command!r}\n")
        send(command)

    feed.send = keep  # type: ignore[method-assign]


def main() -> int:
    fill_descriptors()
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--slow-at", type=int, default=-1)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--fail-load", action="store_true")
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--crash-app", action="store_true")
    parser.add_argument("--noise-at", type=int, default=-1)
    parser.add_argument("--blocks", type=int, default=120)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--request-timeout", type=float)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--commands", help="a file that every command of the screen is written to, one a line")
    arguments = parser.parse_args()

    def build(progress: Progress) -> StubEngine:
        until = time.monotonic() + arguments.load_seconds
        done = 0
        while time.monotonic() < until:
            progress("weights", done, 100)
            done = min(100, done + 1)
            time.sleep(0.05)
        if arguments.fail_load:
            raise OSError("no such weights")

        def before_step(number: int) -> None:
            time.sleep(1e6 if number == arguments.slow_at else arguments.step_seconds)
            if number == arguments.fail_at:
                raise RuntimeError("the [stub] engine broke")
            if number == arguments.noise_at:
                _noise()

        timeout = arguments.request_timeout
        return StubEngine(arguments.blocks, clock=MonotonicClock(), before_step=before_step, request_timeout=timeout)

    def make_feed() -> LiveFeed:
        if arguments.crash_app:
            from vtop.app.main import VtopApp

            def crash(app: VtopApp) -> None:
                raise ZeroDivisionError("the screen broke")

            VtopApp._look_at_loading = crash  # type: ignore[method-assign,assignment]
        feed = LiveFeed(EngineThread(build), arguments.record)
        params = SamplingParams(max_tokens=arguments.max_tokens)
        if arguments.requests:
            for command in Injector(params).burst(Burst(arguments.requests, Lengths.MIXED, 48, 1, params)):
                feed.send(command)
        if arguments.commands:
            _written(feed, arguments.commands)
        return feed

    if arguments.headless:
        config = AppConfig(max_tokens=arguments.max_tokens)
        work = Work(["a b c"], record=arguments.record)
        return drive(build(lambda stage, done, total: None), config, work, as_json=True)
    return run_app(make_feed, AppConfig(), model="stub")


if __name__ == "__main__":
    sys.exit(main())
