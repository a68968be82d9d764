"""BlockManager: the arithmetic of block tables."""

from __future__ import annotations

import pytest

from vtop.engine.blocks.manager import BlockManager
from vtop.engine.request import SamplingParams, Sequence, new_request
from vtop_support.pools import hand_out_order


def sequence(tokens: int = 4) -> Sequence:
    request = new_request("a", 0, list(range(tokens)), SamplingParams(), arrival=0.0, limit=999, seed=0)
    return request.sequences[0]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2)])
def test_exact_multiples(tokens: int, blocks: int) -> None:
    """Field case E075: lengths that are a multiple of the block size; counts 1 while held, 0 after."""
    manager, seq = BlockManager(8, 4), sequence()
    assert len(manager.grow(seq, tokens)) == blocks == manager.blocks_for(tokens)
    assert all(manager.pool.ref_count(b) == 1 for b in seq.blocks)
    manager.free(seq)
    assert [manager.pool.ref_count(b) for b in range(8)] == [0] * 8


def test_growing_takes_the_difference() -> None:
    """Field case E076: 100 -> 200 -> 201 tokens are 7 -> 13 -> 13 blocks of 16."""
    manager, seq = BlockManager(32, 16), sequence()
    sizes = []
    for tokens in (100, 200, 201):
        manager.grow(seq, tokens)
        sizes.append(len(seq.blocks))
    assert sizes == [7, 13, 13]
    assert manager.pool.used == 13


def test_frees_tail_first_so_that_a_prefix_is_reused_last() -> None:
    manager, seq = BlockManager(4, 4), sequence()
    manager.grow(seq, 12)
    assert manager.free(seq) == [2, 1, 0]
    assert hand_out_order(manager.pool) == [3, 2, 1, 0]


def test_queries_change_nothing() -> None:
    manager, seq = BlockManager(4, 4), sequence()
    assert manager.missing(seq, 9) == 3
    assert (manager.pool.free, seq.blocks) == (4, [])
