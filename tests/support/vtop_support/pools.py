"""What a pool would do, asked of a copy."""

from __future__ import annotations

import copy

from vtop.engine.blocks.pool import BlockPool


def hand_out_order(pool: BlockPool) -> list[int]:
    """Blocks without holder, the next one to be handed out first."""
    return copy.deepcopy(pool).allocate(pool.available)
