"""Cost models: what counts as load, and what it costs."""

from __future__ import annotations

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.request import SamplingParams, Sequence, new_request
from vtop.engine.sim.cards import find_card
from vtop.engine.sim.cost_model import HingeCost, Roofline, StepLoad
from vtop.engine.sim.shapes import model_shape


def _sequence(tokens: int) -> Sequence:
    request = new_request("a", 0, list(range(3, 3 + tokens)), SamplingParams(), arrival=0.0, limit=4096, seed=0)
    return request.sequences[0]


def test_load_of_a_mixed_step() -> None:
    seq = _sequence(400)
    plan = StepPlan(
        [
            Chunk(seq, 99, 1, sample=True),  # a decode that reads 100 tokens
            Chunk(seq, 299, 1, sample=True),
            Chunk(seq, 64, 32, sample=False),  # 32 tokens behind 64
            Chunk(seq, 10, 1, sample=False),  # one token of a prompt: prefill
        ],
        copies=[(1, 2)],
        swap_out=[(3, 4), (5, 6)],
        swap_in=[(7, 8)],
    )
    load = StepLoad.of(plan)
    assert (load.tokens, load.decodes, load.context) == (35, 2, 400)
    assert load.area == 32 * (64 + 16) + 1 * 10.5
    assert load.prefill_context == 96 + 11
    assert (load.swapped, load.copied) == (3, 1)


def test_hinge_adds_its_terms() -> None:
    cost = HingeCost(
        c0=1.0, ct=0.1, ch=0.01, knee=4, cd=0.5, ck=0.001, ca=0.0001, swap_s_per_block=2.0, cow_s_per_block=3.0
    )
    below = StepLoad(tokens=4, decodes=2, context=100, area=10.0)
    assert cost.seconds(below) == pytest.approx(1.0 + 0.4 + 1.0 + 0.1 + 0.001)
    above = StepLoad(tokens=10)
    assert cost.seconds(above) == pytest.approx(1.0 + 1.0 + 0.06)
    assert cost.seconds(StepLoad(swapped=2, copied=1)) == pytest.approx(7.0), "moves alone pay for no forward pass"
    assert cost.seconds(StepLoad()) == 0.0
    assert cost.prefill_tokens_per_second == pytest.approx(1 / 0.11)


def test_scale_multiplies_the_forward_pass_only() -> None:
    load = StepLoad(tokens=10, decodes=10, context=500, swapped=1)
    once, twice = (HingeCost(0.1, 0.01, ck=1e-4, swap_s_per_block=1.0, scale=s).seconds(load) for s in (1.0, 2.0))
    assert twice - 1.0 == pytest.approx(2 * (once - 1.0))


@pytest.mark.parametrize("bad", [{"c0": -1.0}, {"ct": float("nan")}, {"ck": float("inf")}, {"c0": 0.0, "ct": 0.0}])
def test_what_is_no_time_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        HingeCost(**{"c0": 0.1, "ct": 0.1, **bad})


def test_roofline_of_a_decode_is_reading_the_weights() -> None:
    # 16 GB at 2.039 TB/s: 7.9 ms, whatever a single token computes
    seconds = find_card("a100").cost.seconds(StepLoad(tokens=1, decodes=1, context=1))
    assert seconds == pytest.approx(16.06e9 / 2.039e12 + 126e-6, rel=1e-3)


def test_roofline_of_a_long_prompt_is_computing() -> None:
    # 2 · 8.03e9 · 2048 FLOP and some attention at 312 TFLOP/s
    load = StepLoad(tokens=2048, area=2048 * 1024, prefill_context=2048)
    seconds = find_card("a100").cost.seconds(load)
    attention = 4 * 32 * 32 * 128 * 2048 * 1024
    assert seconds == pytest.approx((2 * 8.03e9 * 2048 + attention) / 312e12 + 126e-6, rel=1e-3)


def test_roofline_shares_work_between_gpus() -> None:
    shape = model_shape("llama-70b")
    load = StepLoad(tokens=64, decodes=64, context=64 * 1000)
    one, four = (Roofline(shape, 989e12, 3.35e12, gpus, overhead_s=0.0).seconds(load) for gpus in (1, 4))
    assert one == pytest.approx(4 * four)


def test_kv_sizes() -> None:
    # 128 KiB per token of an 8B model: 2 MiB per block of 16, 84 µs at 25 GB/s
    card = find_card("h100")
    assert card.shape.kv_bytes_per_token == 128 * 1024
    assert card.cost.swap_s_per_block == pytest.approx(84e-6, rel=0.01)
    assert find_card("rtx4090").cost.swap_s_per_block == pytest.approx(84e-6)


def test_cards_are_ordered_by_what_they_can_do() -> None:
    decode = StepLoad(tokens=32, decodes=32, context=32 * 1000)
    prompt = StepLoad(tokens=2048, area=2048 * 1024, prefill_context=2048)
    for load in (decode, prompt):
        times = [find_card(name).cost.seconds(load) for name in ("b200", "h200", "a100", "l40s")]
        if load is decode:
            assert times == sorted(times)
        assert times[0] == min(times)
    steps = [find_card(name).cost.seconds(decode) for name in ("rtx4090", "rtxpro6000")]
    assert steps[0] > steps[1]
