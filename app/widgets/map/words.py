"""What a block map says in words: its heading, its legend, and what is in one block."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from textual.content import Content
from textual.style import Style as TextualStyle

from vtop.app.live.view import View
from vtop.app.terminal.colours import Palette
from vtop.app.terminal.glyphs import glyphs, letter
from vtop.app.widgets.map.grid import Grid
from vtop.app.widgets.map.pools import DEVICE, HOST, DevicePool
from vtop.app.widgets.reasons import short_id
from vtop.app.widgets.rows import Piece, cells_of
from vtop.app.widgets.units import count
from vtop.engine.state.fold import EngineState, RequestView

OWNERS_NAMED = 24  # in a legend
ID_IN_LEGEND = 12
_AROUND_FACTS = 26  # cells of a heading for its title, rulers and the name of the colouring


@dataclass(frozen=True, slots=True)
class Present:
    """Which of the rarer signs a map shows; the legend has no others."""

    cached: bool = False
    kept: bool = False
    several: bool = False
    copied: bool = False
    moved_out: bool = False
    moved_in: bool = False


def move_text(state: EngineState, pool: DevicePool, block: int) -> str:
    """`, A swapped in from host block 7 at step 412`, if the latest moves touched the block; the latest one first."""
    out, back, copies = state.moved_out, state.moved_in, pool.copied(state)
    host = pool is HOST
    found: list[tuple[int, int, str]] = []
    for move in out.made:
        if pool.out_block(move) == block:
            end = f"out from block {move.source}" if host else f"out to host block {move.target}"
            found.append((out.step, move.number, f"swapped {end}"))
    for move in back.made:
        if pool.in_block(move) == block:
            end = f"in to block {move.target}" if host else f"in from host block {move.source}"
            found.append((back.step, move.number, f"swapped {end}"))
    if copies is not None:
        found += [(copies.step, m.number, f"copied from block {m.source}") for m in copies.made if m.target == block]
    found.sort(reverse=True)
    return "".join(f", {letter(number)} {what} at step {step}" for step, number, what in found)


def block_text(view: View, block: int, pool: DevicePool = DEVICE) -> str:
    """`block 17 used, 1 ref, can be hit: req-3 [2] tokens 32–47, 16/16 filled`. Ids are cleaned.

    Owners that hold the block at the same place of their tables are named together.
    """
    state = view.state
    if state is None or not 0 <= block < len(pool.owner(state)):
        return ""
    g = glyphs(view.ascii)
    refs, kept = int(pool.ref_count(state)[block]), bool(pool.hashed(state)[block])
    moved = move_text(state, pool, block)
    if refs == 0:
        what = f"{g.cached} cached, its content can be hit" if kept else f"{g.free} free"
        return f"{pool.word} {block} {what}{moved}"
    size = state.block_size
    places: dict[str, list[str]] = {}
    for request, index, logical in pool.holders(state, block):
        seq = request.sequences[index]
        filled = size if kept else min(size, max(0, seq.num_computed - logical * size))
        where = f"[{logical}]" if len(request.sequences) == 1 else f"[{index}:{logical}]"
        first = logical * size
        place = f"{where} tokens {first}{g.upto}{first + size - 1}, {filled}/{size} filled"
        places.setdefault(place, []).append(f"{letter(request.number)} {short_id(request.id, view.ascii)}")
    kind = f"{g.shared} shared, {refs} refs" if refs > 1 else f"{g.used} used, 1 ref"
    hit = ", can be hit" if kept else ""
    return f"{pool.word} {block} {kind}{hit}{moved}: " + "; ".join(
        f"{', '.join(who)} {place}" for place, who in places.items()
    )


def cell_text(view: View, grid: Grid, block: int, pool: DevicePool = DEVICE) -> str:
    """Like `block_text`; in an aggregate, how much of the cell's blocks are held comes first."""
    text = block_text(view, block, pool)
    state = view.state
    if state is None or grid.per_cell == 1:
        return text
    first = block // grid.per_cell * grid.per_cell
    last = min(first + grid.per_cell, len(pool.owner(state))) - 1
    held = pool.ref_count(state)[first : last + 1] > 0
    used, cached = int(held.sum()), int((pool.hashed(state)[first : last + 1] & ~held).sum())
    g = glyphs(view.ascii)
    more = f", {cached} cached" if cached else ""
    return f"{pool.word}s {first}{g.upto}{last}: {used} of {last - first + 1} used{more} {g.dot} {text}"


