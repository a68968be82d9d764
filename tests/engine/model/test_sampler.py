"""Sampler: filters against a naive row, distributions, seeds, penalties, end tokens, log-probabilities."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtop.engine.model.filters import draw, filtered_weights
from vtop.engine.model.sampler import Sampler, likeliest_of, logprobs_of, uniform
from vtop.engine.request import SamplingParams, Sequence, new_request

torch.set_num_threads(1)

VOCAB = 40


def sequence(prompt: list[int], output: list[int], seed: int = 0, **params: Any) -> Sequence:
    request = new_request("r", 0, prompt, SamplingParams(max_tokens=None, **params), arrival=0.0, limit=999, seed=seed)
    request.sequences[0].token_ids.extend(output)
    return request.sequences[0]


def logits_of(*rows: dict[int, float], vocab: int = VOCAB, rest: float = -20.0) -> torch.Tensor:
    table = torch.full((len(rows), vocab), rest)
    for i, row in enumerate(rows):
        for token, value in row.items():
            table[i, token] = value
    return table


def sample(logits: torch.Tensor, sequences: list[Sequence], eos: frozenset[int] = frozenset()) -> list[int]:
    return [token.token_id for token in Sampler(eos).sample(logits, sequences)]


def naive(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """One row, written out: probabilities after temperature, min-p, top-k, top-p, in that order."""
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    alive = [i for i, w in enumerate(weights) if w >= min_p]
    if 0 < top_k < len(alive):
        kth = sorted((scaled[i] for i in alive), reverse=True)[top_k - 1]
        alive = [i for i in alive if scaled[i] >= kth]
    if top_p < 1.0:
        total, mass, kept = sum(weights[i] for i in alive), 0.0, []
        for i in sorted(alive, key=lambda i: -scaled[i]):
            if mass >= top_p * total:
                break
            kept.append(i)
            mass += weights[i]
        alive = kept
    total = sum(weights[i] for i in alive)
    return [weights[i] / total if i in alive else 0.0 for i in range(len(logits))]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0, 2.5]),
            st.sampled_from([0, 1, 3, 39, 40, 500]),
            st.sampled_from([0.05, 0.5, 0.93, 1.0]),
            st.sampled_from([0.0, 0.1, 0.9, 1.0]),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
)
def test_filters_of_a_mixed_batch_are_those_of_each_row_alone(
    rows: list[tuple[float, int, float, float]], seed: int
) -> None:
    table = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    temperature = torch.tensor([[row[0]] for row in rows])
    got = filtered_weights(
        table / temperature,
        torch.tensor([row[1] for row in rows]),
        torch.tensor([[row[2]] for row in rows], dtype=torch.float64),
        torch.tensor([[row[3]] for row in rows]),
    )
    got = got / got.sum(dim=-1, keepdim=True)
    for i, row in enumerate(rows):
        assert got[i].tolist() == pytest.approx(naive(table[i].tolist(), *row), abs=1e-5)


@pytest.mark.parametrize("scale", [0.0, 0.05, 4.0])
def test_the_nucleus_is_found_in_large_and_flat_vocabularies(scale: float) -> None:
    """Wider than the head that is looked at first; with equal logits nothing can be left out."""
    table = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * scale
    top_p = torch.tensor([[0.3], [0.999], [1.0]], dtype=torch.float64)
    got = filtered_weights(table, None, top_p, None) > 0
    for i in range(3):
        expected = [p > 0 for p in naive(table[i].tolist(), 1.0, 0, float(top_p[i]), 0.0)]
        assert got[i].tolist() == (expected if scale else [True] * 5000)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    """Chi-square over 4000 draws of one distribution, u from the hash of (seed, position)."""
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(5)).repeat(400, 1)
    probabilities = torch.softmax(logits[0].double() / 0.7, dim=-1)
    counts = torch.zeros(VOCAB, dtype=torch.float64)
    for position in range(10):
        sequences = [sequence([1], [0] * position, seed=seed, temperature=0.7) for seed in range(400)]
        counts += torch.bincount(torch.tensor(sample(logits, sequences)), minlength=VOCAB)
    expected = probabilities * 4000
    assert float(((counts - expected) ** 2 / expected).sum()) < 75  # 39 degrees of freedom: p about 0.0005


def test_uniform_is_even_and_no_two_arguments_are_related() -> None:
    values = [uniform(seed, index, position) for seed in range(20) for index in range(3) for position in range(50)]
    assert all(0.0 <= value < 1.0 for value in values) and len(set(values)) == len(values)
    bins = [0] * 10
    for value in values:
        bins[int(value * 10)] += 1
    assert sum((count - 300) ** 2 / 300 for count in bins) < 28  # 9 degrees of freedom
    steps = [abs(a - b) for a, b in pairwise(values)]
    assert 0.30 < sum(steps) / len(steps) < 0.36
    assert uniform(2**64 - 1, 0, 0) == uniform(-1, 0, 0)


@pytest.mark.parametrize("vocab", [3, 256, 257, 1000])
def test_draw_inverts_the_running_sum(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    weights = torch.rand(1, vocab, generator=generator)
    weights[weights < 0.3] = 0
    weights[0, 1] = 0.5
    total, running = float(weights.sum(dtype=torch.float64)), 0.0
    for u in [0.0, 0.1, 0.5, 0.9, 1.0 - 2**-53]:
        running, expected = 0.0, -1
        for token, weight in enumerate(weights[0].double().tolist()):
            running += weight
            if running > u * total or (expected := token if weight else expected) == -1:
                expected = token
                if running > u * total:
                    break
        assert draw(weights, torch.tensor([u], dtype=torch.float64)) == [expected]


def test_a_token_does_not_depend_on_the_other_rows() -> None:
    logits = torch.randn(8, 700, generator=torch.Generator().manual_seed(2))
    rows = [
        sequence([1, 2], [3] * i, seed=i, temperature=0.5 + i / 4, top_p=0.8 if i % 2 else 1.0, top_k=i * 20)
        for i in range(8)
    ]
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1], [rows[i]])[0] for i in range(8)]
    order = list(range(8))
    random.Random(1).shuffle(order)
    assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]


def test_seed_position_and_sequence_index_each_change_the_draw() -> None:
    """Sequence i of a request draws what a request of its own with seed + i draws."""
    logits = torch.zeros(1, 4096)
    base = sequence([1], [5, 5], seed=7)
    other_seed, other_position = sequence([1], [5, 5], seed=8), sequence([1], [5, 5, 5], seed=7)
    sibling = Sequence(base.request, 1, [1, 5, 5], 1)
    found = [sample(logits, [row])[0] for row in (base, other_seed, other_position, sibling)]
    assert len(set(found)) == 3 and found[3] == found[1]
    last = sequence([1], [5, 5], seed=2**64 - 1)
    over = Sequence(last.request, 8, [1, 5, 5], 1)
    assert sample(logits, [over]) == found[:1], "seeds go round at 2**64"
    assert sample(logits, [sequence([9, 9, 9], [5, 5], seed=7)]) == found[:1], "the prompt's length is not the position"


def test_penalties_follow_their_formulas() -> None:
    prompt, output = [1, 2, 2], [3, 3, 3, 4]
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    several: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.7},
        {"presence_penalty": 1.5},
        {"frequency_penalty": -1.2},
        {"repetition_penalty": 0.6, "presence_penalty": 0.4, "frequency_penalty": 0.9},
    )
    for params in several:
        row = logits[0].tolist()
        for token in set(prompt + output):
            penalty = params.get("repetition_penalty", 1.0)
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        for token in set(output):
            row[token] -= params.get("frequency_penalty", 0.0) * output.count(token)
            row[token] -= params.get("presence_penalty", 0.0)
        # what is sampled at a tiny temperature is the best token of the penalised row; repeat with it removed
        seen = logits.clone()
        for token in sorted(range(VOCAB), key=lambda t: -row[t])[:6]:
            assert sample(seen, [sequence(prompt, output, temperature=0.0, **params)]) == [token]
            seen[0, token] = -1e9


def test_penalised_and_plain_rows_in_one_batch() -> None:
    logits = logits_of({3: 2.0, 4: 1.0}, {3: 2.0, 4: 1.0}, {3: 2.0, 4: 1.0})
    rows = [
        sequence([0], [3], temperature=0.0),
        sequence([0], [3], temperature=0.0, presence_penalty=2.0),
        sequence([3], [], temperature=0.0, presence_penalty=2.0),
    ]
    before = logits.clone()
    assert sample(logits, rows) == [3, 4, 3]
    assert torch.equal(logits, before), "the caller's logits were changed"


def test_min_tokens_masks_every_end_and_nothing_else() -> None:
    """Field case E096: counted over outputs only; ignore_eos frees the model's ends; the last id is never touched."""
    eos = frozenset({2, 7, 5000})
    last = VOCAB - 1
    logits = logits_of({2: 9.0, 7: 8.0, 11: 7.0, last: 6.0, 1: 5.0})

    def best(output: int, **params: Any) -> int:
        row = sequence([0] * 20, [1] * output, temperature=0.0, min_tokens=10, **params)
        return sample(logits, [row], eos)[0]

    assert [best(output) for output in (0, 9)] == [11, 11]
    assert best(10) == 2
    assert best(3, stop_token_ids=[11]) == last
    assert best(3, ignore_eos=True) == 2
    assert best(3, ignore_eos=True, stop_token_ids=[2]) == 7
    assert best(10, stop_token_ids=[2]) == 2
    mixed = [sequence([0], [], temperature=0.0), sequence([0], [], temperature=0.0, min_tokens=1)]
    assert sample(logits.repeat(2, 1), mixed, eos) == [2, 11]


