"""Themes of ours and of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtop.app.terminal.themes import DEFAULT, load_themes, theme_of
from vtop.engine.errors import BadValue


def test_our_themes_load() -> None:
    themes = load_themes()
    assert themes.problems == []
    assert next(iter(themes.themes)) == DEFAULT and {"vtop-light", "vtop-contrast", "vtop-colourblind"} <= set(
        themes.themes
    )
    assert themes.after(list(themes.themes)[-1]) == DEFAULT


def test_a_bad_theme_costs_a_line_only(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('primary = "#123456"\n')
    (tmp_path / "a.toml").write_text("primary = ")
    (tmp_path / "b.toml").write_text('primary = "#12345"')
    (tmp_path / "c.toml").write_text('primry = "#123456"')
    (tmp_path / "d.toml").write_text('primary = "#123456"\n[variables]\nborder = "no colour"')
    (tmp_path / "e.toml").write_bytes(b"\xff\xfe")
    themes = load_themes(tmp_path)
    assert "mine" in themes.themes and not {"a", "b", "c", "d", "e"} & set(themes.themes)
    assert len(themes.problems) == 5 and all("\n" not in p for p in themes.problems), themes.problems
    assert "did you mean primary?" in themes.problems[2]
    assert themes.chosen("mine") == "mine" and themes.chosen("vtop-drak") == DEFAULT
    assert "did you mean vtop-dark?" in themes.problems[-1]


def test_a_theme_needs_a_colour() -> None:
    with pytest.raises(BadValue, match="primary"):
        theme_of("x", {})
