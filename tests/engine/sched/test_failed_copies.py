"""A copy of blocks that fails: nobody goes on with K/V that are not there, and everybody else goes on."""

from __future__ import annotations

import pytest

from vtop.engine import events as ev
from vtop.engine.state.ledger import Ledger
from vtop_support.engines import AuditedEngine
from vtop_support.stub import StubExecutor, expected_output


def prompt(start: int, count: int = 8) -> list[int]:
    return list(range(start, start + count))


def swapping() -> tuple[AuditedEngine, StubExecutor]:
    """Requests r0 … r2 of 6 blocks each at the end, in a pool of 8 blocks of 4."""
    executor = StubExecutor(8, 4, num_host_blocks=40)
    engine = AuditedEngine(8, executor=executor, preemption_mode="swap", enable_prefix_caching=False)
    for number in range(3):
        engine.add(f"r{number}", prompt(20 * number + 10), 16)
    return engine, executor


def swap_step(kind: type[ev.SwappedOut] | type[ev.SwappedIn]) -> int:
    """The call of the executor in which the first request is swapped so."""
    engine, executor = swapping()
    while not engine.events(kind):
        engine.step()
    return executor.calls


@pytest.mark.parametrize("when", ["fail_before", "fail_amid", "fail_at"])
@pytest.mark.parametrize("kind", [ev.SwappedOut, ev.SwappedIn])
def test_whoever_is_not_in_the_batch_ends_with_its_own_tokens(
    kind: type[ev.SwappedOut] | type[ev.SwappedIn], when: str
) -> None:
    engine, executor = swapping()
    getattr(executor, when).add(swap_step(kind))
    ledger = Ledger(engine.engine.meta)
    engine.engine.on_frame(ledger.apply)
    engine.run()
    [failure] = engine.events(ev.StepFailed)
    assert 0 < len(failure.ids) < 3
    for number in range(3):
        name, expected = f"r{number}", expected_output(prompt(20 * number + 10), 16)
        given = engine.output(name)
        if name in failure.ids:
            assert engine.finish_reason(name) == "failed" and given == expected[: len(given)]
        else:
            assert engine.finish_reason(name) == "length" and given == expected
    lost = engine.events(ev.SwapOutFailed)
    assert [e.id for e in lost] == ([engine.events(ev.SwappedOut)[0].id] if kind is ev.SwappedOut else [])
    assert engine.state.totals.tokens_lost == sum(e.tokens_lost for e in lost) == ledger.totals.tokens_lost
    assert (kind is ev.SwappedOut) == (engine.state.totals.tokens_lost > 0)
    assert engine.state.host_used == 0 and ledger.waiting == ledger.running == ledger.totals.failures - 1 == 0


def test_who_was_not_saved_waits_and_says_so() -> None:
    engine, executor = swapping()
    executor.fail_before.add(swap_step(ev.SwappedOut))
    while not engine.events(ev.StepFailed):
        engine.step()
    [event] = engine.events(ev.SwapOutFailed)
    view = engine.state.requests[event.id]
    assert view.status == "waiting" and view.computed == 0 and view.tokens_lost == event.tokens_lost > 0
    assert engine.state.host_used == 0
    assert any(isinstance(told.event, ev.SwapOutFailed) for told in view.history)


def test_a_sample_that_ends_while_swapped_out_gives_its_host_blocks_back() -> None:
    engine = AuditedEngine(6, preemption_mode="swap", num_host_blocks_override=10, enable_prefix_caching=False)
    engine.add("old", prompt(10), 12)
    engine.add("g", prompt(50, 6), 12, n=2, temperature=1.0)
    while "g" not in engine.state.swapped:
        engine.step()
    used = engine.state.host_used
    assert engine.engine.abort_sample("g", 1)
    engine.check()  # the fold is the engine's
    assert engine.state.host_used == used - 1, "the prompt's blocks are still the other sample's"
    engine.run()
    assert engine.output("g") == expected_output(prompt(50, 6), 12)
    assert engine.state.host_used == 0
