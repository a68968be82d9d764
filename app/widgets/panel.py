"""Base of the widgets: rows of Segments, compared with those on the screen; only rows that differ are drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from vtop.app.live.view import View
from vtop.app.terminal.colours import Palette, make_palette
from vtop.app.terminal.glyphs import Glyphs, glyphs
from vtop.app.widgets.rows import Row

Rows = list[list[Segment]]


class Panel(Widget):
    """A widget that shows a View. Subclasses build rows; each row is as wide as the widget.

    The app calls `show` as often as it likes: the same version of the same View costs nothing.
    """

    ALLOW_SELECT = False  # rows are not text that could be selected; there are actions that copy

    DEFAULT_CSS = """
    Panel { width: 1fr; height: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._view: View | None = None
        self._version = -1
        self._palette: Palette | None = None
        self._rows: Rows = []

    # --- what subclasses give --------------------------------------------------------------------------------

    def build(self, view: View, width: int, height: int) -> Rows:
        """At most `height` rows, each exactly `width` cells."""
        raise NotImplementedError

    # --- showing ---------------------------------------------------------------------------------------------

    def show(self, view: View) -> None:
        """Draw what changed since the last call."""
        if view is self._view and view.version == self._version:
            return
        self._view, self._version = view, view.version
        self.redraw()

    def redraw(self) -> None:
        """Build the rows again and refresh those that differ."""
        width, height = self.size
        if self._view is None or width <= 0 or height <= 0 or not self.is_attached:
            return
        rows = self.build(self._view, width, height)[:height]
        old, self._rows = self._rows, rows
        if len(rows) != len(old):
            self.refresh()
        else:
            self.refresh_rows([y for y, row in enumerate(rows) if row != old[y]])

    def refresh_rows(self, changed: Sequence[int]) -> None:
        """Ask for these rows to be drawn; neighbours go as one region."""
        if not changed:
            return
        width = self.size.width
        regions: list[Region] = []
        start = previous = changed[0]
        for y in (*changed[1:], -1):
            if y != previous + 1:
                regions.append(Region(0, start, width, previous - start + 1))
                start = y
            previous = y
        self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        row = self._rows[y] if y < len(self._rows) else [Segment(" " * width, self.palette.base)]
        return Strip(row, width)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """All but the translation of ANSI colours: the palette has none unless the theme is an ANSI one.

        That filter builds every Segment anew and is most of the cost of a changed row; NO_COLOR's filter stays.
        """
        return [f for f in super().get_line_filters() if not isinstance(f, ANSIToTruecolor)]

    # --- colours ---------------------------------------------------------------------------------------------

    @property
    def palette(self) -> Palette:
        if self._palette is None:
            app = self.app
            self._palette = make_palette(app.theme_variables, self.background_colors[1], app.native_ansi_color)
        return self._palette

    @property
    def ascii(self) -> bool:
        return self._view is not None and self._view.ascii

    @property
    def glyphs(self) -> Glyphs:
        return glyphs(self.ascii)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._palette is None or not self.is_attached:
            return
        old, self._palette = self._palette, None
        if self.palette != old:
            self.colours_changed()

    def colours_changed(self) -> None:
        """The theme changed: everything drawn so far is of the wrong colour."""
        self._rows = []
        self.redraw()

    # --- events ----------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        self._rows = []
        self.redraw()

    def on_show(self) -> None:
        self.redraw()

    def watch_has_focus(self, has_focus: bool) -> None:
        # not on_focus and on_blur: they come before `has_focus` has changed
        super().watch_has_focus(has_focus)
        self.redraw()


class ListPanel(Panel, can_focus=True):
    """A Panel with a heading and more lines than fit. `top` is the first one shown; the last column scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="list.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="list.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="list.page-up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="list.page-down"),
        Binding("home", "first", "First", show=False, id="list.first"),
        Binding("end", "last", "Last", show=False, id="list.last"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.top = 0
        self.total = 0
        self.page = 1  # lines that fit

    def scroll_lines(self, lines: int) -> None:
        """Move what is shown by so many lines."""
        top = max(0, min(self.top + lines, self.total - self.page))
        if top != self.top:
            self.top = top
            self.scrolled()
            self.redraw()

    def scrolled(self) -> None:
        """The person moved the list."""

    def action_move(self, lines: int) -> None:
        self.scroll_lines(lines)

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.page - 1))

    def action_first(self) -> None:
        self.action_move(-self.total)

    def action_last(self) -> None:
        self.action_move(self.total)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_lines(-3)

    def end_row(self, row: Row, line: int) -> list[Segment]:
        """Close body row number `line` with its part of the scroll bar. Bodies are built one cell narrower."""
        palette = self.palette
        row.left += 1
        if self.total <= self.page:
            return row.done(palette.base)
        row.put(" " * (row.left - 1), palette.base)
        size = max(1, round(self.page * self.page / self.total))
        span = max(1, self.total - self.page)
        start = round((self.page - size) * min(self.top, span) / span)
        on = start <= line < start + size
        row.put(self.glyphs.thumb if on else self.glyphs.scroll, palette.muted if on else palette.faint)
        return row.segments
