"""Events in words, as long as there is room for: what happened, to whom, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vtop.app.terminal.glyphs import Glyphs, glyphs
from vtop.app.terminal.safe_text import cells
from vtop.app.widgets.log_lines import Line
from vtop.app.widgets.reasons import ID_CELLS, blocks_available, ordinal, reason_text, short_id
from vtop.app.widgets.units import count, duration
from vtop.engine import events as ev

SHORT_BELOW = 110  # cells: a preemption is put in fewer words
BLOCKS_NAMED = 8


def words(line: Line, ascii: bool, width: int = 1000) -> str:
    """The message of a line, worded for so many cells. Everything from outside in it is cleaned."""
    if width < SHORT_BELOW:
        if isinstance(line.event, ev.Preempted):
            return _preempted_short(line.event, ascii, glyphs(ascii), width)
        if isinstance(line.event, ev.SwappedOut):
            return _swapped_out_short(line.event, ascii, glyphs(ascii), width)
        if isinstance(line.event, ev.Waits):
            return _waits_short(line.event, ascii, width)
    return _WORDS[type(line.event)](line, line.event, ascii, glyphs(ascii))


def _blocks(number: int) -> str:
    return f"{count(number)} block{'' if number == 1 else 's'}"


def _tokens(number: int) -> str:
    return f"{count(number)} token{'' if number == 1 else 's'}"


def _arrived(line: Line, e: ev.Arrived, ascii: bool, g: Glyphs) -> str:
    most = "no limit" if e.max_tokens is None else f"max {_tokens(e.max_tokens)}"
    text = f"{short_id(e.id, ascii)}  prompt {_tokens(e.prompt_tokens)}, {most}"
    if e.priority:
        text += f", priority {e.priority}"
    if e.group != "default":
        text += f", group {short_id(e.group, ascii)}"
    return text


def _refused(line: Line, e: ev.Refused, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  {short_id(e.message or e.code.value, ascii, 200)}"


def _admitted(line: Line, e: ev.Admitted, ascii: bool, g: Glyphs) -> str:
    mark = f" (+{e.watermark} wm)" if e.watermark else ""
    return f"{short_id(e.id, ascii)}  needs {_blocks(e.need)}{mark}, {blocks_available(e.free, e.cached)}"


def _waits(line: Line, e: ev.Waits, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  {reason_text(e.reason, ascii, own=e.id)}"


def _waits_short(e: ev.Waits, ascii: bool, width: int) -> str:
    """What is needed in one number where the parts would be cut."""
    text, reason = reason_text(e.reason, ascii, own=e.id), e.reason
    name = short_id(e.id, ascii)
    if isinstance(reason, ev.NeedsBlocks) and cells(name) + 2 + cells(text) > width:
        text = f"needs {reason.total} blk, {reason.available} available"
    return f"{name}  {text}"


def _skipped(line: Line, e: ev.Skipped, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  got no tokens: {reason_text(e.reason, ascii, own=e.id)}"


def _preempted(line: Line, e: ev.Preempted, ascii: bool, g: Glyphs) -> str:
    return (
        f"{short_id(e.id, ascii)} ({_beneficiary(e, ascii, 'gave way itself')}): "
        f"{_blocks(e.blocks_freed)} freed, {_tokens(e.tokens_lost)} lost, "
        f"{ordinal(e.count)} time, {_pool(e, g)}, {e.mode}{_mode_why(e)}{_rule(e)}{_CAUSES.get(e.cause, '')}"
    )


def _swapped_out(line: Line, e: ev.SwappedOut, ascii: bool, g: Glyphs) -> str:
    return (
        f"{short_id(e.id, ascii)} ({_beneficiary(e, ascii, 'gave way itself')}): "
        f"{_blocks(len(e.pairs))} moved to the host, nothing lost, "
        f"{ordinal(e.count)} time, {_pool(e, g)}, swap{_mode_why(e)}{_rule(e)}{_CAUSES.get(e.cause, '')}"
    )


_CAUSES = {
    ev.PreemptCause.MORE_URGENT: ", more urgent",
    ev.PreemptCause.STEP_FAILED: ", step failed",
}


def _beneficiary(e: ev.GaveWay, ascii: bool, itself: str, most: int = ID_CELLS) -> str:
    """For whom it was preempted, or for what where no request asked for it."""
    match e.cause:
        case ev.PreemptCause.POOL_RESIZED:
            sizes = "" if e.pool_after is None else f" {e.pool}{glyphs(ascii).arrow}{e.pool_after}"
            return f"pool shrunk{sizes}"
        case ev.PreemptCause.CACHE_RESET:
            return "cache reset"
        case _:
            return itself if e.id == e.for_id else f"for {short_id(e.for_id, ascii, most)}"


def _rule(e: ev.GaveWay) -> str:
    return f", rule {e.rule}" if e.rule else ""


def _pool(e: ev.GaveWay, g: Glyphs) -> str:
    return f"pool {e.used_before}/{e.pool} {g.arrow} {e.used_after}/{e.pool}"


def _mode_why(e: ev.GaveWay) -> str:
    """Why the victim's KV was kept or thrown away, with the estimates that were compared."""
    swap, recompute = duration(e.swap_seconds), duration(e.recompute_seconds)
    compared = f"swap {swap}, recompute {recompute}"
    match e.why:
        case ev.ModeWhy.CHEAPER:
            return f" ({compared})" if e.swap_seconds is not None or e.recompute_seconds is not None else ""
        case ev.ModeWhy.HOST_FULL:
            return " (host pool full)"
        case ev.ModeWhy.NOTHING_COMPUTED:
            return " (nothing to keep)"
        case _:
            return ""


