"""Policies, one per file, and the registry of their names."""

from __future__ import annotations

from vtop.engine.errors import BadValue
from vtop.engine.policies.base import Policy
from vtop.engine.policies.fcfs import Fcfs

POLICIES: dict[str, type[Policy]] = {"fcfs": Fcfs}

__all__ = ["POLICIES", "Policy", "make_policy"]


def make_policy(name: str) -> Policy:
    """The policy of that name. Raises BadValue."""
    if name not in POLICIES:
        raise BadValue("scheduling_policy", name, f"choose one of {', '.join(POLICIES)}")
    return POLICIES[name]()
