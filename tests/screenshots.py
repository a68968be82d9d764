"""Draws the README's pictures: `python tests/screenshots.py [folder]` writes SVG files.

The engine runs the bundled model, with a pool small enough for preemptions; with `--stub` it runs the stub of the tests
instead, which needs no torch.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "support"))

from vtop.app.live.burst import Lengths
from vtop.app.live.inject import Burst
from vtop.app.main import VtopApp
from vtop.app.options import AppConfig
from vtop.engine import commands as cmd
from vtop.engine.config import EngineConfig
from vtop.engine.request import SamplingParams
from vtop.engine.thread import EngineThread, Progress

FOLDER = Path(__file__).parent / "data" / "screenshots"
BLOCKS = 160
PARAMS = SamplingParams(max_tokens=90, temperature=0.7)


def make_feed(stub: bool) -> Any:
    """A feed of an engine with the bundled model or with the stub."""
    from vtop.app.live.engine import LiveFeed

    if not stub:
        return LiveFeed.of_config(EngineConfig(num_gpu_blocks_override=BLOCKS, max_num_seqs=24))

    def build(progress: Progress) -> Any:
        import time

        from vtop.engine.clock import MonotonicClock
        from vtop_support.stub_engine import StubEngine

        return StubEngine(BLOCKS, clock=MonotonicClock(), before_step=lambda step: time.sleep(0.02))

    return LiveFeed(EngineThread(build))


async def picture(
    name: str, size: tuple[int, int], theme: str, stub: bool, keys: list[str], ascii: bool = False
) -> str:
    """One picture: load, inject, run until something was preempted, pause, press keys."""
    feed = make_feed(stub)
    app = VtopApp(feed, AppConfig(theme=theme, ascii=ascii, mouse=False), model="tiny")
    async with app.run_test(size=size) as pilot:
        while app.pump.live is None:
            await pilot.pause(0.05)
            if app.troubles.failed:
                raise SystemExit(app.troubles.failure)
        for command in app.injector.burst(Burst(40, Lengths.MIXED, 48, 5, PARAMS)):
            feed.send(command)
        state = app.pump.live
        for _ in range(1200):
            await pilot.pause(0.05)
            if state.totals.preemptions >= 4 and len(state.finished) >= 4:
                break
        feed.send(cmd.Pause())
        while not state.paused:
            await pilot.pause(0.05)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.15)
        await pilot.pause(0.3)
        svg = app.export_screenshot(title=f"vtop · {size[0]}x{size[1]}")
    feed.close()
    return svg


PICTURES: dict[str, tuple[tuple[int, int], str, list[str]]] = {
    "overview-120x40": ((120, 40), "vtop-dark", ["down", "down"]),
    "overview-80x24": ((80, 24), "vtop-dark", []),
    "overview-200x60": ((200, 60), "vtop-dark", ["down"]),
    "light-120x40": ((120, 40), "vtop-light", ["down", "down", "down"]),
    "request-120x40": ((120, 40), "vtop-dark", ["down", "down", "enter"]),
    "inject-120x40": ((120, 40), "vtop-dark", ["i"]),
    "help-120x40": ((120, 40), "vtop-dark", ["question_mark"]),
}


def main() -> None:
    """Write every picture, or those named."""
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    folder = next((Path(a) for a in arguments if "/" in a), FOLDER)
    names = [a for a in arguments if a in PICTURES] or list(PICTURES)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        size, theme, keys = PICTURES[name]
        svg = asyncio.run(picture(name, size, theme, "--stub" in sys.argv, keys))
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