def _swapped_out_short(e: ev.SwappedOut, ascii: bool, g: Glyphs, width: int) -> str:
    whom = _beneficiary(e, ascii, "itself", 16)
    first = f"{short_id(e.id, ascii, 16)} ({whom}): {len(e.pairs)} blk to host, {ordinal(e.count)}"
    why = _mode_why(e).strip(" ()")
    return _with_rest(first, (why, f"pool {e.used_before}{g.arrow}{e.used_after}/{e.pool}", e.rule), width)


def _with_rest(first: str, rest: tuple[str, ...], width: int) -> str:
    """More facts while they fit, whole or not at all."""
    for part in filter(None, rest):
        if cells(first) + cells(part) + 2 > width:
            break
        first += f", {part}"
    return first


def _preempted_short(e: ev.Preempted, ascii: bool, g: Glyphs, width: int) -> str:
    """Who, for whom, blocks, tokens lost and how often come first, in fewer words where they would be cut."""
    whom = _beneficiary(e, ascii, "itself", 16)
    who = f"{short_id(e.id, ascii, 16)} ({whom})"
    first = f"{who}: {e.blocks_freed} blk, {e.tokens_lost} tok lost, {ordinal(e.count)}"
    if cells(first) > width:
        first = f"{who} {e.blocks_freed}blk {e.tokens_lost}tok {ordinal(e.count)}"
    rest = (f"pool {e.used_before}{g.arrow}{e.used_after}/{e.pool}", e.mode + _mode_why(e), e.rule)
    return _with_rest(first, rest, width)


def _finished(line: Line, e: ev.Finished, ascii: bool, g: Glyphs) -> str:
    text = f"{short_id(e.id, ascii)}  {e.reason}, {_tokens(e.output_tokens)}"
    if e.stop_reason is not None:
        text += f" at {short_id(repr(e.stop_reason), ascii)}"
    if line.request is not None:
        request = line.request
        text += f", ttft {duration(request.ttft)}"
        if request.tpot is not None:
            text += f", tpot {duration(request.tpot)}"
        if request.preemptions:
            text += f", {request.preemptions}{g.times} preempted"
    if e.message:
        text += f": {short_id(e.message, ascii, 200)}"
    return text


def _swapped_in(line: Line, e: ev.SwappedIn, ascii: bool, g: Glyphs) -> str:
    mark = f" (+{e.watermark} wm)" if e.watermark else ""
    have = blocks_available(e.free, e.cached)
    return f"{short_id(e.id, ascii)}  {_blocks(len(e.pairs))} back from the host, needed {e.need}{mark}, {have}"


