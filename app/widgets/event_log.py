"""What happened, one line an event, the latest at the bottom. Preemptions and swaps stand out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message

from vtop.app.live.view import View
from vtop.app.terminal.colours import Palette
from vtop.app.widgets.log_lines import LOUD, Kind, Line, line_of, subject, together
from vtop.app.widgets.log_words import words
from vtop.app.widgets.panel import ListPanel, Rows
from vtop.app.widgets.rows import Piece, Row, heading
from vtop.app.widgets.units import count
from vtop.engine import events as ev

KEEP_LINES = 5000
STEP_CELLS = 7
KIND_CELLS = 8


class EventLog(ListPanel):
    """The last lines, at most `keep`. It follows the newest line until it is scrolled up; End follows again."""

    class Selected(Message):
        """A line about a request was clicked."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    def __init__(self, *, keep: int = KEEP_LINES, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: deque[Line] = deque(maxlen=keep)  # those of the kinds shown
        self._all: deque[Line] = deque(maxlen=keep)
        self._kinds: frozenset[Kind] | None = None
        self._unread: list[Line] = []  # finished lines whose request is not looked up yet
        self._waiting: dict[bool, tuple[str, type]] = {}  # who waits for what, as last told; for swapped ones, or not
        self._changed = False
        self.follow = True

    # --- feeding ---------------------------------------------------------------------------------------------

    def add(self, frame: ev.Frame) -> None:
        """Take the events of a Frame. Cheap: words are made for what comes on the screen."""
        for event in together(frame.events):
            line = line_of(event, frame.step, frame.time)
            if line is None or (isinstance(event, ev.Waits) and self._waits_on(event)):
                continue
            if not (line.kind is Kind.EVICT and self._evicts_on(line)) and not self._forks_on(line):
                self._append(line)

    def _forks_on(self, line: Line) -> bool:
        """Beams fork in every step: one line for as long as nothing else happens."""
        last = self._all[-1] if self._all else None
        if last is None or not line.kind is last.kind is Kind.FORK or subject(line) != subject(last):
            return False
        last.step, last.time, last.event = line.step, line.time, line.event
        last.steps += 1
        self._changed = True
        return True

    def _evicts_on(self, line: Line) -> bool:
        """Nothing but evictions since the last line, which was one: it stands for this too."""
        last = self._all[-1] if self._all else None
        if last is None or last.kind is not Kind.EVICT:
            return False
        last.step, last.time, last.event = line.step, line.time, line.event
        last.blocks += line.blocks
        last.steps += 1
        self._changed = True
        return True

    def _waits_on(self, event: ev.Waits) -> bool:
        """Only the numbers of the reason changed: it still waits for the same thing, and the log said so."""
        now = (event.id, type(event.reason))
        queue = isinstance(event.reason, ev.SwappedFirst)  # then another waits to return, and is told too
        before = self._waiting.get(queue)
        self._waiting[queue] = now
        return now == before

    def _append(self, line: Line) -> None:
        self._all.append(line)
        if line.kind is Kind.FINISH:
            self._unread.append(line)
            if len(self._unread) > KEEP_LINES:
                del self._unread[: KEEP_LINES // 2]
        if self._kinds is None or line.kind in self._kinds:
            if len(self._lines) == self._lines.maxlen and not self.follow:
                self.top = max(0, self.top - 1)  # the oldest line goes; what is read stays where it is
            self._lines.append(line)
            self._changed = True

    def clear(self) -> None:
        """Forget all lines (another recording, or a step back in time)."""
        self._all.clear()
        self._lines.clear()
        self._unread.clear()
        self._waiting = {}
        self.top, self.follow, self._changed = 0, True, True

    def filter(self, kinds: Iterable[Kind] | None) -> None:
        """Show only lines of these kinds; None shows all."""
        self._kinds = None if kinds is None else frozenset(kinds)
        self._lines = deque((x for x in self._all if self._kinds is None or x.kind in self._kinds), self._all.maxlen)
        self.follow = True
        self.redraw()

    # --- drawing ---------------------------------------------------------------------------------------------

    def show(self, view: View) -> None:
        if self._changed and view is self._view and view.version == self._version:
            self._version = -1
        self._changed = False
        super().show(view)

    def _look_up_finished(self, view: View) -> None:
        if not self._unread or view.state is None:
            return
        wanted = {subject(line): line for line in self._unread}
        for number, request in enumerate(reversed(view.state.finished)):
            line = wanted.pop(request.id, None)
            if line is not None:
                line.request = request
            if not wanted or number > 2 * len(self._unread) + 50:
                break
        self._unread.clear()

    def build(self, view: View, width: int, height: int) -> Rows:
        self._look_up_finished(view)
        palette = self.palette
        self.page = max(1, height - 1)
        self.total = len(self._lines)
        last_top = max(0, self.total - self.page)
        self.top = last_top if self.follow else min(self.top, last_top)
        rows: Rows = [self._heading(view, width)]
        for number in range(self.page):
            row = Row(width - 1, view.ascii)
            if self.top + number < self.total:
                line = self._lines[self.top + number]
                self._line_row(row, line, view, palette)
            row.put(" " * row.left, palette.base)
            rows.append(self.end_row(row, number))
        return rows

    def _heading(self, view: View, width: int) -> list[Segment]:
        palette = self.palette
        facts: list[Piece] = [(f"  {count(self.total)}", palette.base)]
        preemptions = 0 if view.state is None else view.state.totals.preemptions
        if preemptions:
            facts.append((f"  {self.glyphs.preempt} {count(preemptions)} preempted", palette.bad))
        notes: list[Piece] = []
        if self._kinds is not None:
            notes.append((f"only {', '.join(sorted(self._kinds))}  ", palette.accent))
        below = self.total - self.top - self.page
        notes.append(
            ("following", palette.muted) if self.follow else (f"{count(below)} below, End follows", palette.warn)
        )
        return heading("EVENTS", facts, notes, width, palette, self.has_focus, view.ascii)

    def _line_row(self, row: Row, line: Line, view: View, palette: Palette) -> None:
        mark, text = _styles(line, palette)
        own = view.selected is not None and subject(line) == view.selected
        row.put(self.glyphs.marker if own else " ", palette.accent)
        row.put(f"{line.step:>{STEP_CELLS - 2}} ", palette.accent if own else palette.faint)
        word = line.kind.word.upper() if line.kind in LOUD else line.kind.word
        glyph = str(getattr(self.glyphs, line.kind.value))
        if line.kind is Kind.FINISH and not _ended_well(line):
            glyph = self.glyphs.fail
        row.put(f"{glyph} {word:<{KIND_CELLS}}", mark)
        row.words(words(line, view.ascii, row.left), text)

    # --- scrolling -------------------------------------------------------------------------------------------

    def scrolled(self) -> None:
        self.follow = self.top >= self.total - self.page

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not 1 <= offset.y <= self.page or self.top + offset.y - 1 >= self.total:
            return
        request_id = subject(self._lines[self.top + offset.y - 1])
        if request_id:
            self.post_message(self.Selected(request_id))


def _styles(line: Line, palette: Palette) -> tuple[Style, Style]:
    """Style of the glyph and word, and of the message."""
    match line.kind:
        case Kind.PREEMPT | Kind.SWAP_OUT | Kind.FAIL:
            return palette.alarm, palette.alarm
        case Kind.REFUSE:
            return palette.bad, palette.base
        case Kind.ADMIT | Kind.HIT:
            return palette.good, palette.base
        case Kind.SWAP_IN | Kind.RESUME | Kind.WAIT | Kind.POOL | Kind.CACHE:
            return palette.warn, palette.base if line.kind is not Kind.WAIT else palette.muted
        case Kind.FINISH:
            return (palette.good if _ended_well(line) else palette.bad), palette.base
        case Kind.NOTE if isinstance(line.event, ev.Note) and line.event.level != "info":
            style = palette.bad if line.event.level == "error" else palette.warn
            return style, style
        case Kind.PAUSE | Kind.COW | Kind.OPTION | Kind.MOVE | Kind.SKIP:
            return palette.accent, palette.base
        case _:
            return palette.muted, palette.muted


def _ended_well(line: Line) -> bool:
    return isinstance(line.event, ev.Finished) and line.event.reason in ("stop", "length")
