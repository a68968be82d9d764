"""The palette: readable in every theme of Textual, and still two colours on a 16-colour terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest
from rich.color import ColorSystem
from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from vtop.app.terminal.colours import Palette, contrast, legible, make_palette

COLOURED = [theme for theme in BUILTIN_THEMES.values() if not theme.ansi]


def palette_of(name: str) -> Palette:
    variables = BUILTIN_THEMES[name].to_color_system().generate()
    return make_palette(variables, Color.parse(variables["background"]), ansi=False)


def styles_of(palette: Palette) -> Iterator[tuple[str, Style]]:
    for field in fields(palette):
        value = getattr(palette, field.name)
        for style in value if isinstance(value, tuple) else (value,):
            if isinstance(style, Style) and style.color is not None:
                yield field.name, style


@pytest.mark.parametrize("name", [theme.name for theme in COLOURED])
def test_everything_can_be_read(name: str) -> None:
    for field, style in styles_of(palette_of(name)):
        assert style.color is not None and style.color.triplet and style.bgcolor is not None and style.bgcolor.triplet
        ratio = contrast(Color(*style.color.triplet), Color(*style.bgcolor.triplet))
        assert ratio >= (2.0 if field == "faint" else 3.0), (field, ratio)


@pytest.mark.parametrize("name", [theme.name for theme in COLOURED])
def test_sixteen_colours_are_still_two_on_each_cell(name: str) -> None:
    for field, style in styles_of(palette_of(name)):
        assert style.color is not None and style.bgcolor is not None
        front = style.color.downgrade(ColorSystem.STANDARD).number
        back = style.bgcolor.downgrade(ColorSystem.STANDARD).number
        assert front != back, field


def test_a_theme_may_name_its_owner_colours() -> None:
    own = make_palette({"vtop-owner-1": "#ff0000"}, Color.parse("#000000"), ansi=False)
    assert own.owners[0].color is not None and own.owners[0].color.triplet == (255, 0, 0)
    broken = make_palette({"vtop-owner-1": "no colour", "accent": "ansi_red"}, Color.parse("#000000"), ansi=False)
    assert broken.owners[0].color is not None


def test_owners_differ() -> None:
    palette = palette_of("textual-dark")
    assert len(set(palette.owners)) == len(palette.owners) == len(set(palette.tiles)) == len(set(palette.lit))
    assert palette.owner(0) == palette.owner(12) != palette.owner(1)


def test_the_terminals_own_colours_are_left_alone() -> None:
    palette = make_palette({}, Color.parse("#000000"), ansi=True)
    assert palette.fade(palette.good, 0.5) == palette.good
    for _, style in styles_of(palette):
        assert style.color is not None and style.color.triplet is None


def test_legible_moves_only_as_far_as_it_must() -> None:
    black, white = Color(0, 0, 0), Color(255, 255, 255)
    assert legible(white, black) == white
    assert contrast(legible(Color(250, 240, 200), white), white) >= 4.5
    assert contrast(black, white) == pytest.approx(21.0)
