"""Numbers for people: short, of steady width, never `nan`."""

from __future__ import annotations

import math


def count(number: float) -> str:
    """`812`, `10 240`, `1.2M`."""
    if not math.isfinite(number):
        return "-"
    if number >= 10_000_000:
        return f"{number / 1e6:.0f}M"
    if number >= 1_000_000:
        return f"{number / 1e6:.2f}M"
    return f"{round(number):,}".replace(",", " ")


def rate(number: float) -> str:
    """A number per second: `0.5`, `83`, `12.4k`."""
    if not math.isfinite(number):
        return "-"
    if number >= 100_000:
        return f"{number / 1000:.0f}k"
    if number >= 10_000:
        return f"{number / 1000:.1f}k"
    return f"{number:.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def duration(seconds: float | None) -> str:
    """`-`, `830us`, `12ms`, `1.24s`, `3m20s`, `2h05m`: at most 6 characters up to 100 hours."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f}us" if seconds else "0"
    if seconds < 0.09995:
        return f"{seconds * 1e3:.1f}ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f}ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f}ms"
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def share(part: float, whole: float) -> float:
    """`part / whole`, 0 when there is no whole, never outside 0 … 1."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
