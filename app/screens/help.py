"""All keys, from the table of actions, and what the picture means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from vtop.app.actions import Action, Group, key_sign
from vtop.app.terminal.glyphs import glyphs

_MOVES = (
    ("arrows, j k", "In the focused panel; also PgUp, PgDn, Home, End"),
    ("click", "Focus a panel, select a request or a block; double click opens it"),
)
_TERMS = (
    ("block", "block_size tokens of K and V; the map draws one cell per block, or an aggregate when they do not fit"),
    ("used, free", "a block is used while a request holds it, free when nobody does and nothing in it can be hit"),
    ("available", "free + cached: what can be handed out; a cached block is evicted then"),
    ("host pool", "blocks in host memory for swapped requests; its map is there from the first swap on"),
    ("waiting", "not admitted; the reason column says what the head of the queue lacked, and in which step"),
    ("preempted", "lost its blocks so that another could go on; its tokens are computed again (recompute)"),
    ("swapped out", "its K/V moved to the host pool; it returns before anybody is admitted, and nothing is lost"),
    ("step", "one forward pass: decodes take one token each, prefill chunks share what is left of the budget"),
    ("limit", "what kept this step from doing more: blocks, budget, seqs, preempted, swapped; none: nothing left out"),
    ("TTFT / TPOT", "seconds to the first output token / mean seconds per token after it"),
)


class HelpScreen(ModalScreen[None]):
    """Scrolls; any of the keys that opened it closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,h,f1,enter", "dismiss", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown,space", "scroll(15)", show=False),
        Binding("pageup", "scroll(-15)", show=False),
    ]

    def __init__(self, actions: Sequence[Action], ascii: bool) -> None:
        super().__init__()
        self._actions = actions
        self._ascii = ascii

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -help"):
            yield Static("vtop: keys, signs and terms", classes="dialog-title", markup=False)
            with VerticalScroll(id="help-body", can_focus=False):
                yield from self._rows()
            end = "up/down scroll, Esc closes; keys are yours to change: section [keys] of config.toml"
            yield Static(end, id="help-end", markup=False)

    def _rows(self) -> Iterable[Widget]:
        for group in Group:
            yield _title(group.value)
            for action in self._actions:
                if action.group is group and action.keys:
                    keys = " ".join(key_sign(key) for key in action.keys)
                    yield _row(keys, f"{action.title}. {action.help}" if action.help else action.title)
        yield _title("Moving")
        for keys, text in _MOVES:
            yield _row(keys, text)
        yield _title("Signs on the map and in the log")
        for sign, text in self._signs():
            yield _row(sign, text)
        yield _title("Terms")
        for term, text in _TERMS:
            yield _row(term, text)

    def _signs(self) -> Iterable[tuple[str, str]]:
        g = glyphs(self._ascii)
        return (
            (g.free, "free block"),
            (g.used, "held, full; on the owners' map a letter says whose it is"),
            (g.open, "held, with room for more tokens"),
            (g.shared, "held by several block tables"),
            (g.freed, "went free since the last picture"),
            (g.cached, "cached: nobody holds it, but its content can be hit by a prompt that begins alike"),
            (g.copied, "copied on write a moment ago"),
            (f"{g.to_host} {g.from_host}", "swapped out to the host, or in from there, a moment ago; on both maps"),
            (f"{g.arrive} {g.refuse} {g.finish}", "arrived, refused, finished"),
            (f"{g.admit} {g.resume} {g.preempt}", "admitted, admitted again, preempted"),
            (f"{g.swap_out} {g.swap_in}", "swapped out to the host, back from there"),
            (f"{g.fork} {g.sample}", "a request went on as several samples, one of them ended"),
            (g.miss, "not done at its deadline"),
            (f"{g.skip} {g.move} {g.option}", "passed one that does not fit, moved in the order, option changed"),
            (f"{g.hit} {g.evict} {g.cow}", "prefix hit, cached blocks evicted, copied before a write"),
        )

    def action_scroll(self, lines: int) -> None:
        self.query_one("#help-body").scroll_relative(y=lines, animate=False)


def _title(text: str) -> Widget:
    return Static(text, classes="help-group", markup=False)


def _row(left: str, right: str) -> Widget:
    key = Static(left, classes="help-key", markup=False)
    return Horizontal(key, Static(right, classes="help-text", markup=False), classes="help-row")
