"""How the engine is doing, in a word for the header; which actions make sense then, and why one does not."""

from __future__ import annotations

from vtop.app.actions import Situation
from vtop.app.live.view import View
from vtop.engine.state.fold import EngineState
from vtop.engine.thread import ThreadState, ThreadStatus

STALLED_AFTER = 20  # steps in a row that compute nothing while somebody waits
NEEDS_SELECTION = frozenset({"abort", "details", "copy", "why", "priority"})  # ids of actions


def status_word(live: EngineState | None, status: ThreadStatus) -> str:
    """LOADING, RUNNING, PAUSED, IDLE, STALLED, STUCK or FAILED, and why when there is more to say."""
    if status.state == ThreadState.FAILED:
        return "FAILED (stale)"
    if status.stuck:
        return "STUCK"
    if live is None:
        return "LOADING"
    if live.paused:
        return f"PAUSED ({live.pause_reason})" if live.pause_reason not in ("", "command") else "PAUSED"
    if live.idle_frames >= STALLED_AFTER:
        return "STALLED"
    if live.requests:
        return "RUNNING"
    return "IDLE (more to come)" if status.state == ThreadState.RUNNING else "IDLE"


def situation_of(live: EngineState | None, view: View, *, failed: bool, overview: bool, look: bool) -> Situation:
    """What the table of actions asks about."""
    return Situation(
        loaded=live is not None,
        failed=failed,
        paused=live is not None and live.paused,
        alive=len(live.requests) if live is not None else 0,
        selected=view.selected is not None,
        selected_alive=live is not None and view.selected in live.requests,
        overview=overview,
        frozen=view.frozen,
        look=look,
    )


def why_not(needs_selection: bool, now: Situation) -> str:
    """Why an action that is not enabled cannot be done, for a notice."""
    if now.failed:
        return "the engine has stopped; q quits"
    if not now.loaded:
        return "the model is still loading"
    if needs_selection and not now.selected:
        return "select a request first: arrow keys in a queue, or a click on the map"
    if needs_selection and not now.selected_alive:
        return "that request has ended"
    return "not on this screen; Esc goes back"
