"""The colours of the widgets, taken from the app's theme.

A theme may set its own `vtop-owner-1` … `vtop-owner-12` variables; otherwise the hues below are used. Every foreground
is moved towards black or white until it can be read on the background, so that light themes need no second palette.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rich.color import Color as RichColor
from rich.color import ColorSystem
from rich.style import Style
from textual.color import Color, ColorParseError

OWNERS: Final = 12
# Around the wheel, neighbours in request number far apart in hue.
_OWNER_HUES: Final = (
    "#4FB3E8", "#F2A33A", "#7BC96F", "#E86FA5", "#B79CF0", "#E9D15B",
    "#4ECFC0", "#F0785A", "#8FA8FF", "#B5D95B", "#E59BE9", "#C9A37C",
)  # fmt: skip
_ANSI_OWNERS: Final = (
    "bright_blue", "yellow", "green", "magenta", "cyan", "red",
    "bright_cyan", "bright_yellow", "bright_green", "bright_magenta", "blue", "bright_red",
)  # fmt: skip
_AGE_STEPS: Final = 10
_NAMES: Final = ("foreground", "primary", "accent", "success", "warning", "error")


@dataclass(frozen=True, slots=True)
class Palette:
    """Rich styles, all with their background, ready for Segments."""

    dark: bool
    base: Style
    strong: Style
    muted: Style
    faint: Style
    accent: Style
    good: Style
    warn: Style
    bad: Style
    alarm: Style  # for the few things that must not be missed
    title: Style
    title_focus: Style
    row_bg: Style  # put over a style: the selected row
    cursor: Style
    owners: tuple[Style, ...]
    tiles: tuple[Style, ...]  # a block of that owner
    lit: tuple[Style, ...]  # ... while its request is selected
    ages: tuple[Style, ...]  # new to old

    def owner(self, number: int) -> Style:
        return self.owners[number % OWNERS]

    def fade(self, style: Style, amount: float) -> Style:
        """`style` moved towards the background; the terminal's own colours stay as they are."""
        color, background = style.color, self.base.bgcolor
        if color is None or background is None or color.triplet is None or background.triplet is None:
            return style
        faded = Color(*color.triplet).blend(Color(*background.triplet), amount, alpha=1.0)
        return Style(color=faded.rich_color, bgcolor=background)


def contrast(a: Color, b: Color) -> float:
    """Contrast ratio of two colours, 1 to 21."""

    def luminance(color: Color) -> float:
        parts = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in color.normalized]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    one, two = luminance(a), luminance(b)
    return (max(one, two) + 0.05) / (min(one, two) + 0.05)


def legible(color: Color, background: Color, ratio: float = 4.5) -> Color:
    """`color`, moved towards white or black until it stands out from `background`."""
    goal = Color(255, 255, 255) if background.brightness < 0.5 else Color(0, 0, 0)
    for step in range(11):
        moved = color.blend(goal, step / 10, alpha=1.0)
        if contrast(moved, background) >= ratio:
            return moved
    return goal


def _apart(color: Color, background: Color) -> Color:
    """`color`, moved on until a terminal of 16 colours does not take it for the background."""
    taken = background.rich_color.downgrade(ColorSystem.STANDARD).number
    goal = Color(255, 255, 255) if background.brightness < 0.5 else Color(0, 0, 0)
    for _ in range(10):
        if color.rich_color.downgrade(ColorSystem.STANDARD).number != taken:
            break
        color = color.blend(goal, 0.15, alpha=1.0)
    return color


def _style(fg: Color, bg: Color, bold: bool = False) -> Style:
    return Style(color=fg.rich_color, bgcolor=bg.rich_color, bold=bold or None)


def make_palette(variables: Mapping[str, str], background: Color, ansi: bool) -> Palette:
    """The palette for the theme variables of the app and the background that the widget stands on."""
    if ansi:
        return _ansi_palette()
    names = (*_NAMES, *(f"vtop-owner-{number}" for number in range(1, OWNERS + 1)))
    wanted = tuple((name, variables[name]) for name in names if variables.get(name))
    return _true_palette(wanted, Color(background.r, background.g, background.b))


