"""Which panels the overview shows at a size, where, and how tall. Pure arithmetic, so testable at any size.

When there is too little room, panels leave in this order: charts, finished, events, host map, waiting, running, map. A
panel that the person asked for by its key leaves last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

MIN_WIDTH, MIN_HEIGHT = 60, 16
HIDE_ORDER = ("charts", "finished", "events", "host", "waiting", "running", "map")
_CHROME = 4  # header, step strip, prompt bar, footer; a taller header is taken off by the caller
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Size:
    """Rows a panel needs with its title line, how it shares what is left, and from where on more is no use."""

    least: int
    weight: int
    most: int = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of panels: its share of the width, and rows per panel from top to bottom."""

    weight: int
    panels: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`too_small` means: show nothing but a message. `hidden` are wanted panels without room."""

    columns: tuple[Column, ...] = ()
    hidden: tuple[str, ...] = ()
    too_small: bool = False

    @property
    def visible(self) -> frozenset[str]:
        return frozenset(name for column in self.columns for name, _ in column.panels)


_SIZES = {
    "map": Size(5, 7),
    "host": Size(4, 3, 14),
    "running": Size(4, 5),
    "waiting": Size(4, 4),
    "finished": Size(4, 3),
    "events": Size(4, 5),
    "charts": Size(6, 4, 22),
}

# Per class of width: columns, each a share of the width and its panels from top to bottom.
_NARROW = ((1, ("map", "host", "running", "waiting", "finished", "events", "charts")),)
_MEDIUM = ((9, ("map", "host", "charts", "events")), (11, ("running", "waiting", "finished")))
_WIDE = ((8, ("map", "host", "charts")), (8, ("running", "waiting", "finished")), (6, ("events",)))


def plan(
    width: int,
    height: int,
    shown: Sequence[str],
    *,
    asked: Sequence[str] = (),
    only: str | None = None,
    chrome: int = _CHROME,
    needs: Mapping[str, int] = _NOTHING,
) -> Layout:
    """Lay out the `shown` panels. `asked` are those to keep longest, latest first; `only` is a maximised panel.

    `needs` says beyond how many rows a panel has nothing more to show.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return Layout(too_small=True)
    rows = height - chrome
    if only is not None:
        return Layout((Column(1, ((only, rows),)),))
    shape = _NARROW if width < 100 else _MEDIUM if width < 160 else _WIDE
    columns: list[Column] = []
    hidden: list[str] = []
    for weight, names in shape:
        wanted = [name for name in names if name in shown]
        kept = _that_fit(wanted, rows, asked)
        hidden += [name for name in wanted if name not in kept]
        if kept:
            columns.append(Column(weight, tuple(zip(kept, _share(kept, rows, needs), strict=True))))
    return Layout(tuple(columns), tuple(hidden))


def _that_fit(names: list[str], rows: int, asked: Sequence[str]) -> list[str]:
    kept = list(names)
    leave = sorted(names, key=lambda name: (name in asked, HIDE_ORDER.index(name)))
    while kept and sum(_SIZES[name].least for name in kept) > rows:
        kept.remove(leave.pop(0))
    return kept


def _share(names: list[str], rows: int, needs: Mapping[str, int]) -> list[int]:
    """Rows per panel: its least, and the rest by weight up to its most."""
    most = {name: max(_SIZES[name].least, needs.get(name, _SIZES[name].most)) for name in names}
    heights = {name: _SIZES[name].least for name in names}
    left = rows - sum(heights.values())
    while left > 0:
        open_ = [name for name in names if heights[name] < most[name]]
        if not open_:
            heights[names[0]] += left
            break
        # one row at a time to whoever has least for its weight: exact, and never more than a screen of rows
        shortest = min(open_, key=lambda name: heights[name] / _SIZES[name].weight)
        heights[shortest] += 1
        left -= 1
    return [heights[name] for name in names]
