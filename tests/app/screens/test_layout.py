"""Which panels a screen of some size has, and where."""

from __future__ import annotations

import pytest

from vtop.app.actions import PANELS
from vtop.app.screens.layout import HIDE_ORDER, plan


@pytest.mark.parametrize("width", [60, 80, 99, 100, 120, 159, 160, 200, 400])
@pytest.mark.parametrize("height", [16, 20, 24, 30, 40, 60, 120])
def test_every_column_is_filled_exactly(width: int, height: int) -> None:
    layout = plan(width, height, PANELS, chrome=5)
    assert not layout.too_small and layout.columns
    for column in layout.columns:
        assert sum(rows for _, rows in column.panels) == height - 5
        assert all(rows >= 4 for _, rows in column.panels)
    assert layout.visible | set(layout.hidden) == set(PANELS)
    assert layout.visible.isdisjoint(layout.hidden)


def test_panels_leave_in_the_stated_order() -> None:
    seen: list[str] = []
    for height in range(60, 15, -1):
        seen += [name for name in plan(80, height, PANELS).hidden if name not in seen]
    assert seen == list(HIDE_ORDER[: len(seen)]) and len(seen) >= 3


def test_what_was_asked_for_stays() -> None:
    assert "charts" in plan(80, 24, PANELS).hidden
    layout = plan(80, 24, PANELS, asked=["charts"])
    assert "charts" in layout.visible


def test_too_small_and_maximised() -> None:
    assert plan(59, 40, PANELS).too_small and plan(80, 15, PANELS).too_small
    assert plan(80, 24, PANELS, only="events").visible == {"events"}
    assert plan(80, 24, []).columns == ()