@lru_cache(maxsize=16)  # nine widgets ask whenever the focus moves; few themes and backgrounds are in use
def _true_palette(wanted: tuple[tuple[str, str], ...], bg: Color) -> Palette:
    variables = dict(wanted)
    dark = bg.brightness < 0.5

    def named(name: str, default: str) -> Color:
        try:
            color = Color.parse(variables.get(name, default))
        except ColorParseError:
            color = Color.parse(default)
        return Color.parse(default) if color.ansi is not None else (bg + color if color.a < 1 else color)

    fg = named("foreground", "#e0e0e0" if dark else "#1f1f1f")
    accent = legible(named("accent", "#ffa62b"), bg)
    error = named("error", "#e05566")
    hues = tuple(named(f"vtop-owner-{i + 1}", hue) for i, hue in enumerate(_OWNER_HUES))
    tint = 0.24 if dark else 0.30
    tiles = []
    for hue in hues:
        tile = bg.blend(hue, tint, alpha=1.0)
        tiles.append(_style(legible(hue, tile, 4.0), tile))
    lit = tuple(_style(legible(bg, hue, 6.0), hue, bold=True) for hue in hues)
    new = legible(named("primary", "#4fb3e8"), bg, 6.0)
    ages = []
    for step in range(_AGE_STEPS):
        tile = bg.blend(new, 0.5 * (1 - step / (_AGE_STEPS - 1)) + 0.08, alpha=1.0)
        ages.append(_style(legible(fg.blend(new, 0.3, alpha=1.0), tile, 4.0), tile))
    row = bg.blend(named("primary", "#0178d4"), 0.28 if dark else 0.22, alpha=1.0)
    return Palette(
        dark=dark,
        base=_style(fg, bg),
        strong=_style(legible(fg, bg, 9.0), bg, bold=True),
        muted=_style(legible(bg.blend(fg, 0.62, alpha=1.0), bg, 4.5), bg),
        faint=_style(_apart(legible(bg.blend(fg, 0.34, alpha=1.0), bg, 2.2), bg), bg),
        accent=_style(accent, bg),
        good=_style(legible(named("success", "#4ebf71"), bg), bg),
        warn=_style(legible(named("warning", "#e8b339"), bg), bg),
        bad=_style(legible(error, bg), bg),
        alarm=_style(legible(error, bg), bg.blend(error, 0.18, alpha=1.0), bold=True),
        title=_style(legible(bg.blend(fg, 0.9, alpha=1.0), bg), bg, bold=True),
        title_focus=_style(accent, bg, bold=True),
        row_bg=Style(bgcolor=row.rich_color, bold=True),
        cursor=Style(color=bg.rich_color, bgcolor=fg.rich_color, bold=True, underline=True),
        owners=tuple(_style(legible(hue, bg, 4.0), bg) for hue in hues),
        tiles=tuple(tiles),
        lit=lit,
        ages=tuple(ages),
    )


@lru_cache(maxsize=1)
def _ansi_palette() -> Palette:
    """Only what the terminal itself calls its colours: nothing is blended, brightness comes from bold and dim."""
    default = RichColor.default()

    def plain(
        name: str = "default",
        bold: bool | None = None,
        dim: bool | None = None,
        underline: bool | None = None,
        reverse: bool | None = None,
    ) -> Style:
        return Style(color=name, bgcolor=default, bold=bold, dim=dim, underline=underline, reverse=reverse)

    owners = tuple(plain(name) for name in _ANSI_OWNERS)
    return Palette(
        dark=True,
        base=plain(),
        strong=plain(bold=True),
        muted=plain(),
        faint=plain(dim=True),
        accent=plain("cyan"),
        good=plain("green"),
        warn=plain("yellow"),
        bad=plain("red"),
        alarm=plain("red", bold=True),
        title=plain(bold=True),
        title_focus=plain("cyan", bold=True, underline=True),
        row_bg=Style(color="default", reverse=True, bold=True, dim=False),
        cursor=Style(reverse=True, bold=True, underline=True),
        owners=owners,
        tiles=owners,
        lit=tuple(plain(name, reverse=True, bold=True) for name in _ANSI_OWNERS),
        ages=tuple(plain(bold=step < 3, dim=step > 6) for step in range(_AGE_STEPS)),
    )
