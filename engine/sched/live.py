"""What can be changed while requests run, options and the size of the pool, and what that means for what is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vtop.engine import events as ev
from vtop.engine.config import EngineConfig, check_option, option_kinds
from vtop.engine.errors import BadValue
from vtop.engine.fields import check
from vtop.engine.policies import PolicyStack, make_policy
from vtop.engine.sched.preemption import make_preemption_mode, make_victim_rule

if TYPE_CHECKING:
    from vtop.engine.policies.queues import WaitingQueue
    from vtop.engine.request import Request
    from vtop.engine.sched.core import SchedulerCore

POLICY_OPTIONS = (
    "scheduling_policy",
    "priority_order",
    "aging_rate",
    "group_weights",
    "sjf_noise",
    "mlfq_quantum",
    "mlfq_levels",
    "mlfq_starvation",
)
"""A change of one of these makes the policy anew, with the state of its parts, and orders everybody again."""

LIVE_OPTIONS = (
    *POLICY_OPTIONS,
    "victim",
    "preemption_mode",
    "preempt_for_waiting",
    "skip_ahead",
    "max_waiting",
    "max_predicted_ttft",
    "max_num_seqs",
    "max_num_batched_tokens",
    "batching",
    "max_prefill_steps",
    "admission",
    "watermark",
    "request_timeout",
)


def switch_option(scheduler: SchedulerCore, name: str, value: Any) -> None:
    """Change an option; nobody loses anything. Raises BadValue, and then nothing changed.

    Lower caps preempt nobody: they hold for what is decided from now on.
    """
    if name not in LIVE_OPTIONS:
        raise BadValue("option", name, f"cannot be changed while the engine runs; these can: {', '.join(LIVE_OPTIONS)}")
    before = getattr(scheduler.config, name)
    value = from_text(name, value)
    check_option(name, value)
    config = replace(scheduler.config, **{name: value})
    rekeyed = None
    if name in POLICY_OPTIONS:
        rekeyed = _replace_policy(scheduler, config)
    elif name == "victim":
        scheduler.victim_rule = make_victim_rule(config.victim, scheduler.policy.rank)
    elif name == "preemption_mode":
        scheduler.preemption_mode = make_preemption_mode(config.preemption_mode)
    scheduler.config = config
    scheduler.note(ev.Switched(name, before, value))
    if rekeyed is not None:
        scheduler.note(rekeyed)
    scheduler.forget_told()


def _replace_policy(scheduler: SchedulerCore, config: EngineConfig) -> ev.Rekeyed:
    """Order everybody by the policy of `config`. A user's policy that cannot raises before anything has changed."""
    policy = make_policy(config)
    waiting, swapped = scheduler.waiting.ordered(), scheduler.swapped.ordered()
    running = scheduler.running.snapshot()
    everybody = waiting + swapped + running
    keys = policy.adopt(waiting + swapped, running, scheduler.now, scheduler.policy)
    for event in scheduler.policy.take_events():
        scheduler.note(event)
    for request, key in zip(everybody, keys, strict=True):
        request.key = key
    scheduler.policy = policy
    scheduler.waiting, scheduler.swapped = _filled(policy, waiting), _filled(policy, swapped)
    scheduler.running = policy.make_running()
    for request in running:
        scheduler.running.push(request)
    scheduler.victim_rule = make_victim_rule(config.victim, policy.rank)
    ids = [request.request_id for request in everybody]
    return ev.Rekeyed(ids, keys, policy.fair_at, dict(policy.counters))


def _filled(policy: PolicyStack, requests: list[Request]) -> WaitingQueue:
    queue = policy.make_queue()
    for request in requests:
        queue.push(request)
    return queue


def set_priority(scheduler: SchedulerCore, request: Request, priority: Any) -> None:
    """Give an alive request another priority. Raises BadValue."""
    check("priority", priority)
    before, request.priority = request.priority, priority
    scheduler.policy.on_priority(request, before)
    scheduler.rekey(request)
    scheduler.note(ev.PrioritySet(request.request_id, before, priority, request.key))


def resize_pool(scheduler: SchedulerCore, num_blocks: int) -> list[Request]:
    """Change the size of the pool. Holders of blocks beyond it are preempted; returns requests that never fit."""
    blocks, before = scheduler.blocks, scheduler.blocks.pool.total
    for request in scheduler.running.snapshot():
        if blocks.holds_beyond(request, num_blocks):
            scheduler._preempt(request, request, ev.PreemptCause.POOL_RESIZED, None, pool_after=num_blocks)
    blocks.pool.resize(num_blocks)
    scheduler._tell_evicted()
    scheduler.note(ev.PoolResized(before, num_blocks))
    alive = scheduler.running.snapshot() + scheduler.waiting.ordered() + scheduler.swapped.ordered()
    return [request for request in alive if not blocks.ever_returns(request)]


def from_text(name: str, value: Any) -> Any:
    """The value of an option as typed by a person: "4", "0.1", "true", "none". Anything else stays as it is."""
    kinds = option_kinds(name)
    if not isinstance(value, str) or str in kinds:
        return value
    text = value.strip().lower()
    if type(None) in kinds and text in ("", "none"):
        return None
    if bool in kinds and text in ("true", "on", "yes", "false", "off", "no"):
        return text in ("true", "on", "yes")
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return value
