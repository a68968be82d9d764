"""The map of the host pool, and the marks of what just moved between the pools."""

from __future__ import annotations

import pytest

from vtop.app.live.view import COLOURINGS, View
from vtop.app.terminal.glyphs import glyphs
from vtop.app.widgets.map.map import BlockMap, HostMap
from vtop.app.widgets.map.pools import MARKED_SECONDS, MARKED_STEPS
from vtop.engine import events as ev
from vtop_support.widget_frames import Frames
from vtop_support.widget_harness import OneWidget, assert_exact, lines_of, mounted, strips_of


def swapped(num_blocks: int = 24, host: int = 48) -> tuple[Frames, View]:
    """Second was in 3 and 4 and is in host blocks 7 and 9; first runs in 0, 1, 2."""
    frames = Frames(num_blocks, num_host_blocks=host)
    frames.run("first", prompt_tokens=40, blocks=3)
    frames.run("second", prompt_tokens=24, blocks=2)
    frames.swap_out("second", "first", [7, 9])
    return frames, View(state=frames.state)


def later(frames: Frames, view: View) -> None:
    """The marks of moves are gone."""
    for _ in range(MARKED_STEPS):
        frames.frame(seconds=MARKED_SECONDS)
    view.touch()


def cell(widget: BlockMap, block: int) -> str:
    """First line of the cell of a block, without the gap behind a tile."""
    grid = widget.grid
    at = block // grid.per_cell % grid.columns
    text = lines_of(widget)[1 + grid.row_of(block)][grid.gutter + at * grid.cell_width :][: grid.cell_width]
    return text.strip()


def test_there_is_nothing_to_show_until_something_was_swapped() -> None:
    frames, view = swapped()
    assert HostMap.has_content(view)
    frames.swap_in("second", [3, 4])
    assert HostMap.has_content(view)  # it was used once
    for host in (0, 48):
        unused = Frames(24, num_host_blocks=host)
        unused.run("first")
        assert not HostMap.has_content(View(state=unused.state))
    assert not HostMap.has_content(View())


@pytest.mark.parametrize(("width", "height"), [(60, 4), (80, 6), (120, 12), (200, 20)])
@pytest.mark.parametrize("host", [2, 48, 700, 70_000])
@pytest.mark.parametrize("colouring", COLOURINGS)
@pytest.mark.parametrize("ascii", [False, True])
async def test_rows_are_exact(width: int, height: int, host: int, colouring: str, ascii: bool) -> None:
    frames = Frames(24, num_host_blocks=host)
    frames.run("first")
    frames.run("second", blocks=2)
    frames.swap_out("second", "first", [0, 1])
    view = View(state=frames.state, colouring=colouring, ascii=ascii, selected="second")  # type: ignore[arg-type]
    async with mounted(HostMap(), view, width, height) as pilot:
        lines = assert_exact(pilot.app.widget)  # type: ignore[attr-defined]
        assert f"HOST POOL  2/{host if host < 1000 else '70 000'}" in lines[0]
        assert not ascii or all(line.isascii() for line in lines)
        scale = f"1 cell = {pilot.app.widget.grid.per_cell} blocks"  # type: ignore[attr-defined]
        assert (scale in lines[0]) == (pilot.app.widget.grid.per_cell > 1)  # type: ignore[attr-defined]


