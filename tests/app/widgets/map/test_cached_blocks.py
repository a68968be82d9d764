"""The block map and prefix caching: cached blocks, content that can be hit, several owners, copies on write."""

from __future__ import annotations

import pytest

from vtop.app.live.view import COLOURINGS, View
from vtop.app.terminal.glyphs import glyphs
from vtop.app.widgets.map.codes import Watch
from vtop.app.widgets.map.map import BlockMap
from vtop.app.widgets.map.pools import MARKED_SECONDS, MARKED_STEPS
from vtop.engine import events as ev
from vtop.engine.state.fold import FREE
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import assert_exact, lines_of, mounted, strips_of


def story(num_blocks: int = 24) -> tuple[Frames, View]:
    """0, 1: cached. 2, 3, 4: of B, 2 and 3 can be hit, 2 is also of C."""
    frames = Frames(num_blocks)
    frames.run("A", blocks=2)
    frames.run("B", prompt_tokens=40, blocks=3)
    frames.cache("A", 2)
    frames.cache("B", 2)
    frames.finish("A")
    frames.share("C", "B", 1, prompt_tokens=17)
    return frames, View(state=frames.state)


def signs(widget: BlockMap) -> list[str]:
    """The first sign of the cells of blocks 0 … 5."""
    grid = widget.grid
    start = grid.gutter + (grid.cell_width == 3 and not grid.tiles)
    return [lines_of(widget)[1][start + n * grid.cell_width] for n in range(6)]


@pytest.mark.parametrize("colouring", COLOURINGS)
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("blocks", [24, 200, 500, 1500])
async def test_cached_is_neither_free_nor_used(colouring: str, ascii: bool, blocks: int) -> None:
    _, view = story(blocks)
    view.colouring, view.ascii = colouring, ascii  # type: ignore[assignment]
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert_exact(widget)
        found = signs(widget)
        g = glyphs(ascii)
        assert found[:2] == [g.cached] * 2 and found[5] == g.free
        assert not {g.cached, g.free} & set(found[2:5])
        assert f"{g.cached} cached" in lines_of(widget)[-1]


async def test_aggregate_cells_without_holders_tell_cached_from_free() -> None:
    frames = Frames(8000)
    frames.run("A", prompt_tokens=16 * 3, blocks=3)
    frames.run("B", prompt_tokens=16 * 6, blocks=6)
    frames.cache("A", 3)
    frames.cache("B", 6)
    frames.finish("B")
    view = View(state=frames.state)
    async with mounted(BlockMap(), view, 80, 20) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert widget.grid.per_cell == 7
        assert lines_of(widget)[1].split()[1].startswith("▃◇·")
        assert widget.describe(view, 3).plain.startswith("blocks 0–6: 3 of 7 used, 4 cached · block 3 ◇ cached")
        frames.finish("A")
        view.touch()
        widget.show(view)
        assert lines_of(widget)[1].split()[1].startswith("◇◇·")


async def test_what_can_be_hit_is_marked_where_there_is_room() -> None:
    _, view = story()
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        tiles = lines_of(widget)[1].split()
        # 2 has several owners, B and C; 3 can be hit; 4 is not full
        assert tiles[4:9] == ["C+", "2", "B°", "3", "B"]
        assert "° can be hit" in lines_of(widget)[-1] and "+ shared" in lines_of(widget)[-1]
    _, view = story(500)
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert lines_of(widget)[1].split()[3:7] == ["C+", "B", "B▄", "·"]
        assert "can be hit" not in lines_of(widget)[-1]
        view.colouring = "state"
        view.touch()
        widget.show(view)
        assert lines_of(widget)[1].split()[3:7] == ["▣°", "■°", "◧▄", "·"]
        assert "° can be hit" in lines_of(widget)[-1]


@pytest.mark.parametrize("colouring", COLOURINGS)
async def test_the_legend_has_only_what_is_there(colouring: str) -> None:
    frames = Frames(24)
    frames.run("A", blocks=2)
    view = View(state=frames.state, colouring=colouring)  # type: ignore[arg-type]
    async with mounted(BlockMap(), view, 160) as pilot:
        legend = pilot.app.widget.legend(view).plain  # type: ignore[attr-defined]
        assert not any(word in legend for word in ("cached", "can be hit", "+ shared", "copied"))


