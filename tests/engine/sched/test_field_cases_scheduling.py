"""Faults people met in serving engines, as small cases for the scheduler. Case numbers in the docstrings.

Blocks hold 4 tokens unless said. A sequence that gave k outputs stores prompt + k - 1 tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.executor import SampledToken, StepOutput
from vtop.engine.request import Request, SamplingParams, Sequence, new_request
from vtop.engine.sched.output import Accepted
from vtop.engine.sched.scheduler import Scheduler
from vtop_support.engines import AuditedEngine
from vtop_support.stub import expected_output

# --- no-progress ---------------------------------------------------------------------------------------------------


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    """E001: 40 tokens need 10 blocks of 8."""
    engine = AuditedEngine(8, max_model_len=64)
    with pytest.raises(BadValue, match="needs 10 blocks of 4, the pool has 8"):
        engine.add("A", 40, 4)
    engine.add("B", 4, 4)
    engine.run()
    [refused] = engine.events(ev.Refused)
    assert (refused.id, refused.need, refused.capacity) == ("A", 10, 8)
    assert len(engine.output("B")) == 4
    assert not engine.state.waiting


def test_a_request_that_outgrows_the_pool_ends_with_what_it_has() -> None:
    """E002: 28 + 20 tokens in 32 slots: 5 tokens, then capacity; nobody behind it is stuck."""
    engine = AuditedEngine(8, max_model_len=64)
    engine.add("A", 28, 20)
    engine.add("B", 4, 2)
    engine.run()
    assert (len(engine.output("A")), engine.finish_reason("A")) == (5, "capacity")
    view = engine.state.find("A")
    assert view is not None and "need 9 blocks" in view.message and view.preemptions <= 1
    assert len(engine.output("B")) == 2


def test_more_seats_than_blocks() -> None:
    """E004: 12 requests of 2 blocks each in a pool of 5."""
    engine = AuditedEngine(5, block_size=16, max_num_seqs=32)
    for i in range(12):
        engine.add(f"r{i}", 10, 10)
    engine.run()
    assert all(len(engine.output(f"r{i}")) == 10 for i in range(12))


def test_without_chunking_a_prompt_over_the_budget_is_refused() -> None:
    """E006: 20 tokens, budget 16; the next one runs."""
    engine = AuditedEngine(64, batching="prefill-first", max_num_batched_tokens=16, max_model_len=64)
    with pytest.raises(BadValue, match="max_num_batched_tokens 16"):
        engine.add("long", 20, 2)
    engine.add("short", 4, 2)
    engine.run()
    assert len(engine.output("short")) == 2


@pytest.mark.parametrize("prompt", [4, 8, 12])
def test_a_prompt_of_whole_blocks_goes_on(prompt: int) -> None:
    """E007: a new block exactly when the slots pass a multiple of 4."""
    engine = AuditedEngine(10)
    engine.add("A", prompt, 6)
    held = []
    while engine.engine.has_unfinished_requests():
        engine.step()
        taken = sum(len(e.blocks) for e in engine.events(ev.BlocksTaken))
        stored = prompt + len(engine.output("A")) - 1
        held.append((taken, -(-stored // 4)))
    assert len(engine.output("A")) == 6
    assert all(taken == need for taken, need in held)


def test_an_error_in_the_scheduler_passes() -> None:
    """E009: allocate() raises once at step 5, with three running and three waiting."""
    engine = AuditedEngine(64, max_num_seqs=3)
    for i in range(6):
        engine.add(f"r{i}", 8, 6)
    pool = engine.engine._blocks.pool
    allocate = pool.allocate
    for step in range(30):
        if step == 5:
            pool.allocate = broken  # type: ignore[method-assign, assignment]
        engine.step()
        pool.allocate = allocate  # type: ignore[method-assign]
    assert [e.where for e in engine.events(ev.StepFailed)] == ["schedule"]
    assert all(len(engine.output(f"r{i}")) == 6 for i in range(6))


def broken(count: int) -> list[int]:
    raise RuntimeError("injected")


def test_an_error_in_the_executor_ends_its_batch_and_nobody_else() -> None:
    """E009, I9: the three of the batch fail with the reason; the three that wait run on."""
    engine = AuditedEngine(64, max_num_seqs=3)
    engine.executor.fail_at = {5}  # type: ignore[attr-defined]
    for i in range(6):
        engine.add(f"r{i}", 8, 6)
    engine.run()
    assert [engine.finish_reason(f"r{i}") for i in range(6)] == ["failed"] * 3 + ["length"] * 3
    [failure] = engine.events(ev.StepFailed)
    assert failure.ids == ["r0", "r1", "r2"] and "injected fault" in failure.error
    assert engine.state.find("r0").message.endswith("injected fault")  # type: ignore[union-attr]


def test_no_output_limit_means_the_model_limit_or_the_end_of_the_pool() -> None:
    """E011: max_tokens None is admitted at once, its plan is shown, and it ends with a reason."""
    engine = AuditedEngine(12, max_model_len=256)
    engine.add("A", 12, None)
    engine.step()
    view = engine.state.find("A")
    assert view is not None and view.max_tokens is None and view.limit == 256
    engine.run()
    assert (engine.finish_reason("A"), len(engine.output("A"))) == ("capacity", 12 * 4 - 12 + 1)
    other = AuditedEngine(200, max_model_len=64)
    other.add("A", 12, None)
    other.run()
    assert (other.finish_reason("A"), len(other.output("A"))) == ("length", 52)


# --- lost-slots ----------------------------------------------------------------------------------------------------


def test_all_seats_are_used_while_others_wait() -> None:
    """E014."""
    engine = AuditedEngine(100, max_num_seqs=4)
    for i in range(8):
        engine.add(f"r{i}", 4, 20)
    while engine.state.waiting or not engine.frames:
        engine.step()
        assert len(engine.ran()) == 4


def test_aborted_swapped_requests_leave_their_seats() -> None:
    """E012: three held ones are aborted while swapped out or running; a fourth runs in the next step."""
    engine = AuditedEngine(6, max_num_seqs=3, preemption_mode="swap", num_host_blocks_override=20)
    for name in "abc":
        engine.add(name, 7, 30)
    while not engine.state.swapped:
        engine.step()
    assert len(engine.state.swapped) + len(engine.state.running) + len(engine.state.waiting) == 3
    engine.engine.abort_request(["a", "b", "c"])
    engine.add("d", 4, 4)
    engine.step()
    assert list(engine.state.running) == ["d"] and engine.engine._scheduler.running.num_seqs == 1
    assert engine.state.host_used == 0


# --- thrash --------------------------------------------------------------------------------------------------------


def test_a_preempted_request_returns_only_when_all_of_it_fits() -> None:
    """E015: without the gate 11 preemptions; with it at most two of anybody, and the tax is told."""
    engine = AuditedEngine(12, max_num_batched_tokens=8)
    engine.add("A", 16, 20)
    engine.add("B", 16, 20)
    for _ in range(3):
        engine.step()
    engine.add("C", 24, 4)
    engine.run()
    assert max(engine.state.find(r).preemptions for r in "ABC") <= 2  # type: ignore[union-attr]
    totals = engine.state.totals
    assert totals.preemptions <= 2 and totals.tokens_lost == sum(e.tokens_lost for e in engine.events(ev.Preempted))
    assert [len(engine.output(r)) for r in "ABC"] == [20, 20, 4]


def test_nobody_is_preempted_while_blocks_are_free() -> None:
    """E017."""
    engine = AuditedEngine(100, block_size=16)
    engine.add("A", 120, 60)
    for _ in range(10):
        engine.step()
    engine.add("B", 50, 60)
    engine.step()
    engine.add("C", 7, 60)
    engine.run()
    assert engine.state.totals.preemptions == 0


def test_a_preemption_tells_victim_cause_and_loss() -> None:
    """E019: id, mode, tokens lost, blocks freed, usage before and after, and the how-many-th time."""
    engine = AuditedEngine(12)
    engine.add("A", 23, 40)
    engine.add("B", 21, 40)
    while not engine.events(ev.Preempted):
        engine.step()
    [event] = engine.events(ev.Preempted)
    assert (event.id, event.for_id, event.mode, event.rule) == ("B", "A", "recompute", "latest")
    assert (event.tokens_lost, event.blocks_freed, event.count) == (22, 6, 1)
    assert (event.used_before, event.used_after, event.pool) == (12, 6, 12)


# --- step-bookkeeping ----------------------------------------------------------------------------------------------


class NoText:
    """An OutputProcessor that only counts."""

    def accept(self, seq: Sequence, sampled: SampledToken) -> Accepted:
        return Accepted()

    def close(self, request: Request) -> str:
        return ""


class FirstInOrder:
    """The worst victim rule: whoever comes first in the pass."""

    name = "first"

    def choose(self, running: Any, needy: Request) -> Request:
        return running[0]  # type: ignore[no-any-return]


def test_a_victim_visited_earlier_in_the_pass_costs_nobody_a_turn() -> None:
    """E020: A, visited first, is preempted for B; B and C both get their token in the same step."""
    nothing: Any = NoText()  # the rest of an OutputProcessor is not called here
    scheduler = Scheduler(EngineConfig(block_size=4), BlockManager(7, 4), nothing, 64)
    scheduler.victim_rule = FirstInOrder()
    for number, (name, size) in enumerate({"A": 16, "B": 8, "C": 2}.items()):
        request = new_request(name, number, list(range(size)), SamplingParams(), arrival=0, limit=99, seed=0)
        scheduler.add(request)
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, StepOutput([SampledToken(5)] * 3))
    scheduler.take_events()
    plan = scheduler.schedule(1.0)  # A takes no block of its own yet: 17 tokens need a fifth, none is free
    assert [c.sequence.request.request_id for c in plan.chunks] == ["B", "C"]
    assert [e.id for e in scheduler.take_events() if isinstance(e, ev.Preempted)] == ["A"]


def test_order_of_return_and_choice_of_victims_use_one_key() -> None:
    """E023: B, preempted, comes before C whatever arrival time C claims; and yields a token before it is a victim."""
    engine = AuditedEngine(6, max_num_batched_tokens=64)
    engine.clock.advance(1.0)
    engine.add("A", 8, 12)
    engine.add("B", 8, 12)
    while not engine.events(ev.Preempted):
        engine.step()
    engine.add("C", 4, 4, arrival_time=0.5)
    assert [e.id for e in engine.events(ev.Preempted)] == ["B"]
    engine.check()
    assert [r.id for r in engine.state.waiting_order()] == ["B", "C"]
    engine.run()
    before = [len(engine.output("B"))]
    assert before == [12] and len(engine.events(ev.Preempted, "B")) <= 2


# --- recompute-correctness -----------------------------------------------------------------------------------------


def test_outputs_are_part_of_what_is_computed_again() -> None:
    """E048: preempted after 5 outputs of a 6-token prompt, 11 tokens are computed and output 6 comes once."""
    engine = preempted_after(6, 5)
    engine.step()
    assert engine.ran() == {"A": 11}
    prompt = engine.engine._requests["A"].sequences[0].token_ids[:6]
    assert engine.output("A") == expected_output(prompt, 6)


def preempted_after(prompt: int, outputs: int, **options: Any) -> AuditedEngine:
    """An engine whose only request was preempted after that many outputs: its block was taken out of the pool."""
    engine = AuditedEngine(64, **options)
    engine.add("filler", 40, 1)
    engine.step()
    engine.add("A", prompt, 12)
    for _ in range(outputs):
        engine.step()
    blocks = engine.state.requests["A"].sequences[0].blocks
    assert min(blocks) >= 10, "the filler was meant to take the low blocks"
    engine.engine.resize_pool(10)
    engine.check()
    assert [e.id for e in engine.events(ev.Preempted)] == ["A"]
    return engine


def test_a_resumed_request_is_prefill_again() -> None:
    """E050: resumed beside a fresh prompt and a decode, it is labelled re-prefill and computes more than one token."""
    engine = preempted_after(6, 3)
    engine.add("D", 5, 12)
    engine.step()
    views = engine.state.requests
    assert views["A"].phase is not None and views["D"].phase is not None
    assert (views["A"].phase.value, views["D"].phase.value) == ("re-prefill", "prefill")
    assert engine.ran() == {"A": 9, "D": 5}
    engine.step()
    assert views["A"].phase.value == "decode"


def test_each_output_is_told_once_and_in_order() -> None:
    """E055: through preemptions, indices 0 … 11 arrive once each; recomputed tokens give no token events."""
    engine = preempted_after(6, 5)
    engine.run()
    told = [t for e in engine.events(ev.Tokens) for i, t in zip(e.ids, e.tokens, strict=True) if i == "A"]
    assert told == engine.output("A") and len(told) == 12


# --- chunked-prefill -----------------------------------------------------------------------------------------------


def test_a_long_prompt_starves_no_decode() -> None:
    """E106: budget 16, D decodes one token in every step while L's 400 tokens take 27 steps of 15."""
    engine = AuditedEngine(500, max_num_batched_tokens=16)
    engine.add("D", 4, 100)
    for _ in range(5):
        engine.step()
    engine.add("L", 400, 1)
    steps = 0
    while "L" not in [v.id for v in engine.state.finished]:
        engine.step()
        steps += 1
        assert engine.ran()["D"] == 1
    assert steps == 27


