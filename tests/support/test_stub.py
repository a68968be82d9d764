"""The stub that other tests trust: it must notice what a scheduler can get wrong, and differ where samples differ."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.request import SamplingParams, Sequence, new_request
from vtop_support.stub import END, StubExecutor, expected_output, likeliest, next_token


def sequence(prompt: list[int], blocks: list[int], samples: int = 1) -> Sequence:
    params = SamplingParams(n=samples, temperature=1.0)
    request = new_request("r", 0, prompt, params, arrival=0, limit=99, seed=0)
    request.sequences[0].blocks = blocks
    return request.sequences[0]


def whole(seq: Sequence, **more: Any) -> Chunk:
    return Chunk(seq, 0, seq.num_tokens, True, **more)


def test_swapped_blocks_come_back_and_unwritten_slots_stay_unwritten() -> None:
    stub = StubExecutor(4, 2, num_host_blocks=3)
    seq = sequence([5, 6, 7], [0, 1])
    stub.execute(StepPlan([whole(seq)]))
    newcomer = sequence([8, 9, 10, 11], [1, 0])
    stub.execute(StepPlan([whole(newcomer)], swap_out=[(0, 2), (1, 0)]))
    seq.blocks = [3, 0]
    seq.token_ids.append(12)
    output = stub.execute(StepPlan([Chunk(seq, 3, 1, True)], swap_in=[(2, 3), (0, 0)]))
    assert output.tokens[0] is not None and output.tokens[0].token_id == next_token([5, 6, 7, 12])
    stub.execute(StepPlan(swap_out=[(2, 1)]))  # never written
    stub.execute(StepPlan(swap_in=[(1, 3)]))
    with pytest.raises(KeyError):
        stub.execute(StepPlan([Chunk(seq, 3, 1, True)]))


def test_copies_read_before_they_write() -> None:
    stub = StubExecutor(3, 1)
    stub.slots = {(0, 0): 5, (1, 0): 6}
    stub.execute(StepPlan(copies=[(0, 1), (1, 2), (2, 0)]))
    assert stub.slots == {(1, 0): 5, (2, 0): 6}


@pytest.mark.parametrize(
    "moves",
    [
        {"swap_out": [(0, 0), (1, 0)]},
        {"swap_in": [(0, 1), (1, 1)]},
        {"copies": [(0, 2), (1, 2)]},
        {"swap_out": [(0, 2)]},
        {"swap_in": [(0, 4)]},
        {"copies": [(0, -1)]},
        {"swap_out": [(0, 1)], "swap_in": [(1, 2)]},
    ],
)
def test_impossible_moves_are_noticed(moves: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        StubExecutor(4, 2, num_host_blocks=2).execute(StepPlan(**moves))


def test_samples_of_a_group_differ_and_are_known_in_advance() -> None:
    stub = StubExecutor(20, 2)
    seq = sequence([5, 6, 7], [0, 1], samples=3)
    output = stub.execute(StepPlan([whole(seq, forks=seq.request.sequences[1:])]))
    assert output.tokens[0] is not None
    found = [token.token_id for token in (output.tokens[0], *output.forked[0])]
    assert found == [expected_output([5, 6, 7], 1, index)[0] for index in range(3)] and len(set(found)) == 3
    other = seq.request.sequences[2]
    other.token_ids += expected_output([5, 6, 7], 1, 2)
    other.blocks = [4, 5]
    [token] = stub.execute(StepPlan([whole(other)])).tokens
    assert token is not None and token.token_id == expected_output([5, 6, 7], 2, 2)[1]


def test_likeliest_tokens_are_a_distribution_that_knows_the_end() -> None:
    ends = 0
    for i in range(40):
        history = [i, 2 * i, 7]
        found = likeliest(history, 12)
        assert found[:5] == likeliest(history, 5) and found[0].token_id == next_token(history)
        logprobs = [entry.logprob for entry in found]
        assert logprobs == sorted(logprobs, reverse=True) and sum(map(math.exp, logprobs)) < 1
        assert len({entry.token_id for entry in found}) == 12
        assert [entry.rank for entry in found] == list(range(1, 13))
        ends += END in {entry.token_id for entry in found}
    assert 10 < ends < 35
    seq = sequence([5, 6, 7], [0, 1])
    [token] = StubExecutor(4, 2).execute(StepPlan([whole(seq, top=4)])).tokens
    assert token is not None and token.top == likeliest([5, 6, 7], 4) and token.token_id == next_token([5, 6, 7])
