"""Charts of the recent past: use of the KV pool, running, waiting, tokens per second; drawn as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style

from vtop.app.live.view import History, View, latest
from vtop.app.terminal.colours import Palette
from vtop.app.widgets.panel import Panel, Rows
from vtop.app.widgets.rows import Row, heading
from vtop.app.widgets.units import count, rate, share

_DOTS: Final = np.array(
    [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint16
)  # [row from the top, column]
_BLANK: Final = 0x2800
_ASCII_STEPS: Final = " .:|"
GAP: Final = 2
AXIS_FROM: Final = 4  # rows of a chart with a time axis
LOWEST: Final = 2  # rows of a chart with its heading
BEST_WIDTH: Final = 28
FADE: Final = 0.55  # of the colour is gone at the foot of a chart: the upper edge is what matters


def area(values: Sequence[float], width: int, height: int, top: float, *, ascii: bool = False) -> list[str]:
    """An area of braille dots, two values and four levels to a cell; ASCII bars without braille.

    `height` rows of `width` characters: the last values at the right, `top` at the upper edge.

    Values that are not finite leave a gap; anything above zero shows at least one dot.
    """
    if width <= 0 or height <= 0:
        return []
    per_cell, levels = (1, len(_ASCII_STEPS) - 1) if ascii else (2, 4)
    heights = _levels(values, width * per_cell, height * levels, top)
    if ascii:
        rows = [np.clip(heights - (height - 1 - y) * levels, 0, levels) for y in range(height)]
        return ["".join(_ASCII_STEPS[step] for step in row.tolist()) for row in rows]
    from_top = height * levels - np.arange(height * levels)[:, None]
    lit = heights[None, :] >= from_top
    cells = lit.reshape(height, 4, width, 2) * _DOTS[None, :, None, :]
    codes = cells.sum(axis=(1, 3)) + _BLANK
    return ["".join(map(chr, row)).replace(chr(_BLANK), " ") for row in codes.tolist()]


def _levels(values: Sequence[float], columns: int, steps: int, top: float) -> npt.NDArray[np.int64]:
    """Height of each column in steps; columns before the first value are 0."""
    recent = np.asarray(values[-columns:], np.float64)
    heights = np.zeros(columns, np.int64)
    if len(recent) and top > 0 and math.isfinite(top):
        with np.errstate(invalid="ignore", over="ignore"):
            share = np.nan_to_num(np.where(np.isfinite(recent), recent, 0.0) / top)
        scaled = np.ceil(np.clip(share, 0.0, 1.0) * steps).astype(np.int64)
        heights[columns - len(recent) :] = scaled
    return heights


def time_axis(width: int, seconds: float) -> str:
    """`width` characters below an area that ends now and began `seconds` ago."""
    start, middle, end = f"-{seconds_text(seconds)}", f"-{seconds_text(seconds / 2)}", "now"
    if width < len(start) + 1 + len(end):
        return end.rjust(width)[:width]
    row = start.ljust(width - len(end)) + end
    at = width // 2 - len(middle) // 2
    if at > len(start) + 2 and at + len(middle) + 2 < width - len(end):
        row = row[:at] + middle + row[at + len(middle) :]
    return row


def seconds_text(seconds: float) -> str:
    """`7.5s`, `30s`."""
    return f"{seconds:.0f}s" if seconds >= 10 or seconds == round(seconds) else f"{seconds:.1f}s"


def round_top(value: float) -> float:
    """A round number at or above `value` with a little room, so that a scale stays put while values move."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        (
            step * power
            for step in (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
            if value <= step * power * (1 + 1e-9)
        ),
        10.0 * power,
    )


def largest(values: Sequence[float]) -> float:
    """The largest finite value; 0 when there is none."""
    return max((v for v in values if math.isfinite(v)), default=0.0)