def test_logprobs_are_raw_whatever_the_filters() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    rows = [
        sequence([1], [], seed=4, temperature=1.7, top_k=5, repetition_penalty=1.4, logprobs=3),
        sequence([1], [], temperature=0.0, logprobs=0),
    ]
    first, second = Sampler(frozenset()).sample(logits, rows)
    table = torch.log_softmax(logits.double(), dim=-1)
    assert first.logprob == pytest.approx(float(table[0, first.token_id]), abs=1e-5)
    assert [entry.token_id for entry in first.top] == table[0].topk(3).indices.tolist()
    assert [entry.logprob for entry in first.top] == pytest.approx(table[0].topk(3).values.tolist(), abs=1e-5)
    assert [entry.rank for entry in first.top] == [1, 2, 3]
    assert second.top == () and second.logprob == pytest.approx(float(table[1].max()), abs=1e-5)


def test_choosing_the_best_of_several_needs_logprobs_nobody_asked_for() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    rows = [sequence([1], [], n=2), sequence([1], [], n=2, best_of=3), sequence([1], [])]
    plain, ranked, other = Sampler(frozenset()).sample(logits, rows)
    assert plain.logprob is None and other.logprob is None
    table = torch.log_softmax(logits[1].double(), dim=-1)
    assert ranked.logprob == pytest.approx(float(table[ranked.token_id]), abs=1e-5) and ranked.top == ()