def _swap_out_failed(line: Line, e: ev.SwapOutFailed, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  not saved in the host pool: waits, {_tokens(e.tokens_lost)} lost"


def _forked(line: Line, e: ev.Forked, ascii: bool, g: Glyphs) -> str:
    again = f", in {count(line.steps)} steps" if line.steps > 1 else ""
    if e.prompt_tokens is not None:
        return f"{short_id(e.id, ascii)}  the samples share {_blocks(len(e.blocks))} of their prompt again{again}"
    return f"{short_id(e.id, ascii)}  {e.child + 1} samples, {_blocks(len(e.blocks))} shared{again}"


def _sample(line: Line, e: ev.SequenceFinished, ascii: bool, g: Glyphs) -> str:
    text = f"{short_id(e.id, ascii)}  sample {e.seq} ended: {e.reason}, {_tokens(e.output_tokens)}"
    return text if e.stop_reason is None else f"{text} at {short_id(repr(e.stop_reason), ascii)}"


def _searched(line: Line, e: ev.Searched, ascii: bool, g: Glyphs) -> str:
    if not e.outputs:
        return f"{short_id(e.id, ascii)}  beam search found nothing"
    best = e.outputs[0]
    text = f"{short_id(e.id, ascii)}  beam search returns {len(e.outputs)}, the best of {_tokens(len(best.tokens))}"
    return f"{text}: log-prob {best.logprob:.2f}, score {best.score:.3f}"


def _chosen(line: Line, e: ev.Chosen, ascii: bool, g: Glyphs) -> str:
    samples = ", ".join(
        f"{seq} (log-prob {logprob:.2f})" for seq, logprob in zip(e.seqs[:3], e.logprobs[:3], strict=True)
    )
    more = f" and {len(e.seqs) - 3} more" if len(e.seqs) > 3 else ""
    return f"{short_id(e.id, ascii)}  returns sample{'s' if len(e.seqs) > 1 else ''} {samples}{more}"


def _passed(line: Line, e: ev.Passed, ascii: bool, g: Glyphs) -> str:
    heads = ", ".join(short_id(head, ascii) for head in e.heads[:3])
    more = f" and {len(e.heads) - 3} more" if len(e.heads) > 3 else ""
    return f"{short_id(e.id, ascii)}  fits and passes {heads}{more}, {e.count} of {e.limit}"


_MOVES = {
    ev.MoveCause.AGING: "it waited so long that it comes before a more important one",
    ev.MoveCause.STARVED: "it waited too long",
    ev.MoveCause.QUANTUM: "it used up its quantum",
    ev.MoveCause.USER: "the policy says so",
}


def _promoted(line: Line, e: ev.Promoted, ascii: bool, g: Glyphs) -> str:
    what = "aged" if e.cause is ev.MoveCause.AGING else "level"
    text = f"{short_id(e.id, ascii)}  {what} {e.before:g} {g.arrow} {e.after:g}"
    return f"{text}: {_MOVES[e.cause]}"


def _demoted(line: Line, e: ev.Demoted, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  level {e.before:g} {g.arrow} {e.after:g}: {_MOVES[ev.MoveCause.QUANTUM]}"


def _lifted(line: Line, e: ev.Lifted, ascii: bool, g: Glyphs) -> str:
    return f"group {short_id(e.group, ascii)} is back, its counter {e.before:g} {g.arrow} {e.after:g}"


def _priority_set(line: Line, e: ev.PrioritySet, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  priority {e.before} {g.arrow} {e.after}"


def _switched(line: Line, e: ev.Switched, ascii: bool, g: Glyphs) -> str:
    if e.before == e.after and e.option == "scheduling_policy":
        return f"policy {short_id(str(e.after), ascii, 60)} loaded again"
    before, after = (short_id("none" if v is None else str(v), ascii, 60) for v in (e.before, e.after))
    return f"{e.option}: {before} {g.arrow} {after}"


def _turned_away(line: Line, e: ev.TurnedAway, ascii: bool, g: Glyphs) -> str:
    whom = short_id(e.for_id, ascii)
    return f"{short_id(e.id, ascii)}  turned away for {whom}, which is more urgent: at most {count(e.limit)} may wait"


def _missed(line: Line, e: ev.DeadlineMissed, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  not done at its deadline, {count(e.output_tokens)} tokens so far; it goes on"


def _step_failed(line: Line, e: ev.StepFailed, ascii: bool, g: Glyphs) -> str:
    ended = f"{len(e.ids)} request{'s' * (len(e.ids) != 1)} ended" if e.ids else "the step is abandoned, nobody ended"
    return f"{e.where}: {short_id(e.error, ascii, 300)}; {ended}"


def _pool_resized(line: Line, e: ev.PoolResized, ascii: bool, g: Glyphs) -> str:
    return f"{_blocks(e.before)} {g.arrow} {_blocks(e.after)}"


def _hit(line: Line, e: ev.PrefixLookup, ascii: bool, g: Glyphs) -> str:
    again = ", resumed" if e.resumed else ""
    return f"{short_id(e.id, ascii)}  {e.hit}/{e.tokens} tok, {e.blocks} blk from cache{again}"


def _evicted(line: Line, e: ev.Evicted, ascii: bool, g: Glyphs) -> str:
    text = f"{count(line.blocks)} cached block{'' if line.blocks == 1 else 's'}"
    if line.steps > 1:
        return f"{text} in {count(line.steps)} steps"
    return f"{text}: {_some(e.blocks, g)}{_last_use(e, line.time)}"


def _last_use(e: ev.Evicted, now: float) -> str:
    """What the content was, and for how long nobody had used it."""
    if not e.last_used:
        return ""
    least, most = now - max(e.last_used), now - min(e.last_used)
    if len(e.blocks) == 1:
        return f" (content {e.hashes[0]:016x}, unused for {duration(most)})"
    return f" (unused for {duration(least)} to {duration(most)})"


def _some(blocks: list[int], g: Glyphs) -> str:
    return ", ".join(map(str, blocks[:BLOCKS_NAMED])) + (f" {g.ellipsis}" if len(blocks) > BLOCKS_NAMED else "")


def _copied(line: Line, e: ev.CopiedOnWrite, ascii: bool, g: Glyphs) -> str:
    return f"{short_id(e.id, ascii)}  blk {e.source} {g.arrow} {e.target}, it was shared"


def _cache_reset(line: Line, e: ev.CacheReset, ascii: bool, g: Glyphs) -> str:
    return f"reset: the content of {_blocks(e.blocks)} can no longer be hit"


def _paused(line: Line, e: ev.Paused, ascii: bool, g: Glyphs) -> str:
    why = e.text or e.why
    return f"paused: {short_id(why, ascii, 120)}" if why else "paused"


def _resumed(line: Line, e: ev.Resumed, ascii: bool, g: Glyphs) -> str:
    return "runs on"


def _speed(line: Line, e: ev.SpeedSet, ascii: bool, g: Glyphs) -> str:
    return "no cap on speed" if e.steps_per_second is None else f"at most {e.steps_per_second:g} steps a second"


def _behind(line: Line, e: ev.SubscriberBehind, ascii: bool, g: Glyphs) -> str:
    return f"the engine waited {duration(e.seconds)} for {short_id(e.name, ascii)}"


def _note(line: Line, e: ev.Note, ascii: bool, g: Glyphs) -> str:
    return short_id(e.text, ascii, 400)


_WORDS: dict[type, Callable[[Line, Any, bool, Glyphs], str]] = {
    ev.Arrived: _arrived,
    ev.Refused: _refused,
    ev.Admitted: _admitted,
    ev.Waits: _waits,
    ev.Skipped: _skipped,
    ev.Preempted: _preempted,
    ev.SwappedOut: _swapped_out,
    ev.SwapOutFailed: _swap_out_failed,
    ev.SwappedIn: _swapped_in,
    ev.Forked: _forked,
    ev.SequenceFinished: _sample,
    ev.Searched: _searched,
    ev.Chosen: _chosen,
    ev.Passed: _passed,
    ev.Promoted: _promoted,
    ev.Demoted: _demoted,
    ev.Lifted: _lifted,
    ev.PrioritySet: _priority_set,
    ev.Switched: _switched,
    ev.TurnedAway: _turned_away,
    ev.DeadlineMissed: _missed,
    ev.Finished: _finished,
    ev.StepFailed: _step_failed,
    ev.PoolResized: _pool_resized,
    ev.PrefixLookup: _hit,
    ev.Evicted: _evicted,
    ev.CopiedOnWrite: _copied,
    ev.CacheReset: _cache_reset,
    ev.Paused: _paused,
    ev.Resumed: _resumed,
    ev.SpeedSet: _speed,
    ev.SubscriberBehind: _behind,
    ev.Note: _note,
}
