"""BlockPool: order of the free list, reference counts, and that a refused call changes nothing."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine.blocks.pool import BlockPool
from vtop.engine.errors import NoFreeBlocks, PoolError
from vtop_support.pools import hand_out_order


def test_hands_out_in_order_of_last_use() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([1])
    pool.release([0])
    assert hand_out_order(pool) == [3, 1, 0]
    assert pool.allocate(2) == [3, 1]


def test_asking_for_too_many_changes_nothing() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(NoFreeBlocks) as caught:
        pool.allocate(2)
    assert (caught.value.need, caught.value.available) == (2, 1)
    assert (pool.free, pool.used) == (1, 1)


@pytest.mark.parametrize("wrong", [[3, 3, 5], [5, 7], [-1], [8]])
def test_releasing_what_is_not_held_changes_nothing(wrong: list[int]) -> None:
    """Field case E079: a double release, or one at count 0, must not corrupt the free list."""
    pool = BlockPool(8)
    pool.allocate(6)
    before = hand_out_order(pool)
    with pytest.raises(PoolError, match="more often than held"):
        pool.release(wrong)
    assert hand_out_order(pool) == before
    assert [pool.ref_count(b) for b in range(8)] == [1] * 6 + [0] * 2


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.share(block)
    pool.release([block])
    assert (pool.ref_count(block), pool.free) == (1, 1)
    pool.release([block])
    assert (pool.ref_count(block), pool.free) == (0, 2)


def test_a_free_block_can_be_taken_back_out_of_the_middle() -> None:
    pool = BlockPool(5)
    pool.share(2)
    assert hand_out_order(pool) == [0, 1, 3, 4]


def test_resize_keeps_order_and_refuses_held_blocks() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    pool.release([0])
    pool.resize(6)
    assert hand_out_order(pool) == [2, 3, 0, 4, 5]
    with pytest.raises(PoolError, match="held"):
        pool.resize(1)
    pool.resize(2)
    assert (hand_out_order(pool), pool.used) == ([0], 1)


@settings(max_examples=200)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from(["take", "share", "release", "resize"]), st.integers(0, 11))),
)
def test_against_a_plain_model(total: int, actions: list[tuple[str, int]]) -> None:
    """I1 and the LRU order, against a deque and a Counter."""
    pool = BlockPool(total)
    free, held = deque(range(total)), Counter[int]()
    for action, n in actions:
        if action == "take" and n <= len(free):
            taken = [free.popleft() for _ in range(n)]
            assert pool.allocate(n) == taken
            held.update(taken)
        elif action == "share" and n < total:
            pool.share(n)
            held[n] += 1
            if n in free:
                free.remove(n)
        elif action == "release" and held[n]:
            pool.release([n])
            held[n] -= 1
            if not held[n]:
                free.append(n)
        elif action == "resize" and n >= 1 and not any(held[b] for b in range(n, total)):
            pool.resize(n)
            free = deque([b for b in free if b < n] + list(range(total, n)))
            total = n
        assert hand_out_order(pool) == list(free)
        assert pool.free + pool.used == pool.total == total
        pool.check([[b] * count for b, count in held.items()])