def test_prefill_first_gives_decodes_a_turn() -> None:
    """E108: one new prompt per step for 100 steps; D's longest gap is max_prefill_steps + 1 = 4 steps."""
    engine = AuditedEngine(800, batching="prefill-first", max_num_batched_tokens=16, max_num_seqs=64)
    engine.add("D", 4, 200)
    engine.step()
    for i in range(100):
        engine.add(f"r{i}", 16, 8)
        engine.step()
    view = engine.state.find("D")
    assert view is not None and view.longest_gap == 4.0


# --- abort ---------------------------------------------------------------------------------------------------------


def test_abort_of_what_never_ran() -> None:
    """E080: one event each, no exception."""
    engine = AuditedEngine(8, max_num_seqs=2)
    for i in range(100):
        engine.add(f"r{i}", 4, 2)
    assert engine.engine.abort_request([f"r{i}" for i in range(50)])
    engine.check()
    assert [e.reason for e in engine.events(ev.Finished)] == ["abort"] * 50
    engine.run()
    assert engine.state.totals.finished == {"abort": 50, "length": 50}


def test_abort_twice_of_the_ended_and_of_the_unknown_is_no_error() -> None:
    """E083, on the engine; the thread has its own test."""
    engine = AuditedEngine(8)
    engine.add("A", 4, 1)
    engine.run()
    assert not engine.engine.abort_request("A")
    assert not engine.engine.abort_request("nope")
    assert engine.finish_reason("A") == "length"


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_gives_everything_back(steps: int) -> None:
    """I6 in every state: waiting, mid-chunk, decoding."""
    engine = AuditedEngine(16, max_num_batched_tokens=8)
    engine.add("A", 20, 9)
    for _ in range(steps):
        engine.step()
    engine.engine.abort_request("A")
    engine.check()
    assert engine.state.used == 0 and engine.finish_reason("A") == "abort"


