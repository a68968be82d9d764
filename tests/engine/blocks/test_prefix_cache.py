"""Prefix caching: field cases of kinds prefix-identity and prefix-boundary, and outputs equal to a run without it.

Blocks hold 4 tokens unless said. The stub's slots remember what was written, so a wrong hit gives other tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.blocks.prefix import PrefixIndex, blake2_hash, extend_keys
from vtop.engine.errors import BadValue
from vtop.engine.sched.changes import StepPass
from vtop_support.engines import AuditedEngine
from vtop_support.pools import hand_out_order
from vtop_support.stub import StubExecutor, expected_output


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def hits(engine: AuditedEngine, request_id: str) -> list[int]:
    return [e.hit for e in engine.events(ev.PrefixLookup, request_id)]


def test_a_reused_block_does_not_hit_for_its_old_content() -> None:
    """E057: X, then Y over all three blocks, then X again: no hit, same output."""
    engine = AuditedEngine(3)
    engine.add("x1", prompt(10, 8), 1)
    engine.run()
    engine.add("y", prompt(50, 11), 1)
    engine.run()
    engine.add("x2", prompt(10, 8), 1)
    engine.run()
    assert hits(engine, "x2") == [0]
    assert engine.output("x2") == engine.output("x1")
    assert engine.state.totals.evictions >= 2


def test_equal_hashes_of_other_content_do_not_hit() -> None:
    """E058: a hash of two bits; contents are compared, collisions counted."""
    blocks = BlockManager(64, 4, prefix_caching=True, hasher=lambda parent, content: blake2_hash(parent, content) % 4)
    index: PrefixIndex = blocks.pool.index
    engine = AuditedEngine(64)
    engine.engine._blocks = engine.engine._scheduler.blocks = blocks
    for i in range(20):
        engine.add(f"r{i}", [3 + (i * 17 + j * j) % 900 for j in range(9)], 6)
        engine.run()
        assert engine.output(f"r{i}") == expected_output(engine.outputs[f"r{i}"].prompt_token_ids, 6)
    assert index.collisions > 0
    assert all(hits(engine, f"r{i}") == [0] for i in range(20))


def test_blocks_of_a_failed_step_were_never_written() -> None:
    """E060: the forward raises; the same prompt then hits nothing."""
    engine = AuditedEngine(16)
    engine.executor.fail_at = {1}  # type: ignore[attr-defined]
    engine.add("a", prompt(10, 8), 3)
    engine.run()
    engine.add("b", prompt(10, 8), 3)
    engine.run()
    assert engine.finish_reason("a") == "failed" and hits(engine, "b") == [0]
    assert engine.output("b") == expected_output(prompt(10, 8), 3)


@pytest.mark.parametrize("budget", [64, 4])
def test_twins_read_only_what_is_written(budget: int) -> None:
    """E061: the same prompt three times in one step, and once more while the first is at its second chunk."""
    engine = AuditedEngine(64, max_num_batched_tokens=budget)
    for name in "abc":
        engine.add(name, prompt(10, 9), 5)
    engine.step()
    engine.add("d", prompt(10, 9), 5)
    engine.run()
    assert {tuple(engine.output(name)) for name in "abcd"} == {tuple(expected_output(prompt(10, 9), 5))}


def test_the_tail_of_a_chain_goes_first() -> None:
    """E063: one block is needed out of four cached ones: the last goes, and 12 tokens still hit."""
    engine = AuditedEngine(4)
    engine.add("a", prompt(10, 16), 1)
    engine.run()
    assert (engine.state.cached, engine.state.free, engine.state.available) == (4, 0, 4)
    engine.add("b", prompt(90, 3), 1)
    engine.run()
    engine.add("a2", prompt(10, 16), 1)
    engine.run()
    assert hits(engine, "a2") == [12]


def test_a_partly_filled_block_is_private() -> None:
    """E065: 6 equal tokens share one block only."""
    engine = AuditedEngine(16)
    engine.add("a", prompt(10, 6), 6)
    engine.step()
    engine.add("b", prompt(10, 6), 6)
    engine.step()
    a, b = (engine.state.requests[name].sequences[0].blocks for name in "ab")
    assert a[0] == b[0] and not set(a[1:]) & set(b[1:])
    assert engine.state.ref_count[a[0]] == 2


@pytest.mark.parametrize(("size", "block_size", "hit"), [(8, 4, 7), (4, 4, 3), (5, 1, 4)])
def test_a_whole_prompt_that_is_cached_computes_one_token(size: int, block_size: int, hit: int) -> None:
    """E066: the least that gives a logit is one token."""
    engine = AuditedEngine(16, block_size=block_size)
    engine.add("a", prompt(10, size), 2)
    engine.run()
    engine.add("b", prompt(10, size), 2)
    engine.step()
    assert engine.ran() == {"b": 1}
    engine.run()
    assert hits(engine, "b") == [hit] and engine.output("b") == engine.output("a")


def test_a_cached_block_that_others_hold_is_copied_before_its_last_token_is_written() -> None:
    engine = AuditedEngine(16)
    engine.add("a", prompt(10, 8), 6)
    engine.step()
    engine.add("b", prompt(10, 8), 6)
    engine.step()
    [copy] = engine.events(ev.CopiedOnWrite)
    a, b = (engine.state.requests[name].sequences[0].blocks for name in "ab")
    assert (copy.id, copy.source, copy.target, copy.logical) == ("b", a[1], b[1], 1) and a[0] == b[0]
    engine.run()
    assert engine.output("a") == engine.output("b") == expected_output(prompt(10, 8), 6)


def test_a_preempted_request_finds_its_own_blocks() -> None:
    """E067: P=8, preempted after 5 outputs (13 tokens), blocks untouched: 12 tokens hit, exactly one is computed."""
    engine = AuditedEngine(64)
    engine.add("A", prompt(10, 8), 12)
    for _ in range(5):
        engine.step()
    request = engine.engine._requests["A"]
    engine.engine._scheduler._preempt(request, request, ev.PreemptCause.NO_FREE_BLOCK, None)
    engine.check()
    engine.step()
    assert engine.ran() == {"A": 1} and hits(engine, "A") == [0, 12]
    assert engine.state.totals.resumed_hit_tokens == 12 and engine.state.totals.hit_tokens == 0
    engine.run()
    assert engine.output("A") == expected_output(prompt(10, 8), 12)


def test_a_hit_that_does_not_fit_holds_nothing() -> None:
    """E068: 3 cached blocks hit and 3 new ones needed, 2 left beside them: not admitted, counts unmoved, 100 steps."""
    engine = AuditedEngine(7)
    engine.add("old", prompt(10, 12), 1)
    engine.run()
    engine.add("long", prompt(90, 5), 200)
    engine.step()
    pool = engine.engine._blocks.pool
    assert (pool.cached, pool.available) == (3, 5)
    engine.add("new", prompt(10, 24), 1)
    before = [pool.ref_count(b) for b in range(7)], hand_out_order(pool)
    scheduler: Any = engine.engine._scheduler
    for _ in range(100):
        reason = scheduler.admission.of_waiting(StepPass(0.0, 64), engine.engine._requests["new"])
        assert isinstance(reason, ev.NeedsBlocks) and reason.need == 6
    assert before == ([pool.ref_count(b) for b in range(7)], hand_out_order(pool))
    engine.step()
    [wait] = engine.events(ev.Waits, "new")
    assert (wait.reason.need, wait.reason.free, wait.reason.cached) == (6, 2, 3)
    engine.run()


def test_a_beginning_shorter_than_a_block_hits_nothing() -> None:
    """E070: sharing works in whole blocks."""
    engine = AuditedEngine(200, block_size=16)
    for i in range(10):
        engine.add(f"r{i}", prompt(10, 10) + prompt(100 + 20 * i, 12), 2)
        engine.run()
    assert engine.state.totals.hit_tokens == 0 and engine.state.totals.looked_up_tokens == 220


@pytest.mark.parametrize("block_size", [1, 4])
def test_everything_is_accounted_for_after_a_chunked_request(block_size: int) -> None:
    """E072: free + cached = total; nothing on two lists."""
    engine = AuditedEngine(32, block_size=block_size, max_num_batched_tokens=4)
    engine.add("a", prompt(10, 5), 20)
    engine.run()
    pool = engine.engine._blocks.pool
    order = hand_out_order(pool)
    assert len(order) == len(set(order)) == pool.total == pool.free + pool.cached


def test_shared_cached_blocks_count_once() -> None:
    """E073: two finished requests that shared two full blocks."""
    engine = AuditedEngine(16)
    engine.add("a", [*prompt(10, 8), 500], 2)
    engine.step()
    engine.add("b", [*prompt(10, 8), 600], 2)
    engine.run()
    assert engine.state.cached + (16 - engine.state.cached) == 16 and engine.state.used == 0
    assert engine.state.cached == engine.engine._blocks.pool.cached == 2


def test_own_blocks_after_a_preemption_do_not_raise_the_hit_rate() -> None:
    """E112: 20 unrelated prompts in a tight pool: 0 % for first admissions, self-hits apart."""
    engine = AuditedEngine(12)
    for i in range(20):
        engine.add(f"r{i}", [3 + (i * 41 + j) % 900 for j in range(10)], 20)
    engine.run()
    assert engine.state.totals.preemptions > 0
    assert engine.state.totals.hit_tokens == 0


def test_salts_keep_apart() -> None:
    engine = AuditedEngine(16)
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        engine.engine.add_request(name, prompt(10, 8), None, cache_salt=salt)
        engine.step()
        engine.engine.abort_request(name)
    assert [hits(engine, name) for name in "abc"] == [[0], [0], [7]]


def test_reset_forgets_and_keeps_what_runs() -> None:
    engine = AuditedEngine(16)
    engine.add("a", prompt(10, 8), 4)
    engine.run()
    engine.add("b", prompt(50, 8), 9)
    engine.step()
    assert engine.engine.reset_prefix_cache() > 0
    engine.check()
    assert engine.state.cached == 0
    engine.add("a2", prompt(10, 8), 4)
    engine.run()
    assert hits(engine, "a2") == [0] and engine.output("b") == expected_output(prompt(50, 8), 9)


def test_keys_of_a_chain_depend_on_everything_before() -> None:
    keys_a: list[Any] = []
    keys_b: list[Any] = []
    extend_keys(keys_a, [1, 2, 3, 4], 2, 2)
    extend_keys(keys_b, [9, 2, 3, 4], 2, 2)
    assert keys_a[1].tokens == keys_b[1].tokens and keys_a[1].hash != keys_b[1].hash
    assert not keys_a[1].same_content(keys_b[1])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 5), st.integers(1, 14), st.integers(0, 3)),
        min_size=1,
        max_size=14,
    ),
    num_blocks=st.integers(8, 24),
    block_size=st.sampled_from([1, 4]),
    budget=st.sampled_from([4, 16, 64]),
    batching=st.sampled_from(["chunked", "prefill-first"]),
)
def test_outputs_do_not_depend_on_the_cache(
    requests: list[tuple[int, int, int, int, int]], num_blocks: int, block_size: int, budget: int, batching: str
) -> None:
    """I1 to I4 with prompts that share beginnings, through evictions, copies and preemptions."""
    executor = StubExecutor(num_blocks, block_size)
    engine = AuditedEngine(
        num_blocks, executor=executor, block_size=block_size, max_num_batched_tokens=budget, batching=batching
    )
    prompts = {}
    for i, (family, shared, own, outputs, steps) in enumerate(requests):
        tokens = [10 + family * 100 + j for j in range(shared)] + [700 + i * 6 + j for j in range(own)]
        try:
            engine.add(f"r{i}", tokens, outputs)
            prompts[f"r{i}"] = tokens
        except BadValue:
            engine.check()
        for _ in range(steps):
            if engine.engine.has_unfinished_requests():
                engine.step()
    engine.run()
    for name, tokens in prompts.items():
        out = engine.output(name)
        assert out == expected_output(tokens, len(out))
    assert engine.state.used == 0
