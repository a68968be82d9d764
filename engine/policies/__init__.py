"""Who goes first: policies, one per file, and how a stack of them is made from its name.

A policy sees requests and gives keys: no block, no budget and no scheduler enters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vtop.engine.policies.base import KeyChange, Policy
from vtop.engine.policies.deadline import Deadline
from vtop.engine.policies.fair import Fair
from vtop.engine.policies.fcfs import Fcfs
from vtop.engine.policies.mlfq import MultiLevel
from vtop.engine.policies.priority import Priority
from vtop.engine.policies.sjf import ShortestJob
from vtop.engine.policies.stack import PolicyStack
from vtop.engine.policies.user import load_user_policy
from vtop.engine.policy_spec import POLICY_NAMES, parse_spec, parse_weights

if TYPE_CHECKING:
    from vtop.engine.config import EngineConfig

__all__ = ["POLICIES", "KeyChange", "Policy", "PolicyStack", "make_policy"]

POLICIES: dict[str, Callable[[EngineConfig], Policy]] = {
    "fcfs": lambda config: Fcfs(),
    "priority": lambda config: Priority(config.aging_rate, config.priority_order == "high-first"),
    "fair": lambda config: Fair(parse_weights(config.group_weights)),
    "deadline": lambda config: Deadline(),
    "sjf": lambda config: ShortestJob(config.sjf_noise, config.seed),
    "mlfq": lambda config: MultiLevel(config.mlfq_quantum, config.mlfq_levels, config.mlfq_starvation),
}
assert tuple(POLICIES) == POLICY_NAMES


def make_policy(config: EngineConfig) -> PolicyStack:
    """The stack that `config.scheduling_policy` names, without requests. Loads a user's file. Raises BadValue."""
    spec = config.scheduling_policy
    names = parse_spec(spec)
    return PolicyStack(spec, [POLICIES[n](config) if n in POLICIES else load_user_policy(n) for n in names])
