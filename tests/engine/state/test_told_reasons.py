"""A reason is told with the numbers of its step, and a preemption with its cause, as data."""

from __future__ import annotations

from vtop.engine import events as ev
from vtop.engine.state.explain import explain, holds
from vtop_support.engines import AuditedEngine


def crowded() -> AuditedEngine:
    """`first` runs and grows by a block every four steps; `head` waits for six blocks, `behind` for `head`."""
    engine = AuditedEngine(8, enable_prefix_caching=False)
    engine.add("first", 11, 12)
    engine.step()
    engine.add("head", 24, 2)
    engine.add("behind", 4, 2)
    return engine


def waits(engine: AuditedEngine) -> list[tuple[int, ev.WaitReason]]:
    return [(f.step, e.reason) for f in engine.frames for e in f.events if isinstance(e, ev.Waits) and e.id == "head"]


def test_a_wait_is_told_again_when_what_is_available_changes_and_not_before() -> None:
    engine = crowded()
    for _ in range(9):
        engine.step()
    told = waits(engine)
    steps = [step for step, _ in told]
    assert steps == [2, 3, 7], told
    for step, reason in told:
        # available when it was decided, by the tables alone: 8 blocks, less those that `first` had grown to
        assert isinstance(reason, ev.NeedsBlocks)
        assert reason.available == 8 - -(-(11 + step - 1) // 4), (step, reason)
    view = engine.state.requests["head"]
    assert view.reason_step == steps[-1]
    assert [t.step for t in view.history if isinstance(t.event, ev.Waits)] == [2, 7]  # the first and the latest


def test_free_and_cached_stand_apart_in_a_reason_and_in_the_state() -> None:
    engine = AuditedEngine(8)
    engine.add("gone", 9, 1)
    engine.run()
    state = engine.state
    assert (state.used, state.cached, state.free, state.available) == (0, 2, 6, 8)
    engine.add("first", 12, 4)
    engine.step()
    engine.add("head", 24, 2)
    engine.step()
    [(_, reason)] = waits(engine)
    assert isinstance(reason, ev.NeedsBlocks)
    # 12 tokens and one more took four of the six free blocks
    assert (reason.need, reason.free, reason.cached, reason.available) == (6, 2, 2, 4)
    [admitted] = engine.events(ev.Admitted, "first")
    assert (admitted.need, admitted.free, admitted.cached) == (3, 6, 2)


def test_a_reason_that_ended_with_its_step_is_known_to_hold_no_longer() -> None:
    engine = crowded()
    engine.step()
    state = engine.state
    head = state.requests["head"]
    assert holds(state, head)
    why = explain(state, "behind")
    assert why is not None and why.holds and (why.head, why.reason_step) == ("head", 2)
    engine.engine.abort_request("first")
    engine.check()
    assert head.reason is not None and not holds(state, head)
    why = explain(state, "behind")
    assert why is not None and not why.holds and why.available == 8


def test_victims_of_a_shrunken_pool_carry_the_cause() -> None:
    engine = AuditedEngine(12)
    engine.add("first", 12, 8)
    engine.add("second", 12, 8)
    engine.step()
    engine.engine.resize_pool(5)
    engine.check()
    victims = engine.events(ev.Preempted)
    assert [v.id for v in victims] == ["second"]
    assert (victims[0].cause, victims[0].pool, victims[0].pool_after) == (ev.PreemptCause.POOL_RESIZED, 12, 5)
    assert victims[0].rule == "" and victims[0].rank == ()
    assert engine.state.last_step.preemptions == 0 and engine.state.totals.preemptions == 1


def test_blocks_that_samples_share_count_once() -> None:
    engine = AuditedEngine(12, enable_prefix_caching=False)
    engine.add("group", 8, 8, n=3, temperature=1.0)
    engine.step()
    engine.step()
    view, state = engine.state.requests["group"], engine.state
    assert view.num_blocks == state.used < sum(len(seq.blocks) for seq in view.sequences)


def test_the_token_budget_is_the_one_in_force() -> None:
    engine = AuditedEngine(8)
    assert engine.state.token_budget == 512
    engine.engine.set_option("max_num_batched_tokens", 64)
    engine.check()
    assert engine.state.token_budget == 64
    engine.engine.set_option("max_num_batched_tokens", None)
    engine.engine.set_option("batching", "prefill-first")
    engine.check()
    assert engine.state.token_budget == engine.engine._scheduler.token_budget == 2048
