"""Where the cells of the block map stand, and which blocks they show."""

from __future__ import annotations

from dataclasses import dataclass

GUTTER_FROM = 40  # columns: narrower maps have no block numbers at the left
WIDEST_CELL = 3
TILE_MARGIN = 2  # columns left of tiles, which carry their own numbers
# Columns and rows of a tile with the gap to its neighbours, largest first.
TILES = ((9, 3), (7, 3), (7, 2), (5, 2), (4, 2))


@dataclass(frozen=True, slots=True)
class Grid:
    """`columns` x `rows` cells, each for `per_cell` blocks and `cell_width` x `cell_height` on the screen."""

    blocks: int
    per_cell: int
    columns: int
    rows: int
    cell_width: int
    gutter: int
    cell_height: int = 1

    @property
    def tiles(self) -> bool:
        """Cells are big enough for a number and a bar."""
        return self.cell_height > 1

    def block_at(self, x: int, y: int) -> int | None:
        """The first block of the cell at a screen position inside the map."""
        column, row = (x - self.gutter) // self.cell_width, y // self.cell_height
        if x < self.gutter or column >= self.columns or not 0 <= row < self.rows:
            return None
        block = (row * self.columns + column) * self.per_cell
        return block if block < self.blocks else None

    def row_of(self, block: int) -> int:
        """First screen row of the cell of a block."""
        return block // self.per_cell // self.columns * self.cell_height


def make_grid(blocks: int, width: int, height: int, letters: bool) -> Grid:
    """The largest cells with which every block has its own; else so many blocks a cell that all fit.

    Columns are a multiple of 8 (tiles: 4) when there is room, so that the numbers at the left are round.
    `letters`: cells that stand for several blocks get a second column, for the owner's letter.
    """
    blocks, width, height = max(1, blocks), max(1, width), max(1, height)
    for tile_width, tile_height in TILES:
        most = (width - TILE_MARGIN) // tile_width
        if most < 2 or len(str(blocks - 1)) > tile_width - 2:
            continue
        for across in (most - most % 4, most):
            if across and -(-blocks // across) * tile_height <= height:
                return Grid(blocks, 1, across, -(-blocks // across), tile_width, TILE_MARGIN, tile_height)
    gutter = len(str(blocks - 1)) + 1 if width >= GUTTER_FROM else 0
    room = width - gutter

    def columns(cell_width: int) -> int:
        fit = max(1, room // cell_width)
        return fit - fit % 8 if fit >= 16 else fit

    for cell_width in range(WIDEST_CELL, 0, -1):
        across = columns(cell_width)
        if cell_width <= room and blocks <= across * height:
            return Grid(blocks, 1, across, -(-blocks // across), cell_width, gutter)
    cell_width = 2 if letters and room >= 2 else 1
    across = columns(cell_width)
    per_cell = -(-blocks // (across * height))
    return Grid(blocks, per_cell, across, -(-blocks // (per_cell * across)), cell_width, gutter)