@dataclass(frozen=True, slots=True)
class Series:
    title: str
    values: Callable[[History], list[float]]
    text: Callable[[float], str]
    tone: str  # name of a style of the palette
    live: Callable[[View], float]  # what it is now: the last point may be a moment old
    top: float | None = None  # of the scale; None goes by the largest value
    swapped: bool = False  # says how many are swapped out beside it: they wait too, elsewhere


def _per_cent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _used_now(view: View) -> float:
    return share(view.state.used, view.state.num_blocks) if view.state is not None else 0.0


SERIES: Final = (
    Series("KV used", lambda h: h.kv_used, _per_cent, "good", _used_now, 1.0),
    Series("tok/s", lambda h: h.tokens_per_second, rate, "accent", lambda v: v.tokens_per_second),
    Series("running", lambda h: h.running, count, "good", lambda v: len(v.state.running) if v.state else 0),
    Series(
        "waiting", lambda h: h.waiting, count, "warn", lambda v: len(v.state.waiting) if v.state else 0, swapped=True
    ),
)


class Charts(Panel):
    """As many of the four charts as have room, side by side or in two rows; `waiting` is dropped first."""

    DEFAULT_CSS = """
    Charts { height: 6; }
    """

    def __init__(self, series: Sequence[Series] = SERIES, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._series = tuple(series)

    def build(self, view: View, width: int, height: int) -> Rows:
        number = len(self._series)
        across = max(1, min(number, (width + GAP) // (BEST_WIDTH + GAP)))
        if across < number:
            across = max(a for a in range(1, across + 1) if number % a == 0)
        down = max(1, min(-(-number // across), height // LOWEST))
        rows: Rows = []
        for line in range(down):
            high = (height - len(rows)) // (down - line)
            shown = self._series[line * across : (line + 1) * across]
            rows.extend(self._band(shown, view, width, high, across))
        return rows

    def _band(self, shown: Sequence[Series], view: View, width: int, high: int, across: int) -> Rows:
        palette = self.palette
        rows: Rows = [[] for _ in range(high)]
        left = 0
        for column in range(across):
            right = (width + GAP) * (column + 1) // across - GAP
            if column < len(shown):
                block = self._chart(shown[column], view, right - left, high)
            else:
                block = [[Segment(" " * (right - left), palette.base)]] * high
            for row, part in zip(rows, block, strict=True):
                row.extend(part)
                if column < across - 1:
                    row.append(Segment(" " * GAP, palette.base))
            left = right + GAP
        return rows

    def _chart(self, series: Series, view: View, width: int, high: int) -> Rows:
        palette = self.palette
        values = series.values(view.history)
        columns = width if view.ascii else 2 * width
        now = latest(values) if view.state is None else series.live(view)
        peak = max(now, largest(values[-columns:]))
        top = series.top if series.top is not None else round_top(peak)
        tone: Style = getattr(palette, series.tone)
        facts = [(f"  {series.text(now)}", tone)]
        out = len(view.state.swapped) if series.swapped and view.state is not None else 0
        if out:
            facts.append((f" {self.glyphs.swap_out} {count(out)} swapped", palette.warn))
        notes = [(f"max {series.text(peak)}", palette.muted)]
        seconds = columns * view.history.span
        axis = high >= AXIS_FROM
        if not axis:
            notes.append((f" in {seconds_text(seconds)}", palette.muted))
        rows: Rows = [heading(series.title, facts, notes, width, palette, False, view.ascii)]
        drawn = high - 1 - axis
        for y, text in enumerate(area(values, width, drawn, top, ascii=view.ascii)):
            depth = y / drawn
            style = _level_style(1 - depth, palette) if series.top is not None else tone
            style = palette.fade(style, FADE * depth)
            rows.append(Row(width, view.ascii).put(text, style).done(palette.base))
        if axis:
            rows.append(Row(width, view.ascii).put(time_axis(width, seconds), palette.faint).done(palette.base))
        return rows


def _level_style(share: float, palette: Palette) -> Style:
    """Of a row of a chart with a known top: the upper edge of the row says how full that is."""
    return palette.bad if share > 0.9 else palette.warn if share > 0.7 else palette.good
