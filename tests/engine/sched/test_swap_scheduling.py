"""Preemption by swapping, and hybrid: requests come back with what they computed, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from vtop.engine import events as ev
from vtop.engine.executor import ExecutorRates
from vtop_support.engines import AuditedEngine
from vtop_support.stub import StubExecutor, expected_output


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_swapped_requests_return() -> None:
    """E039: four requests of 6 blocks in a pool of 8: the host pool is used, and empty again at the end."""
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=64)
    for i in range(4):
        engine.add(f"r{i}", prompt(20 * i + 10, 8), 16)
    most = 0
    while engine.engine.has_unfinished_requests():
        engine.step()
        most = max(most, engine.state.host_used)
    assert most > 0 and engine.state.host_used == 0
    assert engine.state.totals.tokens_lost == 0
    assert engine.state.totals.swapped_out_blocks == engine.state.totals.swapped_in_blocks > 0
    for i in range(4):
        assert engine.output(f"r{i}") == expected_output(prompt(20 * i + 10, 8), 16)


def test_nobody_is_admitted_while_somebody_is_swapped_out() -> None:
    """E041 for single requests: the reason says so, and the number of swapped requests stays bounded."""
    engine = AuditedEngine(16, preemption_mode="swap", num_host_blocks_override=64, max_num_seqs=8)
    longest = 0
    for i in range(20):
        engine.add(f"r{i}", prompt(20 * i + 10, 8), 24)
        swapped = set(engine.state.swapped)
        frame = engine.step()
        admitted = [e.id for e in frame.events if isinstance(e, ev.Admitted)]
        assert not (admitted and swapped & set(engine.state.swapped)), "admitted past a swapped request"
        longest = max(longest, len(engine.state.swapped))
    assert 0 < longest <= 8
    assert any(isinstance(e.reason, ev.SwappedFirst) for e in engine.events(ev.Waits))
    engine.run()


def test_per_victim_recompute_when_the_host_pool_is_too_small() -> None:
    """E044: host pool of 4: the first victim is swapped, the second recomputed; outputs as ever."""
    engine = AuditedEngine(10, preemption_mode="hybrid", num_host_blocks_override=4)
    for i in range(4):
        engine.add(f"r{i}", prompt(30 * i + 10, 7), 20)
    engine.run()
    assert engine.events(ev.SwappedOut)
    assert any(e.why is ev.ModeWhy.HOST_FULL for e in engine.events(ev.Preempted))
    for i in range(4):
        assert engine.output(f"r{i}") == expected_output(prompt(30 * i + 10, 7), 20)


def test_a_common_block_is_one_block_again_after_the_return() -> None:
    """E044: a block that is still cached on the device is shared again, not copied."""
    engine = AuditedEngine(14, preemption_mode="swap", num_host_blocks_override=32)
    common = prompt(10, 8)
    for i in range(3):
        engine.add(f"r{i}", [*common, *prompt(100 * i + 200, 3)], 26)
        engine.step()
    while not engine.events(ev.SwappedIn):
        engine.step()
    back = engine.events(ev.SwappedIn)[0]
    first = engine.state.requests[back.id].sequences[0].blocks[0]
    assert engine.state.ref_count[first] > 1
    assert first not in [target for _, target in back.pairs]
    engine.run()
    for i in range(3):
        assert engine.output(f"r{i}") == expected_output([*common, *prompt(100 * i + 200, 3)], 26)


def swapped_out(engine: AuditedEngine) -> str:
    for i in range(4):
        engine.add(f"r{i}", prompt(20 * i + 10, 8), 16)
    while not engine.state.swapped:
        engine.step()
    return next(iter(engine.state.swapped))


def test_abort_while_swapped_out() -> None:
    """E082: host blocks are free at once, and later swaps through them restore the right data."""
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=8)
    victim = swapped_out(engine)
    held = len(engine.state.requests[victim].sequences[0].host_blocks)
    used = engine.state.host_used
    engine.engine.abort_request(victim)
    engine.check()
    assert engine.finish_reason(victim) == "abort" and engine.state.host_used == used - held
    engine.run()
    for i in range(4):
        if f"r{i}" != victim:
            assert engine.output(f"r{i}") == expected_output(prompt(20 * i + 10, 8), 16)


def test_time_out_while_swapped_out() -> None:
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=8)
    engine.add("a", prompt(10, 8), 20)
    engine.add("b", prompt(40, 8), 20, timeout=14.0)
    while "b" not in engine.state.swapped:
        engine.step()
    while "b" in engine.state.swapped:
        engine.step()
    assert engine.finish_reason("b") == "timeout" and engine.state.host_used == 0


@pytest.mark.parametrize(("bandwidth", "swaps"), [(1e9, True), (1e3, False)])
def test_hybrid_takes_the_cheaper_way_and_records_both_numbers(bandwidth: float, swaps: bool) -> None:
    executor = StubExecutor(8, 4, num_host_blocks=64)
    executor.rates = ExecutorRates(bandwidth, prefill_tokens_per_second=1000.0, bytes_per_block=4096)
    engine = AuditedEngine(8, executor=executor, preemption_mode="hybrid", num_host_blocks_override=64)
    for i in range(4):
        engine.add(f"r{i}", prompt(20 * i + 10, 8), 16)
    engine.run()
    told = engine.events(ev.SwappedOut) if swaps else engine.events(ev.Preempted)
    assert told and bool(engine.events(ev.SwappedOut)) == swaps
    for event in told:
        assert event.why is ev.ModeWhy.CHEAPER
        assert (event.swap_seconds < event.recompute_seconds) == swaps


def test_the_mode_can_be_switched_while_somebody_is_swapped_out() -> None:
    engine = AuditedEngine(8, preemption_mode="swap", num_host_blocks_override=64)
    swapped_out(engine)
    engine.engine.set_option("preemption_mode", "recompute")
    engine.check()
    engine.run()
    assert engine.events(ev.Switched)
    for i in range(4):
        assert engine.output(f"r{i}") == expected_output(prompt(20 * i + 10, 8), 16)
