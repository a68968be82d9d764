"""Who is preempted when no block is free, and what becomes of the KV that it held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vtop.engine.block_manager import BlockManager
from vtop.engine.errors import BadValue
from vtop.engine.request import Request


class VictimRule(Protocol):
    """Chooses a victim among running requests."""

    name: str

    def choose(self, running: Sequence[Request], needy: Request) -> Request:
        """One of `running` (never empty, in policy order, `needy` among them); `needy` itself: it gives way."""
        ...


class Latest:
    """The request that was admitted last, so that those that ran longest go on."""

    name = "latest"

    def choose(self, running: Sequence[Request], needy: Request) -> Request:
        return max(running, key=lambda request: request.admitted_serial)


class PreemptionMode(Protocol):
    """What becomes of a victim's KV."""

    name: str

    def preempt(self, victim: Request, blocks: BlockManager) -> list[list[int]]:
        """Take the victim's blocks; returns those given back per sequence, in order of release."""
        ...


class Recompute:
    """Throw the KV away; prompt and outputs are computed again when the request returns."""

    name = "recompute"

    def preempt(self, victim: Request, blocks: BlockManager) -> list[list[int]]:
        return [blocks.free(seq) for seq in victim.sequences]


VICTIM_RULES: dict[str, type[VictimRule]] = {"latest": Latest}
PREEMPTION_MODES: dict[str, type[PreemptionMode]] = {"recompute": Recompute}


def make_victim_rule(name: str) -> VictimRule:
    """The victim rule of that name. Raises BadValue."""
    if name not in VICTIM_RULES:
        raise BadValue("victim", name, f"choose one of {', '.join(VICTIM_RULES)}")
    return VICTIM_RULES[name]()


def make_preemption_mode(name: str) -> PreemptionMode:
    """The preemption mode of that name. Raises BadValue."""
    if name not in PREEMPTION_MODES:
        raise BadValue("preemption_mode", name, f"choose one of {', '.join(PREEMPTION_MODES)}")
    return PREEMPTION_MODES[name]()
