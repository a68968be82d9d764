"""What the block map costs per refresh: `python tests/benchmarks/render_cost.py [refreshes]`.

CPU time of this thread for folding changed blocks into the picture, building the changed rows, and encoding them for
a truecolor terminal (a headless app skips that last part, so it is done by hand). 200 blocks change per refresh.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from textual.app import App, ComposeResult
from textual.geometry import Region

from vtop.app.live.view import View
from vtop.app.widgets.map.map import BlockMap
from vtop.engine import events as ev
from vtop.engine.state.fold import FREE, EngineState

SIZE = (200, 60)
CHANGED = 200


class MapApp(App[None]):
    def compose(self) -> ComposeResult:
        yield BlockMap(id="map")


def full_state(blocks: int, requests: int, rng: np.random.Generator) -> EngineState:
    """A pool that is four fifths in use."""
    meta = ev.Meta(
        schema=1,
        version="0",
        model="m",
        device="cpu",
        dtype="float32",
        backend="torch",
        block_size=16,
        num_blocks=blocks,
        max_model_len=1024,
        token_budget=512,
        max_num_seqs=64,
        config={},
        unix_time=0.0,
        engine_time=0.0,
    )
    state = EngineState(meta)
    held = rng.random(blocks) < 0.8
    state.owner[held] = rng.integers(0, requests, int(held.sum()))
    state.ref_count[held] = 1
    state.used = int(held.sum())
    return state


def change(state: EngineState, rng: np.random.Generator, number: int = CHANGED) -> None:
    """One step's worth of blocks taken and freed."""
    blocks = rng.integers(0, state.num_blocks, number)
    taken = rng.random(number) < 0.8
    state.owner[blocks] = np.where(taken, rng.integers(0, 64, number), FREE)
    state.ref_count[blocks] = state.owner[blocks] != FREE
    state.used = int((state.ref_count > 0).sum())
    state.step += 1
    state.serial += 1


async def refresh_costs(blocks: int, refreshes: int, colouring: str = "owner") -> tuple[list[float], list[float], int]:
    """Seconds per refresh for show and rows, seconds per refresh for encoding, and bytes of the last refresh."""
    rng = np.random.default_rng(7)
    state = full_state(blocks, 64, rng)
    view = View(state=state)
    view.colouring = colouring  # type: ignore[assignment]
    console = Console(color_system="truecolor", force_terminal=True)
    app = MapApp()
    drawing: list[float] = []
    encoding: list[float] = []
    size = 0
    async with app.run_test(size=SIZE) as pilot:
        widget = app.query_one(BlockMap)
        widget.show(view)
        await pilot.pause()
        widget.render_lines(Region(0, 0, *SIZE))
        regions: list[Region] = []
        original = widget.refresh

        def refresh(*asked: Region, **options: bool) -> BlockMap:
            regions.extend(asked)
            return original(*asked, **options)

        widget.refresh = refresh  # type: ignore[method-assign, assignment]
        for _ in range(refreshes):
            change(state, rng)
            view.touch()
            regions.clear()
            start = time.thread_time()
            widget.show(view)
            strips = [strip for region in regions for strip in widget.render_lines(region)]
            middle = time.thread_time()
            size = sum(len(strip.render(console)) for strip in strips)
            encoding.append(time.thread_time() - middle)
            drawing.append(middle - start)
            await pilot.pause()
    return drawing, encoding, size


def main(arguments: Sequence[str]) -> None:
    refreshes = int(arguments[0]) if arguments else 40
    print(f"block map at {SIZE[0]}x{SIZE[1]}, {CHANGED} changed blocks per refresh, median of {refreshes}")
    print(f"{'blocks':>9} {'colour':>7} {'draw ms':>8} {'encode ms':>9} {'sum ms':>7} {'KiB':>6}")
    for blocks in (4096, 65_536, 1_048_576):
        for colouring in ("owner", "state", "age"):
            drawing, encoding, size = asyncio.run(refresh_costs(blocks, refreshes, colouring))
            draw, encode = statistics.median(drawing) * 1e3, statistics.median(encoding) * 1e3
            total = draw + encode
            print(f"{blocks:>9} {colouring:>7} {draw:>8.2f} {encode:>9.2f} {total:>7.2f} {size / 1024:>6.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
