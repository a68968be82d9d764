"""Columns of the queue tables: what each shows, and which go first when it gets narrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style

from vtop.app.terminal.colours import Palette
from vtop.app.terminal.glyphs import Glyphs, letter, thin_bar
from vtop.app.terminal.safe_text import Align
from vtop.app.widgets.queue_order import QueueKind
from vtop.app.widgets.reasons import reason_now, why_waiting
from vtop.app.widgets.rows import Row
from vtop.app.widgets.units import duration, share
from vtop.app.widgets.urgency import Aging, Slack, slack_of, slack_text, waits
from vtop.engine.request import Phase, RequestStatus
from vtop.engine.state.fold import EngineState, RequestView


@dataclass(frozen=True, slots=True)
class Context:
    """What a cell needs besides its request."""

    palette: Palette
    glyphs: Glyphs
    ascii: bool
    now: float
    head: RequestView | None
    state: EngineState
    swapped: RequestView | None = None  # the one that returns first
    aging: Aging | None = None


Draw = Callable[[Row, RequestView, int, int, Context], None]


@dataclass(frozen=True, slots=True)
class Column:
    """`rank`: columns of the highest rank are dropped first. `most` > `width`: takes what room is left."""

    title: str
    width: int
    rank: int
    draw: Draw
    align: Align = "left"
    most: int = 0


def ratio(done: int, planned: int, width: int) -> str:
    """`128/512`; in thousands when that is too wide."""
    text = f"{done}/{planned}"
    if len(text) <= width:
        return text

    def short(n: int) -> str:
        return (
            str(n)
            if n < 1000
            else f"{n / 1000:.1f}k"
            if n < 10_000
            else f"{n // 1000}k"
            if n < 10**6
            else f"{n // 10**6}M"
        )

    return f"{short(done)}/{short(planned)}"


def _plain(text: Callable[[RequestView, Context], str], style: str = "base", align: Align = "right") -> Draw:
    def draw(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
        shown = text(request, context)
        tone: Style = getattr(context.palette, "faint" if shown in ("-", "0") else style)
        row.field(shown, tone, width, align)

    return draw


def _position(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    row.field(str(position + 1), context.palette.faint, width, "right")


def _id(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    palette = context.palette
    row.put(letter(request.number), palette.tiles[request.number % len(palette.tiles)]).gap(palette.base)
    row.field(request.id, palette.base, width - 2)


def _preemptions(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    if request.preemptions:
        text = f"{context.glyphs.preempt}{request.preemptions}"
        row.field(text, context.palette.bad, width)
    else:
        row.gap(context.palette.base, width)


def _why(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    palette = context.palette
    out = request.status is RequestStatus.SWAPPED
    head = context.swapped if out else context.head
    # Ids inside the reason were cleaned; `field` only cuts.
    why = why_waiting(request, head, context.state, context.ascii, width)
    row.field(why, palette.warn if out or head is None or request is head else palette.muted, width)


def _held(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    text = reason_now(request, context.state, context.ascii, width)
    row.field(text, context.palette.warn, width)


def _phase(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    palette = context.palette
    if request.reason is not None:
        row.field("held", palette.warn, width)
    elif request.phase is None:
        row.field("-", palette.faint, width)
    else:
        styles = {Phase.PREFILL: palette.accent, Phase.RE_PREFILL: palette.bad, Phase.DECODE: palette.good}
        row.field(request.phase.value, styles.get(request.phase, palette.base), width)


def _progress(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    palette = context.palette
    if request.phase is Phase.DECODE:
        part, style = (
            share(request.output_tokens, request.planned_output * len(request.sequences)),
            palette.good,
        )
    else:
        style = palette.bad if request.phase is Phase.RE_PREFILL else palette.accent
        part = share(request.computed, request.known)
    done, rest = thin_bar(part, width - 1, context.ascii)
    row.put(done, style).put(rest, palette.faint).gap(palette.base)


def _prompt(request: RequestView, context: Context) -> str:
    prompt = request.prompt_tokens
    done = min(prompt, max((seq.num_computed for seq in request.sequences), default=0))
    return ratio(done, prompt, 9)


def _output(request: RequestView, context: Context) -> str:
    return ratio(request.output_tokens, request.planned_output * len(request.sequences), 9)


def _aged(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    """Priority as it is, and as it counts after the wait so far."""
    palette, aging = context.palette, context.aging
    if aging is None or not waits(request):
        row.field(str(request.priority), palette.base if request.priority else palette.faint, width, "right")
    else:
        row.field(aging.text(request, context.now, width, context.ascii), palette.base, width, "right")


_SLACK_STYLES = {Slack.ENOUGH: "base", Slack.SOON: "warn", Slack.MISSED: "bad"}


def _slack(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    slack = slack_of(request, context.now)
    if slack is None:
        row.field("-", context.palette.faint, width, "right")
    else:
        style: Style = getattr(context.palette, _SLACK_STYLES[slack[1]])
        row.field(slack_text(*slack), style, width, "right")


_END_STYLES = {"stop": "good", "length": "good", "capacity": "warn", "abort": "muted", "timeout": "warn"}


def _ending(row: Row, request: RequestView, width: int, position: int, context: Context) -> None:
    palette = context.palette
    style: Style = getattr(palette, _END_STYLES.get(request.finish_reason, "bad"))
    g = context.glyphs
    mark = g.finish if request.finish_reason in ("stop", "length") else g.fail
    row.field(f"{mark} {request.finish_reason}", style, width)


POS = Column("#", 5, 12, _position, "right")
ID = Column("id", 10, 0, _id, most=22)
WHY = Column("why waiting", 36, 1, _why, most=40)
HELD = Column("held because", 28, 95, _held, most=40)
PRE = Column("pre", 3, 11, _preemptions)
AGE = Column("age", 6, 28, _plain(lambda r, c: duration(c.now - r.arrival), "muted"), "right")
PROMPT = Column("prompt", 9, 30, _plain(_prompt), "right")
OUT = Column("output", 9, 25, _plain(_output), "right")
PRIO = Column("prio", 4, 60, _plain(lambda r, c: str(r.priority), "base"), "right")
AGED = Column("prio now", 9, 16, _aged, "right")
SLACK = Column("slack", 7, 14, _slack, "right")
GROUP = Column("group", 8, 70, _plain(lambda r, c: r.group, "muted", "left"))
BLOCKS = Column("blk", 5, 15, _plain(lambda r, c: str(r.num_blocks)), "right")
PHASE = Column("phase", 10, 5, _phase)
PROGRESS = Column("progress", 11, 13, _progress, most=21)
TTFT = Column("ttft", 6, 45, _plain(lambda r, c: duration(r.ttft)), "right")
TPOT = Column("tpot", 6, 46, _plain(lambda r, c: duration(r.tpot)), "right")
ENDING = Column("ended", 10, 5, _ending)
TOKENS = Column("out tok", 7, 8, _plain(lambda r, c: str(r.output_tokens)), "right")
PROMPT_TOKENS = Column("prompt", 7, 30, _plain(lambda r, c: str(r.prompt_tokens)), "right")
TOTAL = Column("total", 6, 50, _plain(lambda r, c: duration(None if r.ended is None else r.ended - r.arrival)), "right")

_WAITING = (POS, ID, PRE, AGE, PROMPT, OUT, PRIO, GROUP, WHY)
_RUNNING = (POS, ID, PHASE, PROGRESS, PROMPT, OUT, BLOCKS, PRE, AGE, TTFT, TPOT, PRIO, GROUP, HELD)
_FINISHED = (ID, ENDING, PROMPT_TOKENS, TOKENS, TTFT, TPOT, TOTAL, PRE, PRIO, GROUP)
GAP = 1
LONGEST_REASON = 40  # cells that reasons get on top when nothing else wants them
ROOMY = 100
"""Columns of a screen from which aging and slack are in the tables; a smaller one has them in the details only."""


def _columns(kind: QueueKind, aging: bool, slack: bool) -> list[Column]:
    columns = list({"waiting": _WAITING, "running": _RUNNING, "finished": _FINISHED}[kind])
    if aging and kind == "waiting":
        columns[columns.index(PRIO)] = AGED
    if slack and kind != "finished":
        columns.insert(columns.index(AGE) + 1, SLACK)
    return columns


@lru_cache(maxsize=64)
def layout(kind: QueueKind, width: int, aging: bool = False, slack: bool = False) -> tuple[tuple[Column, int], ...]:
    """Columns that fit in `width`, with their widths.

    `aging`: waiting requests show their priority as it counts now; `slack`: those that have a deadline show how far it
    is. Both are there because somebody asked for it, so they stay longer than lengths and ages: after these they are
    dropped, aging before slack (among running ones, slack goes after blk).

    Dropped in this order as it gets narrow. Waiting: group, prio, prompt, age, output, #, pre. Running: held because,
    group, prio, tpot, ttft, prompt, age, output, blk, progress, #, pre. Finished: group, prio, total, tpot, ttft,
    prompt, pre, out tok. The id, and why a request waits, what it does, or how it ended, stay.
    """
    columns = _columns(kind, aging, slack)

    def needed() -> int:
        return sum(c.width for c in columns) + GAP * (len(columns) - 1)

    while len(columns) > 1 and needed() > width:
        columns.remove(max(columns, key=lambda c: c.rank))
    spare = max(0, width - needed())
    widths = {c.title: c.width for c in columns}
    # Room left goes to the reasons first, then to the ids.
    for column in sorted((c for c in columns if c.most), key=lambda c: -c.most):
        extra = min(spare, column.most - column.width)
        widths[column.title] += extra
        spare -= extra
    if columns[-1].most:
        widths[columns[-1].title] += min(spare, LONGEST_REASON)
    return tuple((c, widths[c.title]) for c in columns)