async def test_cells_of_owners_and_counts() -> None:
    frames, view = swapped(host=700)
    later(frames, view)
    async with mounted(HostMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert "HOST POOL  2/700 0% used, 698 free" in lines_of(widget)[0]
        assert [cell(widget, block) for block in (6, 7, 8, 9, 10)] == ["·", "B", "·", "B▄", "·"]
        assert "B second" in widget.legend(view).plain and "first" not in widget.legend(view).plain
        frames.swap_in("second", [3, 4])
        later(frames, view)
        widget.show(view)
        assert [cell(widget, block) for block in (7, 9)] == ["·", "·"]
        assert "HOST POOL  0/700" in lines_of(widget)[0]


async def test_a_request_has_one_colour_on_both_maps() -> None:
    frames, view = swapped(700, 700)
    frames.run("third", blocks=1)
    later(frames, view)
    frames.swap_out("first", "third", [20, 21, 22])
    later(frames, view)

    def style_of(widget: BlockMap, letter: str) -> str:
        found = {str(s.style) for strip in strips_of(widget)[1:-1] for s in strip if s.text.strip().startswith(letter)}
        assert len(found) == 1
        return found.pop()

    async with mounted(HostMap(), view) as pilot:
        on_host = style_of(pilot.app.widget, "A")  # type: ignore[attr-defined]
        assert on_host != style_of(pilot.app.widget, "B")  # type: ignore[attr-defined]
    frames.swap_in("first", [0, 1, 2])
    later(frames, view)
    async with mounted(BlockMap(), view) as pilot:
        assert style_of(pilot.app.widget, "A") == on_host  # type: ignore[attr-defined]


@pytest.mark.parametrize("no_color", [False, True])
async def test_a_selected_request_is_lit(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    frames, view = swapped(700, 700)
    frames.run("third", blocks=1)
    frames.swap_out("first", "third", [20, 21, 22])
    later(frames, view)
    view.selected, view.selected_block = "first", 7
    async with mounted(HostMap(), view) as pilot:
        strips = strips_of(pilot.app.widget)[1:-1]  # type: ignore[attr-defined]
        bold = "".join(s.text for strip in strips for s in strip if s.style is not None and s.style.bold)
        assert bold.count("A") == 3 and "B" not in bold  # block 7 of the device is selected, not of the host


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("colouring", COLOURINGS)
@pytest.mark.parametrize("blocks", [24, 200, 500, 1500, 8000])
async def test_moves_are_marked_on_both_maps_for_a_moment(ascii: bool, colouring: str, blocks: int) -> None:
    g = glyphs(ascii)
    for make, out, back in ((BlockMap, 3, 5), (HostMap, 9, 9)):
        frames, view = swapped(blocks, blocks)
        view.colouring, view.ascii = colouring, ascii  # type: ignore[assignment]
        async with mounted(make(), view, 160, 20) as pilot:
            widget = pilot.app.widget  # type: ignore[attr-defined]
            assert g.to_host in cell(widget, out) and g.from_host not in cell(widget, out)
            assert f"{g.to_host} swapped out" in lines_of(widget)[-1]
            frames.swap_in("second", [5, 6])
            view.touch()
            widget.show(view)
            assert g.from_host in cell(widget, back)  # the latest move wins
            assert f"{g.from_host} swapped in" in lines_of(widget)[-1]
            assert_exact(widget)
            later(frames, view)
            widget.show(view)
            rest = "".join(cell(widget, block) for block in (out, back, 6, 7))
            assert not {g.to_host, g.from_host} & set(rest)
            assert "swapped" not in lines_of(widget)[-1]


async def test_a_block_taken_by_another_at_once_shows_both() -> None:
    frames, view = swapped(200)
    frames.frame(ev.BlocksTaken(id="first", blocks=[3]))
    view.touch()
    async with mounted(BlockMap(), view) as pilot:
        assert cell(pilot.app.widget, 3) == "A↓"  # type: ignore[attr-defined]


async def test_words_name_the_move() -> None:
    frames, view = swapped()
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert widget.describe(view, 3).plain == "block 3 · free, B swapped out to host block 7 at step 3"
    async with mounted(HostMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        found = widget.describe(view, 9).plain
        assert found.startswith("host block 9 ■ used, 1 ref, B swapped out from block 4 at step 3: B second [1] tokens")
        assert "8/16 filled" in found and widget.describe(view, 48).plain == ""
        frames.swap_in("second", [5, 6])
        view.touch()
        widget.show(view)
        words = "host block 7 · free, B swapped in to block 5 at step 4, B swapped out from block 3 at step 3"
        assert widget.describe(view, 7).plain == words
    async with mounted(BlockMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        assert "B swapped in from host block 7 at step 4: B second [0]" in widget.describe(view, 5).plain
        assert "swapped" not in widget.describe(view, 0).plain


async def test_pointing_and_picking() -> None:
    _, view = swapped()
    async with mounted(HostMap(), view) as pilot:
        app = pilot.app
        assert isinstance(app, OneWidget) and isinstance(app.widget, HostMap)
        grid = app.widget.grid
        where = (grid.gutter + 7 % grid.columns * grid.cell_width, 1 + grid.row_of(7))
        await pilot.hover(app.widget, offset=where)
        assert lines_of(app.widget)[-1].split()[:3] == ["host", "block", "7"]
        await pilot.click(app.widget, offset=where)
        assert [m.block for m in app.seen if isinstance(m, HostMap.Picked)] == [7]


async def test_only_changed_rows_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, view = swapped(200, 700)
    later(frames, view)
    async with mounted(HostMap(), view) as pilot:
        widget = pilot.app.widget  # type: ignore[attr-defined]
        asked: list[object] = []
        monkeypatch.setattr(widget, "refresh", lambda *regions, **_: asked.extend(regions or ["all"]))
        frames.decode("first")
        view.touch()
        widget.show(view)
        assert asked == []
        frames.finish("second")
        view.touch()
        widget.show(view)
        rows = sorted(y for region in asked for y in range(region.y, region.bottom))  # type: ignore[attr-defined]
        assert rows == [0, 1 + widget.grid.row_of(7), 23]  # heading, both blocks, the owner left the legend


def test_a_copy_of_the_state_stands_still() -> None:
    frames, _ = swapped()
    still = frames.state.copy()
    frames.swap_in("second", [5, 6])
    assert still.host_owner[[7, 9]].tolist() == [1, 1] and frames.state.host_owner.max() == -1
    assert still.moved_in.made == [] and [tuple(move) for move in still.moved_out.made] == [(1, 3, 7), (1, 4, 9)]
    assert [tuple(move) for move in frames.state.moved_in.made] == [(1, 7, 5), (1, 9, 6)]
