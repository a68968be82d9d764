"""Where the cells of the block map stand, and which blocks they show."""

from __future__ import annotations

from dataclasses import dataclass

GUTTER_FROM = 40  # columns: narrower maps have no block numbers at the left
WIDEST_CELL = 3


@dataclass(frozen=True, slots=True)
class Grid:
    """`columns` x `rows` cells of `cell_width` columns, each for `per_cell` blocks, right of a gutter."""

    blocks: int
    per_cell: int
    columns: int
    rows: int
    cell_width: int
    gutter: int

    @property
    def cells(self) -> int:
        return -(-self.blocks // self.per_cell)

    def block_at(self, x: int, y: int) -> int | None:
        """The first block of the cell at a screen position inside the map."""
        column = (x - self.gutter) // self.cell_width
        if x < self.gutter or column >= self.columns or not 0 <= y < self.rows:
            return None
        block = (y * self.columns + column) * self.per_cell
        return block if block < self.blocks else None

    def row_of(self, block: int) -> int:
        return block // self.per_cell // self.columns


def make_grid(blocks: int, width: int, height: int, letters: bool) -> Grid:
    """The widest cells with which every block has its own; else so many blocks a cell that all fit.

    Columns are a multiple of 8 when there is room, so that the numbers in the gutter are round.
    `letters`: cells that stand for several blocks get a second column, for the owner's letter.
    """
    blocks, width, height = max(1, blocks), max(1, width), max(1, height)
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
