"""One request from close by: what was asked, how far it is, where its KV is, and the text as it grows."""

from __future__ import annotations

import textwrap

from rich.segment import Segment
from rich.style import Style

from vtop.app.live.view import View
from vtop.app.terminal import safe_text
from vtop.app.terminal.glyphs import letter, thin_bar
from vtop.app.widgets.panel import ListPanel, Rows
from vtop.app.widgets.reasons import head_of, ordinal, reason_now, short_id, why_waiting
from vtop.app.widgets.rows import Piece, Row, heading
from vtop.app.widgets.units import count, duration, share
from vtop.app.widgets.urgency import Slack, aging_of, slack_of, slack_text, waits
from vtop.engine.events import BeamOutput
from vtop.engine.request import RequestStatus
from vtop.engine.state.fold import EngineState, RequestView, SequenceView

LABEL_CELLS = 13
VALUE_CELLS = 14
PROMPT_ROWS = 5
TABLE_ROWS = 6
OUTPUT_ROWS = 6  # at least
SAMPLE_ROWS = 3

Line = list[Piece]


class RequestDetail(ListPanel):
    """The selected request. Of a long output only the end is looked at, so it costs the same at any length."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._request_id: str | None = None

    def build(self, view: View, width: int, height: int) -> Rows:
        palette = self.palette
        request, state = view.selected_request, view.state
        self.page = max(1, height - 1)
        if request is None or state is None:
            self.total = self.top = 0
            lines: list[Line] = [[("  no request selected", palette.faint)]]
            rows: Rows = [heading("REQUEST", [], [], width, palette, self.has_focus, view.ascii)]
        else:
            if request.id != self._request_id:
                self._request_id, self.top = request.id, 0
            lines = self._lines(request, state, view, width - 2)
            self.total = len(lines)
            self.top = max(0, min(self.top, self.total - self.page))
            rows = [self._heading(request, view, width)]
        for number in range(self.page):
            row = Row(width - 1, view.ascii)
            for text, style in lines[self.top + number] if self.top + number < len(lines) else ():
                row.put(text, style)
            row.put(" " * row.left, palette.base)
            rows.append(self.end_row(row, number))
        return rows

    def _heading(self, request: RequestView, view: View, width: int) -> list[Segment]:
        palette = self.palette
        facts: Line = [
            ("  ", palette.base),
            (letter(request.number), palette.tiles[request.number % len(palette.tiles)]),
            (" " + safe_text.shorten(request.id, max(4, width - 40), ascii=view.ascii), palette.strong),
        ]
        notes: Line = [(f"#{request.number}", palette.muted)]
        return heading("REQUEST", facts, notes, width, palette, self.has_focus, view.ascii)

    def _lines(self, request: RequestView, state: EngineState, view: View, width: int) -> list[Line]:
        lines = self._status(request, state, view, width)
        lines += self._facts(request, state, view, width)
        lines += self._aging(request, state, view, width)
        for index, seq in enumerate(request.sequences):
            lines += self._table(seq, index if len(request.sequences) > 1 else None, view, width)
            lines += self._sharing(seq, state)
        lines += self._prompt(request, view, width)
        if request.found:
            for place, output in enumerate(request.found, start=1):
                lines += self._returned(output, place, view, width)
            return lines
        if len(request.sequences) > 1:
            for index in range(len(request.sequences)):
                lines += self._sample(request, index, view, width)
            return lines
        room = max(OUTPUT_ROWS, self.page - len(lines) - 1)
        return lines + self._output(request, view, width, room)

    # --- parts -----------------------------------------------------------------------------------------------

    def _status(self, request: RequestView, state: EngineState, view: View, width: int) -> list[Line]:
        palette, g = self.palette, self.glyphs
        status, why = request.status.value, ""
        style: Style = palette.good
        if request.status in (RequestStatus.WAITING, RequestStatus.SWAPPED):
            why = why_waiting(request, head_of(state, request), state, view.ascii, width - len(status) - 4)
            why = why.removeprefix(f"{g.swap_out} swapped out, ")  # as the status says already
            style = palette.warn
        elif request.status is RequestStatus.FINISHED:
            ended = request.finish_reason in ("stop", "length")
            style = palette.good if ended else palette.bad
            why = short_id(request.finish_reason, view.ascii)
            if request.stop_reason is not None:
                why += f" at {short_id(repr(request.stop_reason), view.ascii)}"
            if request.message:
                why += f": {short_id(request.message, view.ascii, 200)}"
        elif request.reason is not None:
            why, style = f"held: {reason_now(request, state, view.ascii)}", palette.warn
        elif request.phase is not None:
            why = request.phase.value
        symbols = {RequestStatus.WAITING: g.wait, RequestStatus.RUNNING: g.run, RequestStatus.SWAPPED: g.swap_out}
        symbol = symbols.get(request.status, g.finish)
        planned = request.planned_output * len(request.sequences)
        done, rest = thin_bar(share(request.output_tokens, planned), max(4, min(24, width // 4)), view.ascii)
        line: Line = [(f" {symbol} {status}", style), (f"  {why}" if why else "", palette.base)]
        bar: Line = [
            (" output ", palette.muted),
            (done, palette.good),
            (rest, palette.faint),
            (f" {count(request.output_tokens)}/{count(planned)}", palette.base),
        ]
        return [line, bar]

    def _facts(self, request: RequestView, state: EngineState, view: View, width: int) -> list[Line]:
        palette, g = self.palette, self.glyphs
        aging = aging_of(state) if waits(request) else None
        ended = view.now if request.ended is None else request.ended
        priority = str(request.priority)
        if aging is not None:
            priority = aging.text(request, ended, VALUE_CELLS - 1, view.ascii)
        lost = f"{count(request.tokens_lost)} tok"
        hosted = request.num_host_blocks
        values = [
            ("prompt", f"{count(request.prompt_tokens)} tok"),
            ("computed", f"{count(request.computed)} tok"),
            ("blocks", f"{count(hosted)} on host" if hosted else count(request.num_blocks)),
            ("ttft", duration(request.ttft)),
            ("tpot", duration(request.tpot)),
            ("longest gap", duration(request.longest_gap or None)),
            ("age" if request.ended is None else "total", duration(ended - request.arrival)),
            ("preempted", f"{g.preempt} {request.preemptions}" if request.preemptions else "0"),
            ("lost", lost),
            ("admitted", f"{request.admissions}{g.times}"),
            ("max tokens", "no limit" if request.max_tokens is None else count(request.max_tokens)),
            ("temperature", f"{request.temperature:g}"),
            ("seed", str(request.seed)),
            ("priority", priority),
            ("group", request.group),
        ]
        styles = {"preempted": palette.bad} if request.preemptions else {}
        if request.tokens_lost:
            styles["lost"] = palette.bad
        slack = slack_of(request, ended)
        if request.deadline is None or slack is None:
            values.append(("deadline", "-"))
        else:
            values.append(("deadline", f"after {duration(request.deadline - request.arrival)}"))
            values.append(("slack", slack_text(*slack)))
            styles["slack"] = {Slack.SOON: palette.warn, Slack.MISSED: palette.bad}.get(slack[1], palette.base)
        if request.expires is not None and request.expires != request.deadline:
            values.append(("timed out", f"after {duration(request.expires - request.arrival)}"))
        across = max(1, width // (LABEL_CELLS + VALUE_CELLS))
        down = -(-len(values) // across)
        lines: list[Line] = []
        for y in range(down):
            line: Line = []
            for label, value in values[y::down]:
                line.append((f" {label:<{LABEL_CELLS - 1}}", palette.muted))
                text = safe_text.fit(value, VALUE_CELLS, ascii=view.ascii)
                line.append((text, styles.get(label, palette.base)))
            lines.append(line)
        return lines

    def _aging(self, request: RequestView, state: EngineState, view: View, width: int) -> list[Line]:
        """How the wait changes the priority of one that waits, in words."""
        aging = aging_of(state) if waits(request) else None
        if aging is None:
            return []
        words = aging.words(request, view.now, view.ascii)
        lines: list[Line] = []
        for text in textwrap.wrap(words, max(16, width - LABEL_CELLS)):
            label = "" if lines else "counts as"
            lines.append([(f" {label:<{LABEL_CELLS - 1}}", self.palette.muted), (text, self.palette.base)])
        return lines

    def _section(self, title: str, fact: str, width: int) -> Line:
        palette = self.palette
        text = f" {title} "
        rule = self.glyphs.rule * max(0, width - safe_text.cells(text) - safe_text.cells(fact) - 1)
        return [(text, palette.title), (fact + " ", palette.muted), (rule, palette.faint)]

    def _table(self, seq: SequenceView, index: int | None, view: View, width: int) -> list[Line]:
        """Logical to physical blocks, a ruler of logical numbers at the left; of many rows the first and the last."""
        palette, g = self.palette, self.glyphs
        name = "block table" if index is None else f"block table of sequence {index}"
        blocks = seq.blocks or seq.host_blocks
        where = "host" if seq.host_blocks else "physical"
        lines = [self._section(name, f"logical {g.arrow} {where}, {count(len(blocks))} blocks", width)]
        if not blocks:
            return [*lines, [("  none: it holds no KV", palette.faint)]]
        size = max(3, len(str(max(blocks[:1024] + blocks[-1024:])))) + 1
        gutter = len(str(len(blocks))) + 2
        across = max(1, (width - gutter - 2) // size)
        across = across - across % 8 if across >= 8 else across
        starts = list(range(0, len(blocks), across))
        if len(starts) > TABLE_ROWS:
            starts = [*starts[: TABLE_ROWS // 2], -1, *starts[-(TABLE_ROWS // 2 - 1) :]]
        marked = None if seq.host_blocks else view.selected_block
        for start in starts:
            if start < 0:
                lines.append([(" " * gutter + g.ellipsis, palette.faint)])
                continue
            line: Line = [(f"{start:>{gutter}} ", palette.faint)]
            for block in blocks[start : start + across]:
                line.append((f"{block:>{size}}", palette.cursor if block == marked else palette.base))
            lines.append(line)
        return lines

    def _sharing(self, seq: SequenceView, state: EngineState) -> list[Line]:
        """How much of the table others hold too, or could begin with. Nothing while no content can be hit."""
        kept = int(state.hashed[seq.blocks].sum()) if seq.blocks else 0
        if not kept:
            return []
        shared = int((state.ref_count[seq.blocks] > 1).sum())
        text = f"  {count(shared)} shared with others, {count(kept)} can be hit"
        size = state.block_size
        return [[(text, self.palette.muted), (f"; sharing works in whole blocks of {size} tokens", self.palette.faint)]]

    def _prompt(self, request: RequestView, view: View, width: int) -> list[Line]:
        prompt = request.prompt
        if prompt is None:
            return [self._section("prompt", f"{count(request.prompt_tokens)} token ids, no text", width)]
        lines = [self._section("prompt", f"{count(len(prompt))} characters", width)]
        shown = safe_text.wrap(prompt[: PROMPT_ROWS * width], width - 2, ascii=view.ascii)
        cut = len(prompt) > PROMPT_ROWS * width or len(shown) > PROMPT_ROWS
        lines += [[(f"  {text}", self.palette.base)] for text in shown[:PROMPT_ROWS]]
        if cut:
            lines.append([(f"  {self.glyphs.ellipsis} cut here", self.palette.faint)])
        return lines

    def _sample(self, request: RequestView, index: int, view: View, width: int) -> list[Line]:
        """The end of the text of one of several samples, and how it ended."""
        seq = request.sequences[index]
        ended = seq.finish_reason or request.finish_reason
        if seq.finish_reason and seq.stop_reason is not None:
            ended += f" at {seq.stop_reason!r}"
        fact = f"{count(len(seq.output_tokens))} tok, {short_id(ended, view.ascii) or 'goes on'}"
        if index in request.chosen:
            fact += f", returned {ordinal(request.chosen.index(index) + 1)}, log-prob {seq.logprob or 0.0:.2f}"
        elif request.chosen:
            fact += ", not returned"
        lines = [self._section(f"sample {index}", fact, width)]
        return lines + self._end_of(seq.text, "nothing yet", view, width)

    def _returned(self, output: BeamOutput, place: int, view: View, width: int) -> list[Line]:
        """An output of a beam search: its score, how it ended, and the end of its text."""
        fact = f"{count(len(output.tokens))} tok, {short_id(output.reason, view.ascii)}"
        if output.stop_reason is not None:
            fact += f" at {short_id(repr(output.stop_reason), view.ascii)}"
        fact += f", log-prob {output.logprob:.2f}, score {output.score:.3f}"
        lines = [self._section(f"returned {ordinal(place)}", fact, width)]
        return lines + self._end_of(output.text, "no text", view, width)

    def _end_of(self, text: str, nothing: str, view: View, width: int) -> list[Line]:
        shown = safe_text.tail(text, width - 2, SAMPLE_ROWS, ascii=view.ascii)
        if not shown or not text:
            return [[(f"  {nothing}", self.palette.faint)]]
        return [[(f"  {row}", self.palette.base)] for row in shown]

    def _output(self, request: RequestView, view: View, width: int, room: int) -> list[Line]:
        palette = self.palette
        text = request.text
        lines = [self._section("output", f"{count(request.output_tokens)} tok, {count(len(text))} characters", width)]
        if not text:
            return [*lines, [("  nothing yet", palette.faint)]]
        shown = safe_text.tail(text, width - 2, room, ascii=view.ascii)
        if len(shown) == room and sum(map(len, shown)) < len(text):
            shown = shown[1:]
            lines.append([(f"  {self.glyphs.ellipsis} the end of it:", palette.faint)])
        return lines + [[(f"  {row}", palette.base)] for row in shown]
