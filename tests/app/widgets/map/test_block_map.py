"""The block map: what a cell shows, where it stands, and that it draws only what changed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from vtop.app.live.view import COLOURINGS, Colouring, View
from vtop.app.widgets.map.codes import Aggregate, Watch, bucket
from vtop.app.widgets.map.grid import make_grid
from vtop.app.widgets.map.map import BlockMap
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import OneWidget, assert_exact, lines_of, mounted, strips_of


def two_requests(num_blocks: int = 500) -> tuple[Frames, View]:
    frames = Frames(num_blocks)
    frames.run("first", prompt_tokens=40, blocks=3)
    frames.run("请求-2", prompt_tokens=32, blocks=2)
    return frames, View(state=frames.state)


@pytest.mark.parametrize("blocks", [1, 7, 64, 500, 4096, 65536, 1_048_576])
@pytest.mark.parametrize(("width", "height"), [(20, 3), (80, 20), (200, 56)])
@pytest.mark.parametrize("letters", [False, True])
def test_every_block_has_a_cell_inside(blocks: int, width: int, height: int, letters: bool) -> None:
    grid = make_grid(blocks, width, height, letters)
    assert grid.gutter + grid.columns * grid.cell_width <= width
    assert grid.rows * grid.cell_height <= height
    assert grid.columns * grid.rows * grid.per_cell >= blocks
    for block in {0, blocks // 2, blocks - 1}:
        cell = block // grid.per_cell
        x = grid.gutter + cell % grid.columns * grid.cell_width
        assert grid.block_at(x, grid.row_of(block)) == cell * grid.per_cell


@pytest.mark.parametrize("width", [30, 80, 120, 200])
@pytest.mark.parametrize("blocks", [24, 600, 70_000])
@pytest.mark.parametrize("colouring", COLOURINGS)
@pytest.mark.parametrize("ascii", [False, True])
async def test_rows_are_exact(width: int, blocks: int, colouring: str, ascii: bool) -> None:
    _, view = two_requests(blocks)
    view.colouring, view.ascii, view.selected, view.selected_block = colouring, ascii, "first", 1  # type: ignore[assignment]
    async with mounted(BlockMap(), view, width, 20) as pilot:
        app = pilot.app
        assert isinstance(app, OneWidget)
        lines = assert_exact(app.widget)
        assert not ascii or all(line.isascii() for line in lines)


async def test_owner_letters_free_blocks_and_fill() -> None:
    _, view = two_requests()
    async with mounted(BlockMap(), view) as pilot:
        row = lines_of(pilot.app.widget)[1]  # type: ignore[attr-defined]
        assert row.split()[:8] == ["0", "A", "A", "A▄", "B", "B", "·", "·"]  # A's third block holds 8 of 16 tokens
        assert "5/500" in lines_of(pilot.app.widget)[0]  # type: ignore[attr-defined]


async def test_states_and_references_differ_by_glyph() -> None:
    frames, view = two_requests()
    frames.frame(ev.BlocksTaken(id="请求-2", blocks=[0]))  # block 0 is shared now
    view.colouring = "state"
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert lines_of(widget)[1].split()[1:7] == ["▣", "■", "◧▄", "■", "■", "·"]
        frames.finish("first")
        view.touch()
        widget.show(view)
        assert lines_of(widget)[1].split()[1:4] == ["◧▁", "○", "○"]
        view.colouring = "refs"
        view.touch()
        widget.show(view)
        assert lines_of(widget)[1].split()[1:4] == ["1", "·", "·"]


async def test_selected_request_is_lit_and_block_marked_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    _, view = two_requests()
    view.selected, view.selected_block = "请求-2", 3
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        segments = list(strips_of(widget)[1])
        assert any("B◂" in s.text for s in segments)
        bold = [s.text for s in segments if s.style is not None and s.style.bold]
        assert bold and all("A" not in text for text in bold)
        greys = [s.style.color.triplet for s in segments if s.style and s.style.color and s.style.color.triplet]
        assert greys and all(len(set(triplet)) == 1 for triplet in greys)


async def test_only_changed_rows_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, view = two_requests(4096)
    async with mounted(BlockMap(), view, 120, 40) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        asked: list[object] = []
        monkeypatch.setattr(widget, "refresh", lambda *regions, **_: asked.extend(regions or ["all"]))
        widget.show(view)
        assert asked == []  # the same version
        view.touch()
        widget.show(view)
        assert asked == []  # another version of the same picture
        frames.frame(ev.BlocksTaken(id="first", blocks=[4000]))
        view.touch()
        widget.show(view)
        rows = sorted(y for region in asked for y in range(region.y, region.bottom))  # type: ignore[attr-defined]
        assert rows == [0, 1 + widget.grid.row_of(4000)]  # the heading counts blocks


async def test_pointing_and_picking() -> None:
    _, view = two_requests()
    async with mounted(BlockMap(), view) as pilot:
        app = pilot.app
        assert isinstance(app, OneWidget) and isinstance(app.widget, BlockMap)
        x = app.widget.grid.gutter + 3 * app.widget.grid.cell_width
        await pilot.hover(app.widget, offset=(x, 1))
        assert lines_of(app.widget)[-1].split()[:2] == ["block", "3"]
        await pilot.click(app.widget, offset=(x, 1))
        await pilot.press("right", "down", "enter")
        hovered = [m.block for m in app.seen if isinstance(m, BlockMap.Hovered)]
        picked = [m.block for m in app.seen if isinstance(m, BlockMap.Picked)]
        assert hovered[0] == 3 and picked[0] == 3
        assert picked[-1] == 4 + app.widget.grid.columns


async def test_words_about_a_block() -> None:
    frames, view = two_requests()
    frames.frame(ev.BlocksTaken(id="请求-2", blocks=[0]))
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert widget.describe(view, 2).plain == "block 2 ■ used, 1 ref: A first [2] tokens 32–47, 8/16 filled"
        assert "2 refs" in widget.describe(view, 0).plain and "B 请求-2 [2]" in widget.describe(view, 0).plain
        assert widget.describe(view, 499).plain == "block 499 · free"
        assert widget.describe(view, 500).plain == ""
        assert "A first" in widget.legend(view).plain


async def test_small_pools_have_tiles_with_numbers_and_bars() -> None:
    _, view = two_requests(24)
    view.selected_block = 1
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert widget.grid.tiles
        lines = assert_exact(widget)
        assert lines[1].split()[:4] == ["A", "0", "A", "1"]
        full, half, free = (lines[2][2 + n * widget.grid.cell_width :][: widget.grid.cell_width - 1] for n in (0, 2, 6))
        assert full == "━" * len(full) and half.count("━") + half.count("╸") == len(half) and free.strip() == ""
        styles = [segment.style for segment in strips_of(widget)[2] if segment.text.strip()]
        assert len(set(map(str, styles))) > 2
        await pilot.click(widget, offset=(2 + 3 * widget.grid.cell_width, 2))
        assert [m.block for m in pilot.app.seen if isinstance(m, BlockMap.Picked)] == [3]  # type: ignore[attr-defined]


async def test_aggregate_says_so_and_shows_half_full() -> None:
    frames = Frames(8000)
    frames.run("A", prompt_tokens=16 * 3, blocks=3)
    view = View(state=frames.state)
    async with mounted(BlockMap(), view, 80, 20) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert widget.grid.per_cell == 7
        assert "1 cell = 7 blocks" in lines_of(widget)[0]
        assert lines_of(widget)[1].split()[1].startswith("▃·")
        assert widget.describe(view, 3).plain.startswith("blocks 0–6: 3 of 7 used")


def test_counting_only_changed_cells_equals_counting_all() -> None:
    rng = np.random.default_rng(1)
    frames = Frames(1003)
    state, watch, kept = frames.state, Watch(), Aggregate(1003, 7)
    kept.count(state, watch, watch.look(state))
    for step in range(30):
        blocks = rng.integers(0, 1003, 40)
        state.step, state.serial = step, step
        state.ref_count[blocks] = rng.integers(0, 3, 40)
        state.owner[:] = np.where(state.ref_count > 0, np.maximum(state.owner, 0), -1)
        state.owner[blocks] = np.where(state.ref_count[blocks] > 0, rng.integers(0, 9, 40), -1)
        state.hashed[blocks] = rng.integers(0, 2, 40) > 0
        kept.count(state, watch, watch.look(state))
        fresh = Aggregate(1003, 7)
        fresh.count(state, watch, None)
        for colouring in COLOURINGS:
            assert (kept.codes(state, colouring) == fresh.codes(state, colouring)).all()


def test_ages_double() -> None:
    assert bucket(np.array([0, 1, 2, 3, 4, 7, 8, 10_000])).tolist() == [0, 1, 2, 2, 3, 3, 4, 9]


def test_ages_start_again_with_another_state() -> None:
    frames, _ = two_requests()
    watch = Watch()
    assert watch.look(frames.state) is None
    for _ in range(4):
        frames.decode("first")
    changed = watch.look(frames.state)
    assert changed is not None and len(changed) == 0
    assert watch.ages(frames.state.step)[0] == 3
    other, _ = two_requests()
    assert watch.look(other.state) is None


async def test_pool_may_change_its_size() -> None:
    frames, view = two_requests()
    async with mounted(BlockMap(), view) as pilot:
        frames.frame(ev.PoolResized(before=500, after=5000), ran=False)
        view.touch()
        pilot.app.widget.show(view)  # type: ignore[attr-defined]
        await pilot.pause()
        assert "5/5 000" in assert_exact(pilot.app.widget)[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark", "ansi-light", "nord"])
async def test_themes_change_while_it_runs(theme: str) -> None:
    _, view = two_requests()
    async with mounted(BlockMap(), view) as pilot:
        before = [s.style for s in strips_of(pilot.app.widget)[1]]  # type: ignore[attr-defined]
        pilot.app.theme = theme
        await pilot.pause()
        await pilot.pause()
        after = [s.style for s in strips_of(pilot.app.widget)[1]]  # type: ignore[attr-defined]
        assert before != after
        assert_exact(pilot.app.widget)  # type: ignore[attr-defined]


async def test_a_view_may_lose_its_state() -> None:
    _, view = two_requests()
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        state, view.state = view.state, None
        view.touch()
        widget.show(view)
        assert all(line.strip() == "" for line in assert_exact(widget)[1:])
        view.state = state
        view.touch()
        widget.show(view)
        assert "5/500" in assert_exact(widget)[0] and " A " in lines_of(widget)[1]


@pytest.mark.parametrize("colouring", ["owner", "state", "age", "refs"])
@pytest.mark.parametrize("blocks", [8, 24, 60, 120])
async def test_digits_on_a_tile_do_not_run_together(blocks: int, colouring: Colouring) -> None:
    """What a tile says is a sign and the block's own number, or the sign alone."""
    frames = Frames(blocks)
    frames.run("first", prompt_tokens=16 * (blocks - 2), blocks=blocks - 2)
    frames.cache("first", blocks - 2)  # those have a sign of their own
    view = View(state=frames.state, colouring=colouring)
    for width in (60, 80, 110):
        async with mounted(BlockMap(), view, width) as pilot:
            widget = pilot.app.widget  # type: ignore[attr-defined]
            grid = widget.grid
            if not grid.tiles:
                continue
            for row in range(grid.rows):
                line = lines_of(widget)[1 + row * grid.cell_height]
                for column in range(grid.columns):
                    block = row * grid.columns + column
                    tile = line[grid.gutter + column * grid.cell_width :][: grid.cell_width]
                    said = re.findall(r"\d+", tile)
                    assert block >= blocks or all(number == str(block) for number in said[-1:] if len(number) > 1)
