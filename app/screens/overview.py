"""The main screen: header, step strip, bars of groups, panels in columns, prompt bar, keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Static

from vtop.app.actions import PANELS
from vtop.app.live.view import View
from vtop.app.screens.key_bar import KeyBar
from vtop.app.screens.layout import MIN_HEIGHT, MIN_WIDTH, Layout, plan
from vtop.app.screens.loading import Banner, LoadingPanel
from vtop.app.screens.look_bar import LookBar
from vtop.app.screens.prompt_bar import PromptBar
from vtop.app.widgets.charts import Charts
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.header_bar import HeaderBar
from vtop.app.widgets.map.map import BlockMap, HostMap
from vtop.app.widgets.panel import Panel
from vtop.app.widgets.queue_table import QueueTable
from vtop.app.widgets.service_bars import ServiceBars
from vtop.app.widgets.step_strip import StepStrip
from vtop.engine.events import Frame, Meta

MAKE: Mapping[str, Callable[[], Panel]] = MappingProxyType(
    {
        "map": lambda: BlockMap(id="panel-map"),
        "host": lambda: HostMap(id="panel-host"),
        "running": lambda: QueueTable("running", id="panel-running"),
        "waiting": lambda: QueueTable("waiting", id="panel-waiting"),
        "finished": lambda: QueueTable("finished", id="panel-finished"),
        "events": lambda: EventLog(id="panel-events"),
        "charts": lambda: Charts(id="panel-charts"),
    }
)


TALL = 36  # rows from which the step strip gets its heading and bars


class OverviewScreen(Screen[None]):
    """Puts panels into columns as `layout.plan` says. A panel is moved, never made again, so it keeps its place."""

    AUTO_FOCUS = ""  # the running queue, when the engine is there

    def __init__(self, key_bar: KeyBar, model: str, ascii: bool) -> None:
        super().__init__()
        self._key_bar = key_bar
        self.header = HeaderBar(id="header")
        self.strip = StepStrip(id="strip")
        self.service = ServiceBars(id="service")
        self.banner = Banner(id="banner")
        self.look = LookBar(ascii, id="look")
        self.prompt = PromptBar(id="prompt")
        self.loading_panel = LoadingPanel(model, ascii, id="loading")
        self.panels: dict[str, Panel] = {name: make() for name, make in MAKE.items()}
        self.shown: list[str] = list(PANELS)
        self.asked: list[str] = []
        self.maximised: str | None = None
        self.layout_now = Layout()
        self._loaded = False
        self._needs: dict[str, int] = {}
        self._service_rows = 0
        self._empty: frozenset[str] = frozenset({"host"})  # panels that have nothing to show yet
        self._focus_before: Panel | None = None

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.look
        yield self.strip
        yield self.service
        yield self.banner
        yield self.loading_panel
        with Container(id="body"):
            # Every panel lives here; columns are regions given by offsets, so nothing is ever mounted twice.
            yield from self.panels.values()
        yield Static("", id="too-small", markup=False)
        yield self.prompt
        yield self._key_bar

    def on_mount(self) -> None:
        self.rearrange()

    def on_resize(self, event: events.Resize) -> None:
        if self.query("#too-small"):  # else the app is closing, and the widgets have gone first
            self.rearrange()

    # --- arranging -------------------------------------------------------------------------------------------------

    def loaded(self, meta: Meta) -> None:
        """The engine is there: panels in place of the loading bar."""
        self._loaded = True
        # Rows beyond which a panel has nothing to show; heading and column names are counted in.
        self._needs = {"running": meta.max_num_seqs + 2}
        self.rearrange()
        if self.focused is None:
            self.focus_first()

    def focus_prompt(self) -> None:
        """Go to the prompt bar; leaving it comes back here."""
        if isinstance(self.focused, Panel):
            self._focus_before = self.focused
        self.prompt.input.focus()

    def leave_prompt(self) -> None:
        """Focus the panel that had the focus before."""
        if self._focus_before is not None and self._focus_before.display:
            self._focus_before.focus()
        else:
            self.focus_first()

    def focus_first(self) -> None:
        """Focus a panel, so that single keys work at once."""
        for name in ("running", "map", *PANELS):
            if name in self.layout_now.visible and self.panels[name].can_focus:
                self.panels[name].focus()
                return

    def toggle(self, name: str) -> None:
        """Show a panel that is not on the screen, hide one that is."""
        self.maximised = None
        if name in self.layout_now.visible:
            self.shown.remove(name)
            self.asked = [other for other in self.asked if other != name]
        else:
            if name not in self.shown:
                self.shown.append(name)
            self.asked = [name, *(other for other in self.asked if other != name)]
        self.rearrange()

    def maximise(self) -> None:
        """Give the focused panel all the room, or take it back."""
        focused = next((name for name, panel in self.panels.items() if panel.has_focus), None)
        self.maximised = None if self.maximised else focused or "map"
        self.rearrange()

    def rearrange(self) -> None:
        """Lay out for the size of the screen."""
        width, height = self.size
        small = width < MIN_WIDTH or height < MIN_HEIGHT
        strip = 1 if height < TALL else 3
        header = 2
        self.banner.styles.height = max(1, self.banner.rows(width))
        self.look.place(width, 0 if small else height)
        look = self.look.rows(width, height)
        chrome = header + strip + 2 + look + self.banner.rows(width) + self._service_rows
        shown = [name for name in self.shown if name not in self._empty]
        layout = plan(width, height, shown, asked=self.asked, only=self.maximised, chrome=chrome, needs=self._needs)
        self.layout_now = layout
        for widget in (self.header, self.strip, self.prompt, self._key_bar):
            widget.display = not small
        self.strip.display = not small and self._loaded
        self.strip.styles.height = strip
        self.service.display = not small and self._loaded and self._service_rows > 0
        self.service.styles.height = max(1, self._service_rows)
        notice = self.query_one("#too-small", Static)
        notice.display = small
        needs = f"vtop needs {MIN_WIDTH}x{MIN_HEIGHT}; this is {width}x{height}"
        notice.update(f"{needs}\nmake the window larger, or q to quit")
        self.loading_panel.display = not small and not self._loaded
        body = self.query_one("#body")
        body.display = not small and self._loaded
        if small or not self._loaded:
            return
        self._place(layout, width)
        if self.focused is None or (isinstance(self.focused, Panel) and not self.focused.display):
            self.focus_first()

    def _place(self, layout: Layout, width: int) -> None:
        gap = 1
        room = width - gap * (len(layout.columns) - 1)
        total = sum(column.weight for column in layout.columns)
        x = 0
        for index, column in enumerate(layout.columns):
            last = index == len(layout.columns) - 1
            columns = width - x if last else round(room * column.weight / total)
            y = 0
            for name, rows in column.panels:
                panel = self.panels[name]
                panel.styles.offset = (x, y)
                panel.styles.width = columns
                panel.styles.height = rows
                panel.display = True
                y += rows
            x += columns + gap
        for name, panel in self.panels.items():
            if name not in layout.visible:
                panel.display = False

    @property
    def hints(self) -> tuple[str, ...]:
        """What is hidden for want of room, and how to get it; in words, and shorter."""
        if self.maximised:
            return ("maximised; M or Esc: all panels", "M: all panels")
        hidden = {PANELS.index(name) + 1: name for name in self.layout_now.hidden}
        if not hidden:
            return ()
        return (
            f"no room: {', '.join(f'{number} {name}' for number, name in hidden.items())}",
            f"no room: {' '.join(str(number) for number in hidden)}",
        )

    # --- drawing ---------------------------------------------------------------------------------------------------

    def log_frame(self, frame: Frame) -> None:
        """Give a Frame to the event log."""
        log = self.panels["events"]
        assert isinstance(log, EventLog)
        log.add(frame)

    def draw(self, view: View, status: str) -> None:
        """Show the view in every panel that can be seen; `status` is the engine's, for the header."""
        service_rows = self.service.rows_wanted(view, self.size.height >= TALL)
        empty = frozenset() if HostMap.has_content(view) else frozenset({"host"})
        unlike = self.look.compare(view.state, bool(view.clock))
        if unlike or (service_rows, empty) != (self._service_rows, self._empty):
            self._service_rows, self._empty = service_rows, empty
            self.rearrange()
        if self.header.display:
            self.header.show(view, status)
        if self.strip.display:
            self.strip.show(view)
        if self.service.display:
            self.service.show(view)
        if self._loaded:
            for name in self.layout_now.visible:
                self.panels[name].show(view)

    @property
    def typing(self) -> bool:
        """A letter is only a letter now."""
        return self.prompt.input.has_focus
