"""A chart as text: an area of braille dots, two values and four levels to a cell; ASCII bars without braille."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_DOTS: Final = np.array(
    [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint16
)  # [row from the top, column]
_BLANK: Final = 0x2800
_ASCII_STEPS: Final = " .:|"


def area(values: Sequence[float], width: int, height: int, top: float, *, ascii: bool = False) -> list[str]:
    """`height` rows of `width` characters: the last values at the right, `top` at the upper edge.

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


def latest(values: Sequence[float]) -> float:
    """The last value; 0 when there is none or it is not finite."""
    return values[-1] if len(values) and math.isfinite(values[-1]) else 0.0


def largest(values: Sequence[float]) -> float:
    """The largest finite value; 0 when there is none."""
    return max((v for v in values if math.isfinite(v)), default=0.0)
