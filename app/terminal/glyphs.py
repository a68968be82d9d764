"""The characters the screen draws with: one set for terminals that can, one of ASCII for those that cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OWNER_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every glyph is one cell wide. `fill` goes from nearly empty to full, `bar` from 1/8 to 7/8."""

    free: str
    used: str
    open: str  # held, and its last tokens are still to come
    shared: str
    freed: str  # went free since the last picture
    cached: str  # nobody holds it, and its content can be hit
    kept: str  # held, and its content can be hit
    others: str  # after an owner's letter: and others
    copied: str  # a fresh copy on write
    to_host: str  # a block that was just swapped out, at both ends
    from_host: str
    fill: str
    bar_full: str
    bar: str
    line: str
    line_half: str
    rule: str
    ellipsis: str
    arrow: str
    times: str
    dash: str
    dot: str
    marker: str  # of the selected row
    cursor: str  # second cell of the marked block
    scroll: str
    thumb: str
    preempt: str
    swap_out: str
    swap_in: str
    arrive: str
    admit: str
    resume: str
    refuse: str
    finish: str
    wait: str
    pool: str
    hit: str
    evict: str
    cow: str
    cache: str
    fail: str
    note: str
    pause: str
    run: str
    idle: str
    load: str
    stall: str
    upto: str
    fork: str
    sample: str
    skip: str
    move: str
    option: str
    miss: str


UNICODE: Final = Glyphs(
    free="·", used="■", open="◧", shared="▣", freed="○", cached="◇", kept="°", others="+", copied="↳",
    to_host="↓", from_host="↑", fill="▁▂▃▄▅▆▇█",
    bar_full="█", bar="▏▎▍▌▋▊▉", line="━", line_half="╸", rule="─", ellipsis="…", arrow="→", times="×", dash="–",
    dot="·", marker="▌", cursor="◂", scroll="│", thumb="┃", preempt="▼", swap_out="⇄", swap_in="⇆", arrive="+",
    admit="▸", resume="▹", refuse="⊘",
    finish="✓", wait="◦", pool="◫", hit="◇", evict="⊖", cow="↳", cache="∅", fail="✗", note="›", pause="‖", run="▶",
    idle="○", load="◌", stall="▲", upto="–", fork="⋔", sample="✓", skip="»", move="↕", option="≡", miss="◷",
)  # fmt: skip

ASCII: Final = Glyphs(
    free=".", used="#", open="+", shared="%", freed="o", cached=":", kept="'", others="+", copied='"',
    to_host="v", from_host="^", fill="12345678",
    bar_full="#", bar="       ", line="=", line_half="-", rule="-", ellipsis="..", arrow="->", times="x", dash="-",
    dot="|", marker=">", cursor="<", scroll="|", thumb="#", preempt="!", swap_out="S", swap_in="s", arrive="+",
    admit=">", resume="}", refuse="/",
    finish="*", wait="~", pool="=", hit=":", evict="x", cow='"', cache="0", fail="X", note="-", pause="=", run=">",
    idle="o", load="~", stall="!", upto="-", fork="Y", sample="*", skip=")", move="&", option="@", miss="%",
)  # fmt: skip


def glyphs(ascii: bool) -> Glyphs:
    return ASCII if ascii else UNICODE


def letter(number: int) -> str:
    """The letter of the request with that number; it comes round every 62 requests."""
    return OWNER_LETTERS[number % len(OWNER_LETTERS)]


def bar(share: float, width: int, ascii: bool) -> str:
    """A horizontal bar of exactly `width` cells, `share` of it filled in steps of an eighth of a cell."""
    share = min(1.0, max(0.0, share)) if share == share else 0.0
    g = glyphs(ascii)
    eighths = round(share * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1  # something is never shown as nothing
    full, part = divmod(eighths, 8)
    text = g.bar_full * full
    if part and full < width:
        text += g.bar[part - 1] if not ascii else ("-" if full == 0 else " ")
    return text + " " * (width - len(text))


def thin_bar(share: float, width: int, ascii: bool) -> tuple[str, str]:
    """A line in two parts, done and to do, `width` cells together."""
    share = min(1.0, max(0.0, share)) if share == share else 0.0
    g = glyphs(ascii)
    halves = round(share * width * 2)
    if share > 0 and halves == 0:
        halves = 1
    full, half = divmod(halves, 2)
    if full >= width:
        return g.line * width, ""
    done = g.line * full + (g.line_half if half else "")
    return done, ("." if ascii else g.line) * (width - len(done))