# --- timeouts ------------------------------------------------------------------------------------------------------


def test_a_request_that_waits_too_long_ends_without_ever_taking_a_block() -> None:
    """E119."""
    engine = AuditedEngine(16, max_num_seqs=1)
    engine.add("A", 4, 50)
    engine.add("B", 4, 4, timeout=0.1)
    engine.step(0.05)
    assert engine.state.requests["B"].deadline == pytest.approx(0.1)
    engine.step(0.05)
    assert engine.finish_reason("B") == "timeout"
    assert not engine.events(ev.BlocksTaken, "B")


def test_a_running_request_times_out_too() -> None:
    engine = AuditedEngine(16)
    engine.add("A", 4, 50, timeout=3.5)
    engine.run()
    assert engine.finish_reason("A") == "timeout" and 1 <= len(engine.output("A")) < 5


# --- limits-params -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", "   ", []])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    """E093."""
    engine = AuditedEngine(8)
    with pytest.raises(BadValue, match="prompt"):
        engine.add("A", prompt)
    engine.check()
    assert engine.events(ev.Refused)[0].code is ev.RefusalCode.EMPTY_PROMPT
    engine.add("B", 4, 1)
    engine.run()


def test_output_is_clamped_to_the_model_and_shown() -> None:
    """E095: 20 + 20 under 32 plans 12."""
    engine = AuditedEngine(16, max_model_len=32)
    engine.add("A", 20, 20)
    engine.step()
    view = engine.state.find("A")
    assert view is not None and (view.max_tokens, view.planned_output) == (20, 12)
    engine.run()
    assert len(engine.output("A")) == 12