def legend_groups(
    view: View, grid: Grid, palette: Palette, present: Present, pool: DevicePool = DEVICE
) -> list[list[Piece]]:
    """Groups of pieces; a group is shown whole or not at all."""
    g = glyphs(view.ascii)
    plain = palette.muted
    groups: list[list[Piece]] = []
    aggregate = grid.per_cell > 1
    if aggregate:
        groups.append(
            [
                (f"{g.fill[0]}{g.fill[3]}{g.fill[7]}", palette.base),
                (f" used 1/8{g.upto}1/2{g.upto}all", plain),
            ]
        )
    groups.append([(g.free, palette.faint), (" free", plain)])
    if present.cached:
        groups.append([(g.cached, palette.muted), (" cached", plain)])
    if present.copied:
        groups.append([(g.copied, palette.tiles[5]), (" copied on write", plain)])
    if present.moved_out:
        groups.append([(g.to_host, palette.warn), (" swapped out", plain)])
    if present.moved_in:
        groups.append([(g.from_host, palette.warn), (" swapped in", plain)])
    if present.several:
        groups.append([(g.others, palette.base), (" shared", plain)])
    if present.kept:
        groups.append([(g.kept, palette.base), (" can be hit", plain)])
    tiles = palette.owners if aggregate else palette.tiles
    if view.colouring == "state":
        for symbol, style, word in (
            (g.used, tiles[0], "used"),
            (g.open, tiles[2], "not full"),
            (g.shared, tiles[4], "shared"),
            (g.freed, palette.warn, "just freed"),
        ):
            if not (aggregate and word in ("not full", "just freed")):
                groups.append([("" if aggregate else symbol, style), (word if aggregate else f" {word}", style)])
    elif view.colouring == "age":
        for number, word in (
            (0, "this step"),
            (1, "1"),
            (2, "2"),
            (3, "4"),
            (5, "16"),
            (7, "64"),
            (9, "256+ steps held"),
        ):
            groups.append([(str(number), palette.ages[number]), (f" {word}", plain)])
    elif view.colouring == "refs":
        for text, style, word in (
            ("1", tiles[0], "reference"),
            ("2", tiles[1], "shared"),
            ("4", tiles[7], "and more"),
        ):
            groups.append([(text, style), (f" {word}", plain)])
    else:
        if aggregate:
            groups.append([(g.used, palette.muted), (" several owners", plain)])
        groups.extend(_owner_groups(view, palette, pool))
        if grid.tiles:
            groups.append([(g.line * 2, palette.base), (" tokens in it", plain)])
        elif grid.cell_width > 1 and not aggregate:
            groups.append([(f"{g.fill[0]}{g.fill[3]}{g.fill[6]}", palette.base), (" filling", plain)])
    return groups


def _owner_groups(view: View, palette: Palette, pool: DevicePool) -> list[list[Piece]]:
    state = view.state
    if state is None:
        return []

    def size(request: RequestView) -> int:
        sequences = request.sequences
        return len(pool.table(sequences[0])) if len(sequences) == 1 else sum(len(pool.table(s)) for s in sequences)

    biggest = heapq.nlargest(OWNERS_NAMED, pool.requests(state), key=size)
    return [
        [
            (letter(r.number), palette.tiles[r.number % len(palette.tiles)]),
            (" " + short_id(r.id, view.ascii, ID_IN_LEGEND), palette.muted),
        ]
        for r in sorted(biggest, key=lambda r: r.number)
    ]


def heading_pieces(
    view: View, grid: Grid, palette: Palette, width: int, pool: DevicePool = DEVICE
) -> tuple[list[Piece], list[Piece]]:
    """Facts after the title, and notes at the right end. Used, cached and free add up to the pool."""
    state = view.state
    if state is None:
        return [], []
    used, total, cached = pool.used(state), len(pool.owner(state)), pool.cached(state)
    per_cent = 100 * used / total if total else 0.0
    style = palette.bad if per_cent >= 95 else palette.warn if per_cent >= 80 else palette.good
    facts: list[Piece] = [(f"  {count(used)}/{count(total)}", palette.base), (f" {per_cent:.0f}%", style)]
    g = glyphs(view.ascii)
    free = count(total - used - cached)
    words: list[Piece] = [(f" used, {count(cached)} cached" if cached else " used", palette.base)]
    words.append((f", {free} free", palette.base))
    scale = f"1 cell = {grid.per_cell} blocks {g.dot} " if grid.per_cell > 1 else ""
    if cells_of([*facts, *words]) + len(scale) + _AROUND_FACTS <= width:
        facts += words
    elif cached:
        facts += [(f"  {g.cached} {count(cached)}", palette.muted), (f"  {g.free} {free}", palette.muted)]
    notes: list[Piece] = [(scale, palette.muted)] if scale else []
    notes.append((f"by {view.colouring}", palette.base))
    notes.append((f" {g.dot} {state.block_size} tok/blk", palette.muted))
    return facts, notes


def to_content(groups: list[list[Piece]], gap: str = "  ") -> Content:
    """Pieces as Content, for widgets that show text. Never markup."""
    parts: list[Content] = []
    for group in groups:
        spans = [Content.styled(text, TextualStyle.from_rich_style(style)) for text, style in group]
        parts.append(Content("").join(spans))
    return Content(gap).join(parts)