async def test_counts_of_the_heading() -> None:
    frames, view = story()
    async with mounted(BlockMap(), view, 80) as pilot:
        assert "3/24 12% used, 2 cached, 19 free" in lines_of(pilot.app.widget)[0]  # type: ignore[attr-defined]
    async with mounted(BlockMap(), view, 50) as pilot:
        line = assert_exact(pilot.app.widget)[0]  # type: ignore[attr-defined]
        assert "3/24 12%  ◇ 2  · 19" in line and "by owner" in line
    frames.frame(ev.CacheReset(blocks=4), ran=False)
    async with mounted(BlockMap(), view, 80) as pilot:
        assert "3/24 12% used, 21 free" in lines_of(pilot.app.widget)[0]  # type: ignore[attr-defined]


async def test_words_about_cached_and_shared_blocks() -> None:
    frames, view = story()
    frames.share("D", "B", 1)
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert widget.describe(view, 0).plain == "block 0 ◇ cached, its content can be hit"
        assert widget.describe(view, 5).plain == "block 5 · free"
        shared = "block 2 ▣ shared, 3 refs, can be hit: B B, C C, D D [0] tokens 0–15, 16/16 filled"
        assert widget.describe(view, 2).plain == shared
        assert widget.describe(view, 3).plain.startswith("block 3 ■ used, 1 ref, can be hit: B B [1]")
        assert "can be hit" not in widget.describe(view, 4).plain


async def test_a_block_is_of_one_who_still_holds_it() -> None:
    frames, view = story()
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert lines_of(widget)[1].split()[4] == "C+"
        frames.finish("C")
        view.touch()
        widget.show(view)
        assert lines_of(widget)[1].split()[4] == "B°"


def test_owners_are_put_right_at_the_first_look_and_later() -> None:
    frames, _ = story()
    frames.finish("C")
    state = frames.state
    assert state.owner[2] == 1  # the last of those who still hold it
    first = Watch()
    first.look(state)
    assert first.owner[2] == 1
    frames.share("D", "B", 2)
    changed = first.look(state)
    assert changed is not None and {2, 3} <= set(changed.tolist())
    assert first.owner[2:4].tolist() == [3, 3]
    frames.preempt("D", "B")
    first.look(state)
    assert first.owner[2:4].tolist() == [1, 1]
    frames.finish("B")
    first.look(state)
    assert first.owner[2:5].tolist() == [FREE] * 3


def test_a_further_reference_does_not_make_a_block_young() -> None:
    frames, _ = story()
    watch = Watch()
    watch.look(frames.state)
    frames.decode("B")
    frames.share("D", "B", 2)
    watch.look(frames.state)
    assert watch.ages(frames.state.step)[2] == 2


async def test_a_selected_request_lights_shared_blocks() -> None:
    _, view = story()
    view.selected = "B"
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert lines_of(widget)[1].split()[4] == "B+"


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("colouring", COLOURINGS)
async def test_a_copy_on_write_is_marked_for_a_moment(ascii: bool, colouring: str) -> None:
    frames, view = story()
    view.ascii, view.colouring = ascii, colouring  # type: ignore[assignment]
    frames.frame(ev.CopiedOnWrite(id="C", source=2, target=9, logical=0))
    g = glyphs(ascii)
    async with mounted(BlockMap(), view, 160) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert g.copied in lines_of(widget)[1]
        assert f"{g.copied} copied on write" in lines_of(widget)[-1]
        assert "C copied from block 2 at step 7" in widget.describe(view, 9).plain
        for _ in range(MARKED_STEPS):
            frames.decode("B")
        view.touch()
        widget.show(view)
        assert g.copied in lines_of(widget)[1]  # quick steps: it would hardly be seen
        frames.frame(seconds=MARKED_SECONDS)
        view.touch()
        widget.show(view)
        assert g.copied not in lines_of(widget)[1] + lines_of(widget)[-1]


async def test_only_the_row_of_a_block_that_can_be_hit_now_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, view = story(500)
    view.colouring = "state"
    frames.frame(ev.BlocksTaken(id="B", blocks=[100]))
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        asked: list[object] = []
        monkeypatch.setattr(widget, "refresh", lambda *regions, **_: asked.extend(regions or ["all"]))
        frames.frame(ev.Cached(id="B", blocks=[100]))
        view.touch()
        widget.show(view)
        rows = sorted(y for region in asked for y in range(region.y, region.bottom))  # type: ignore[attr-defined]
        assert rows == [1 + widget.grid.row_of(100)]


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
async def test_cached_differs_in_style_from_free_too(theme: str) -> None:
    _, view = story(500)
    async with mounted(BlockMap(), view, theme=theme) as pilot:
        styles = {s.text.strip()[:1]: str(s.style) for s in strips_of(pilot.app.widget)[1]}  # type: ignore[attr-defined]
        assert styles["◇"] != styles["·"]