@pytest.mark.parametrize(("prompt", "message"), [(32, "no room for an output token"), (40, "no room")])
def test_a_prompt_of_the_model_limit_is_refused(prompt: int, message: str) -> None:
    engine = AuditedEngine(16, max_model_len=32)
    with pytest.raises(BadValue, match=message):
        engine.add("A", prompt, 4)


@pytest.mark.parametrize(("ignore", "count", "reason"), [(False, 4, "stop"), (True, 9, "length")])
def test_every_end_id_ends(ignore: bool, count: int, reason: str) -> None:
    """E097: two end ids; the model gives the second one at output 4."""
    from vtop_support.stub import StubExecutor

    executor = StubExecutor(16, 4, eos=frozenset({2, 7}), choose=lambda history: 7 if len(history) == 8 else 9)
    engine = AuditedEngine(16, executor=executor)
    engine.add("A", 5, 9, ignore_eos=ignore)
    engine.run()
    assert (len(engine.output("A")), engine.finish_reason("A")) == (count, reason)
    assert engine.state.find("A").stop_reason == (None if ignore else 7)  # type: ignore[union-attr]


def test_stop_strings_without_text_are_refused() -> None:
    """E105: never silently ignored."""
    with pytest.raises(BadValue, match="detokenize"):
        SamplingParams(stop=(".",), detokenize=False)


