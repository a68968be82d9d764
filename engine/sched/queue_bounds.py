"""Who is turned away when too many wait: the least urgent, be it the one who comes or one who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtop.engine import events as ev
from vtop.engine.request import FinishReason, Request
from vtop.engine.sched.admission import Refusal

if TYPE_CHECKING:
    from vtop.engine.sched.core import SchedulerCore


def check_queue(scheduler: SchedulerCore, new: Request) -> Request | None:
    """Who must leave the waiting queue for `new`, which has its key but is in no queue yet; None: there is room.

    Requests that ran already are never turned away: their tokens were seen. Raises Refusal when `new` itself is the
    least urgent, or when those that come before it take longer to prefill than max_predicted_ttft.
    """
    config, place = scheduler.config, scheduler.place_of
    most = config.max_waiting
    leaves: Request | None = None
    if most is not None and len(scheduler.waiting) >= most:
        others = [request for request in scheduler.waiting.ordered() if not request.admissions]
        leaves = max(others, key=place, default=None)
        if leaves is None or place(leaves) <= place(new):
            waiting = len(scheduler.waiting)
            remedy = f"{waiting} wait already, none less urgent; come back later, or raise it"
            raise Refusal(ev.RefusalCode.QUEUE_FULL, "max_waiting", most, remedy, need=waiting + 1, capacity=most)
    if config.max_predicted_ttft is not None:
        _check_predicted(scheduler, new, config.max_predicted_ttft)
    return leaves


def _check_predicted(scheduler: SchedulerCore, new: Request, most: float) -> None:
    rate = scheduler.rates().prefill_tokens_per_second
    if rate <= 0:
        return
    place = scheduler.place_of(new)
    before = [request for request in scheduler.waiting.ordered() if scheduler.place_of(request) < place]
    tokens = new.prompt_len + sum(seq.num_tokens for request in before for seq in request.computing)
    if tokens / rate > most:
        remedy = (
            f"{tokens} prompt tokens take {tokens / rate:.3g} s at {rate:.0f} per second; come back later, or raise it"
        )
        raise Refusal(ev.RefusalCode.PREDICTED_TTFT, "max_predicted_ttft", most, remedy, need=tokens)


def turn_away(scheduler: SchedulerCore, leaves: Request, new: Request) -> None:
    """End a waiting request, so that a more urgent one can wait in its place."""
    most = scheduler.config.max_waiting or 0
    scheduler.note(ev.TurnedAway(leaves.request_id, new.request_id, leaves.key, new.key, most))
    message = f"turned away for {new.request_id}, which is more urgent: max_waiting is {most}"
    scheduler.finish(leaves, FinishReason.REFUSED, message=message)