def test_the_likeliest_are_those_of_log_softmax() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(8)) * 2
    table = torch.log_softmax(logits.double(), dim=-1)
    found = likeliest_of(logits, [4, 1, 1000])
    for row, count, token in zip(table, (4, 1, VOCAB), found, strict=True):
        best = row.topk(count)
        assert [entry.token_id for entry in token.top] == best.indices.tolist()
        assert [entry.logprob for entry in token.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert token.token_id == int(row.argmax()) and token.logprob == token.top[0].logprob
    half = logits[:1].bfloat16()
    expected = float(torch.log_softmax(half.double(), dim=-1).max())
    assert likeliest_of(half, [2])[0].logprob == pytest.approx(expected, abs=1e-5), "not rounded to the logits' dtype"
    with pytest.raises(FloatingPointError):
        likeliest_of(logits_of({3: math.nan}), [2])


def test_ranks_count_the_strictly_likelier() -> None:
    ((own, top),) = logprobs_of(logits_of({4: 2.0, 5: 2.0, 6: 1.0}), [6], [100])
    assert own.rank == 3 and len(top) == VOCAB
    ((tied, _),) = logprobs_of(logits_of({4: 2.0, 5: 2.0, 6: 1.0}), [5], [0])
    assert tied.rank == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad: float, temperature: float) -> None:
    logits = logits_of({1: 1.0, 3: bad})
    with pytest.raises(FloatingPointError):
        sample(logits, [sequence([1], [], temperature=temperature)])


def test_settings_follow_a_batch_that_changes() -> None:
    """The same sampler, other requests in the same places."""
    sampler = Sampler(frozenset())
    logits = logits_of({3: 2.0, 4: 1.9}, {3: 2.0, 4: 1.9})
    greedy = [sequence([0], [], temperature=0.0), sequence([0], [], temperature=0.0)]
    assert [token.token_id for token in sampler.sample(logits, greedy)] == [3, 3]
    changed = [greedy[0], sequence([0], [3], temperature=0.0, frequency_penalty=1.0)]
    assert [token.token_id for token in sampler.sample(logits, changed)] == [3, 4]
    assert [token.token_id for token in sampler.sample(logits[:1], greedy[:1])] == [3]
