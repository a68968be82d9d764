"""KV use, fill and peaks: of what was held while a step was computed, against a slow count of every slot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtop.engine.executor import StepOutput, StepPlan
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import measures, summarise
from vtop_support.engines import AuditedEngine
from vtop_support.stub import StubExecutor

STEP = 2.0  # seconds that a step is computed


class Watching(StubExecutor):
    """Takes time for a step, and writes down what the engine holds meanwhile, slot by slot."""

    def __init__(self, num_blocks: int, block_size: int, **more: Any) -> None:
        super().__init__(num_blocks, block_size, **more)
        self.rig: Rig | None = None
        self.seconds_used = 0.0
        self.most = 0.0
        self.filled = self.held = 0

    def execute(self, plan: StepPlan) -> StepOutput:
        assert self.rig is not None
        engine, size = self.rig.engine, self.block_size
        chunks = {id(chunk.sequence): chunk.num_tokens for chunk in plan.chunks}
        sequences = [seq for request in engine._requests.values() for seq in request.sequences]
        held = {block for seq in sequences for block in seq.blocks}
        slots = {
            (seq.blocks[place // size], place % size)
            for seq in sequences
            if seq.blocks
            for place in range(seq.num_computed + chunks.get(id(seq), 0))
        }
        self.rig.clock.advance(STEP)
        share = len(held) / engine._blocks.pool.total
        self.seconds_used += share * STEP
        self.most = max(self.most, share)
        self.filled += len(slots)
        self.held += len(held) * size
        return super().execute(plan)


class Rig(AuditedEngine):
    """Counts what is held between steps too."""

    def __init__(self, num_blocks: int, block_size: int = 4, **options: Any) -> None:
        host = int(options.get("num_host_blocks_override", 0))
        self.watching = Watching(num_blocks, block_size, num_host_blocks=host)
        super().__init__(num_blocks, executor=self.watching, block_size=block_size, **options)
        self.watching.rig = self
        self.ledger = Ledger(self.engine.meta)
        self.engine.on_frame(self.ledger.apply)

    def one(self, between: float = 0.0) -> None:
        pool = self.engine._blocks.pool
        self.watching.seconds_used += pool.used / pool.total * between
        self.step(between)

    def compare(self) -> None:
        """Fold, ledger and count agree."""
        seen, summary, found = self.watching, summarise(self.state), measures(self.ledger)
        right = seen.seconds_used / summary.seconds if summary.seconds else 0.0
        assert summary.mean_kv == pytest.approx(right) and found["kv_use"] == pytest.approx(right)
        assert summary.peak_kv == pytest.approx(seen.most) and found["kv_peak"] == pytest.approx(seen.most)
        assert summary.fill == pytest.approx(seen.filled / seen.held if seen.held else 0.0)


def test_a_request_of_one_step_held_its_blocks() -> None:
    """8 tokens in blocks of 4: two of eight blocks for the whole of its one step, of which every slot is filled."""
    rig = Rig(8)
    rig.add("a", 8, 1)
    rig.one()
    summary, found = summarise(rig.state), measures(rig.ledger)
    assert rig.state.used == 0  # nothing is held any more
    assert summary.mean_kv == found["kv_use"] == 0.25
    assert (summary.peak_blocks, summary.peak_kv, summary.fill) == (2, 0.25, 1.0)
    assert rig.state.last_step.used == rig.ledger.series[-1].used == 2


@pytest.mark.parametrize(("admission", "first"), [("reserve-full-prompt", 50), ("first-chunk", 25)])
def test_the_step_that_ends_a_request_counts(admission: str, first: int) -> None:
    """400 tokens in 64 blocks of 8, by 200: the second step holds 50 blocks and gives the only token."""
    rig = Rig(64, 8, max_num_batched_tokens=200, max_model_len=512, admission=admission)
    rig.add("a", 400, 1)
    rig.one()
    rig.one()
    summary = summarise(rig.state)
    assert summary.mean_kv == measures(rig.ledger)["kv_use"] == pytest.approx((first + 50) / 2 / 64)
    assert summary.peak_blocks == 50 and summary.fill == pytest.approx((200 + 400) / (8 * (first + 50)))


def test_a_step_that_preempts_holds_what_is_left() -> None:
    """Two of 7 + n tokens in 4 blocks of 4; at the ninth token of the first, the second gives its two blocks back."""
    rig = Rig(4, enable_prefix_caching=False)
    rig.add("a", 7, 4)
    rig.add("b", 7, 4)
    for expected in (4, 4, 3, 3):  # the third computes the ninth token of a: its third block, and nobody else's
        rig.one()
        assert rig.state.last_step.used == expected
        assert rig.ledger.series[-1].used == expected
    assert rig.state.totals.preemptions == 1


def test_a_resized_pool_counts_as_large_as_it_was() -> None:
    rig = Rig(8, enable_prefix_caching=False)
    rig.add("a", 8, 2)
    rig.one()
    rig.engine.resize_pool(24)
    rig.one()
    summary = summarise(rig.state)
    assert summary.mean_kv == pytest.approx((2 / 8 + 3 / 24) / 2)
    assert summary.peak_kv == measures(rig.ledger)["kv_peak"] == 0.25 and summary.peak_blocks == 3


LIVES = st.tuples(
    st.integers(1, 14),  # prompt
    st.integers(1, 9),  # output
    st.sampled_from([1, 1, 2, 3]),  # samples
    st.booleans(),  # has the prompt of others
    st.integers(0, 4),  # steps until the next one comes
)


@given(
    lives=st.lists(LIVES, min_size=1, max_size=8),
    blocks=st.integers(8, 20),
    budget=st.integers(8, 40),
    mode=st.sampled_from(["recompute", "swap"]),
    caching=st.booleans(),
    preset=st.sampled_from(["sensible", "sensible", "vllm-v0", "vllm-v1"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_use_and_fill_are_those_of_every_slot(
    lives: list[tuple[int, int, int, bool, int]], blocks: int, budget: int, mode: str, caching: bool, preset: str
) -> None:
    options: dict[str, Any] = {"enable_prefix_caching": caching, "max_num_batched_tokens": budget}
    if preset == "sensible":
        options |= {"preemption_mode": mode, "num_host_blocks_override": 30}
    else:
        options["preset"] = preset
        if preset == "vllm-v0":
            options["num_host_blocks_override"] = 30
            options["max_num_batched_tokens"] = max(budget, 64)
    rig = Rig(blocks, max_model_len=64, **options)
    for number, (prompt, output, samples, shared, pause) in enumerate(lives):
        if (prompt + output) * samples > blocks * 4:
            continue
        ids = [3 + 7 * i for i in range(prompt)] if shared else prompt
        samples = 1 if preset == "vllm-v1" else samples
        rig.add(f"r{number}", ids, output, n=samples, temperature=float(samples > 1))
        for _ in range(pause):
            rig.one(1.0)
    for _ in range(400):
        if not rig.engine.has_unfinished_requests():
            break
        rig.one(0.5)
    rig.compare()
