"""Why the selected request is where it is: its reason in numbers, who is ahead, who must end first, what happened."""

from __future__ import annotations

from rich.segment import Segment

from vtop.app.live.view import View
from vtop.app.terminal import safe_text
from vtop.app.terminal.glyphs import letter
from vtop.app.widgets.header_bar import policy_text
from vtop.app.widgets.log_lines import decision
from vtop.app.widgets.log_words import words
from vtop.app.widgets.panel import ListPanel, Rows
from vtop.app.widgets.reasons import blocks_available, head_of, limit_text, reason_sentence, short_id, swapped_head
from vtop.app.widgets.rows import Piece, Row, heading
from vtop.app.widgets.units import count, duration
from vtop.engine import events as ev
from vtop.engine.request import RequestStatus
from vtop.engine.state.explain import Explanation, explain
from vtop.engine.state.fold import EngineState, RequestView, Told

IDS_NAMED = 12  # of those ahead
LABEL_CELLS = 10
STEP_CELLS = 8
AGE_CELLS = 7
KIND_CELLS = 8

Line = list[Piece]


class WhyPanel(ListPanel):
    """The answer of `explain` for the selected request, as it is in the state that is shown."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._request_id: str | None = None

    def build(self, view: View, width: int, height: int) -> Rows:
        palette = self.palette
        request, state = view.selected_request, view.state
        why = explain(state, request.id) if state is not None and request is not None else None
        self.page = max(1, height - 1)
        facts: Line = []
        if request is None or state is None or why is None:
            lines: list[Line] = [[("  nothing is known of that request", palette.faint)]]
        else:
            if request.id != self._request_id:
                self._request_id, self.top = request.id, 0
            tile = palette.tiles[request.number % len(palette.tiles)]
            name = safe_text.shorten(request.id, max(4, width - 40), ascii=view.ascii)
            facts = [(f"  {letter(request.number)}", tile), (f" {name}", palette.strong)]
            lines = self._lines(why, request, state, view, width - 2)
        self.total = len(lines)
        self.top = max(0, min(self.top, self.total - self.page))
        rows: Rows = [heading("WHY", facts, [], width, palette, self.has_focus, view.ascii)]
        for number in range(self.page):
            rows.append(self._row(lines, number, width, view.ascii))
        return rows

    def _row(self, lines: list[Line], number: int, width: int, ascii: bool) -> list[Segment]:
        row = Row(width - 1, ascii)
        for text, style in lines[self.top + number] if self.top + number < len(lines) else ():
            row.put(text, style)
        row.put(" " * row.left, self.palette.base)
        return self.end_row(row, number)

    # --- parts -----------------------------------------------------------------------------------------------

    def _lines(self, why: Explanation, request: RequestView, state: EngineState, view: View, width: int) -> list[Line]:
        lines = [self._now(why, request, state, view), self._order(request, state, view)]
        if request.status in (RequestStatus.WAITING, RequestStatus.SWAPPED):
            lines += self._ahead(why, request, state, view)
            lines += self._returning(request, state, view)
            lines += self._endings(why, request, state, view, width)
        lines += self._history(why.history, view, width)
        return lines

    def _labelled(self, label: str, text: str, strong: bool = False) -> Line:
        palette = self.palette
        return [(f" {label:<{LABEL_CELLS}}", palette.muted), (text, palette.warn if strong else palette.base)]

    def _now(self, why: Explanation, request: RequestView, state: EngineState, view: View) -> Line:
        """Where it is, and what keeps it there."""
        ascii = view.ascii
        if request.status is RequestStatus.FINISHED:
            text = f"ended: {short_id(request.finish_reason, ascii)}, {count(request.output_tokens)} tokens"
            if request.message:
                text += f": {short_id(request.message, ascii, 200)}"
            return self._labelled("finished", text)
        if request.status is RequestStatus.RUNNING:
            if why.reason is not None:
                return self._labelled("running", f"held: {reason_sentence(request, state, ascii)}", True)
            phase = request.phase.value if request.phase is not None else "admitted"
            limit = limit_text(state.last_step.limit)
            tokens = count(request.scheduled_tokens)
            return self._labelled("running", f"{phase}, {tokens} tok in the last step (its limit: {limit})")
        head = head_of(state, request) or request
        behind = "" if head is request else f"behind {short_id(head.id, ascii)}: "
        text = "nothing has stopped it yet" if head.reason is None else reason_sentence(head, state, ascii)
        if request.status is RequestStatus.SWAPPED:
            return self._labelled("swapped", f"{request.num_host_blocks} blocks on the host; {behind}{text}", True)
        return self._labelled("waiting", behind + text, True)

    def _order(self, request: RequestView, state: EngineState, view: View) -> Line:
        """What the policy goes by."""
        text = f"policy {policy_text(state.options, view.ascii)}; priority {request.priority}"
        text += f", group {short_id(request.group, view.ascii)}"
        if request.group in state.counters:
            text += f" with {count(state.counters[request.group])} on its counter"
        if request.passed:
            text += f"; passed by {count(request.passed)}"
        return self._labelled("order", text)

    def _ahead(self, why: Explanation, request: RequestView, state: EngineState, view: View) -> list[Line]:
        ahead = why.ahead
        if request.status is RequestStatus.SWAPPED and not ahead:
            mine = state.order(request)
            ahead = [r.id for r in state.swapped_order() if state.order(r) < mine]
        elif request.status is RequestStatus.WAITING:
            ahead = [*(r.id for r in state.swapped_order() if r.id not in ahead), *ahead]
        if not ahead:
            return [self._labelled("ahead", "nobody")]
        names = ", ".join(short_id(name, view.ascii) for name in ahead[:IDS_NAMED])
        more = f" {self.glyphs.ellipsis}" if len(ahead) > IDS_NAMED else ""
        return [self._labelled("ahead", f"{count(len(ahead))}: {names}{more}")]

    def _returning(self, request: RequestView, state: EngineState, view: View) -> list[Line]:
        """Who is swapped out and returns before this one, and what that waits for."""
        first = swapped_head(state)
        if first is None or first is request:
            return []
        text = "nothing has stopped it yet"
        if first.reason is not None:
            text = reason_sentence(first, state, view.ascii)
        return [self._labelled("returns", f"{short_id(first.id, view.ascii)} first, swapped out: {text}")]

    def _endings(
        self, why: Explanation, request: RequestView, state: EngineState, view: View, width: int
    ) -> list[Line]:
        """The running requests that must end first, the earliest at the top, and what is available after each."""
        palette = self.palette
        if not why.need:
            return []
        by_blocks = isinstance(why.reason, ev.NeedsBlocks)  # else room under the sequence cap is
        title = "who must end first"
        head = "" if why.head in (None, request.id) else f"for {short_id(why.head, view.ascii)}: "
        have = blocks_available(state.free, state.cached)
        fact = head + (f"{count(why.need)} blocks needed, {have} now" if by_blocks else "a seat is needed")
        lines = [self._section(title, fact, width)]
        available = why.available
        for ending in why.endings:
            available += ending.blocks
            name = safe_text.fit(ending.id, 24, ascii=view.ascii)
            tokens = f"at most {count(ending.tokens)} tok more"
            after = f"  {self.glyphs.arrow} {count(available)} available" if by_blocks else ""
            line: Line = [(f"  {name} ", palette.base), (f"{tokens:<24}", palette.base)]
            lines.append([*line, (f"frees {count(ending.blocks)} blk{after}", palette.good)])
        if not why.endings and why.enough:
            lines.append([("  nobody: enough is available now", palette.good)])
        if not why.enough:
            lines.append([("  not enough even then: others must grow less, or the pool must be larger", palette.warn)])
        return lines

    def _history(self, history: list[Told], view: View, width: int) -> list[Line]:
        """Decisions about it, the latest first."""
        palette = self.palette
        lines = [self._section("decisions", f"{count(len(history))}, the latest first", width)]
        for decided in reversed(history):
            line = decision(decided.event, decided.step, decided.time)
            age = duration(max(0.0, view.now - decided.time))
            start = f" {decided.step:>{STEP_CELLS - 2}} {age:>{AGE_CELLS - 1}}  "
            glyph = f"{getattr(self.glyphs, line.kind.value)} {line.kind.word:<{KIND_CELLS}}"
            room = max(8, width - safe_text.cells(start) - safe_text.cells(glyph))
            text = safe_text.shorten(words(line, view.ascii, room), room, ascii=view.ascii)
            lines.append([(start, palette.faint), (glyph, palette.accent), (text, palette.base)])
        if not history:
            lines.append([("  none so far: it arrived, and nobody had to decide about it", palette.faint)])
        return lines

    def _section(self, title: str, fact: str, width: int) -> Line:
        palette = self.palette
        text = f" {title} "
        rule = self.glyphs.rule * max(0, width - safe_text.cells(text) - safe_text.cells(fact) - 1)
        return [(text, palette.title), (fact + " ", palette.muted), (rule, palette.faint)]