# --- request-identity ----------------------------------------------------------------------------------------------


def test_an_id_can_be_used_again_only_after_its_request_ended() -> None:
    """E121: while waiting and running it is refused and the first goes on untouched."""
    engine = AuditedEngine(16)
    engine.add("r1", 4, 3)
    for _ in range(2):
        with pytest.raises(ValueError, match="still alive"):
            engine.add("r1", 4, 3)
        engine.step()
    engine.run()
    assert len(engine.output("r1")) == 3
    engine.add("r1", 5, 2)
    engine.run()
    assert len(engine.output("r1")) == 2


def test_an_id_used_again_right_after_an_abort_is_another_request() -> None:
    engine = AuditedEngine(16)
    engine.add("r1", 4, 30)
    engine.step()
    engine.engine.abort_request("r1")
    engine.add("r1", 4, 3)
    engine.run()
    assert (len(engine.output("r1")), engine.finish_reason("r1")) == (3, "length")


# --- metrics -------------------------------------------------------------------------------------------------------


def test_times_mean_the_same_after_a_preemption() -> None:
    """E109, E110: queue time ends at the first admission; first-token time stands; every gap counts once."""
    engine = AuditedEngine(6, max_num_batched_tokens=64)
    engine.add("A", 8, 12)
    engine.add("B", 8, 12)
    engine.run()
    view = engine.state.find("B")
    assert view is not None and view.preemptions == 1 and view.preempted_wait > 0
    assert view.queue_time == 1.0 and view.ttft == 1.0
    assert view.tpot is not None and view.tpot * 11 == pytest.approx(view.last_token - view.first_token)  # type: ignore[operator]
    assert view.longest_gap > 1.0


def test_counts_add_up() -> None:
    """E113: added = finished + aborted + refused."""
    engine = AuditedEngine(8)
    for i in range(6):
        engine.add(f"r{i}", 4, 3)
    with pytest.raises(BadValue):
        engine.add("never", 100, 3)
    for i in range(3):
        engine.add(f"x{i}", 4, 3)
        engine.engine.abort_request(f"x{i}")
    engine.run()
    totals = engine.state.totals
    assert totals.finished == {"length": 6, "abort": 3} and (totals.arrived, totals.refused) == (9, 1)
    assert sum(v.ttft is not None for v in engine.state.finished) == 6


def test_the_numbers_of_a_frame_agree() -> None:
    """E115: used + free = total in each pool, separately, after every Frame; never above 100 %."""
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=16)
    for i in range(4):
        engine.add(f"r{i}", 8, 16)
    while engine.engine.has_unfinished_requests():
        engine.step()
        state = engine.state
        assert state.used + state.cached + state.free == state.num_blocks and min(state.cached, state.free) >= 0
        assert 0 <= state.host_used <= len(state.host_ref_count)
    assert engine.state.totals.swapped_out_blocks > 0
