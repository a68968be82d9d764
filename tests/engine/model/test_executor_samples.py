"""Several samples and beams from one chunk: forks equal requests of their own, `top` equals log_softmax."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from vtop.engine.executor import Chunk, SampledToken, StepOutput, StepPlan
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.model import load_model
from vtop.engine.request import Request, SamplingParams, Sequence, new_request
from vtop.kernels.registry import get_backend
from vtop_support.models import VOCAB, tiny_random

torch.set_num_threads(1)

BLOCK = 4
BLOCKS = 60


def executor_of(model: Any) -> TorchExecutor:
    return TorchExecutor(load_model(model, name="test", backend=get_backend("auto")), BLOCKS, BLOCK)


def request_of(prompt: list[int], seed: int = 0, **params: Any) -> Request:
    """A request with all the sequences of its group."""
    chosen = SamplingParams(max_tokens=None, **params)
    return new_request("r", 0, prompt, chosen, arrival=0, limit=500, seed=seed)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


class Group:
    """The smallest scheduler of a group: after the prompt its sequences share full blocks and copy the last."""

    def __init__(self, executor: TorchExecutor, seed: int = 0) -> None:
        self.executor = executor
        self.free = list(range(BLOCKS))
        random.Random(seed).shuffle(self.free)

    def chunk(self, seq: Sequence, **more: Any) -> Chunk:
        while len(seq.blocks) * BLOCK < seq.num_tokens:
            seq.blocks.append(self.free.pop())
        return Chunk(seq, seq.num_computed, seq.num_tokens - seq.num_computed, True, **more)

    def fork(self, parent: Sequence, child: Sequence) -> list[tuple[int, int]]:
        """The child takes the parent's computed blocks over, and gets a copy of one that is not full."""
        child.num_computed = parent.num_computed
        full, rest = divmod(parent.num_computed, BLOCK)
        child.blocks = parent.blocks[:full]
        if not rest:
            return []
        child.blocks.append(self.free.pop())
        return [(parent.blocks[full], child.blocks[full])]

    def run(self, request: Request, outputs: int, **first: Any) -> list[list[SampledToken]]:
        """`outputs` tokens of every sequence; the first of each from one chunk of the prompt."""
        parent, *children = request.sequences
        output = self.executor.execute(StepPlan([self.chunk(parent, **first)]))
        parent.num_computed = parent.num_tokens
        copies = [pair for child in children for pair in self.fork(parent, child)]
        found: list[list[SampledToken]] = [[] for _ in request.sequences]
        self.append(request.sequences, [output.tokens[0], *output.forked.get(0, [])], found)
        for _ in range(outputs - 1):
            chunks = [self.chunk(seq) for seq in request.sequences]
            output = self.executor.execute(StepPlan(chunks, copies=copies))
            copies = []
            for seq in request.sequences:
                seq.num_computed = seq.num_tokens
            self.append(request.sequences, output.tokens, found)
        return found

    @staticmethod
    def append(sequences: list[Sequence], tokens: list[Any], found: list[list[SampledToken]]) -> None:
        for seq, token, own in zip(sequences, tokens, found, strict=True):
            seq.token_ids.append(token.token_id)
            own.append(token)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20},
    {"temperature": 1.2, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 2},
]


@pytest.mark.parametrize("length", [11, 12])  # within a block, and on its border
@pytest.mark.parametrize("params", SETTINGS, ids=("plain", "filtered", "penalised"))
def test_forks_equal_requests_of_their_own(params: dict[str, Any], length: int) -> None:
    """E054, E088: sample i is what a request with seed + i gives; samples differ; a second run gives the same."""
    model, prompt, count, seed = tiny_random("llama"), prompt_of(length), 10, 2**64 - 2
    executor = executor_of(model)
    group = request_of(prompt, seed, n=4, **params)
    found = Group(executor).run(group, count, forks=group.sequences[1:])
    again = request_of(prompt, seed, n=4, **params)
    assert Group(executor, seed=1).run(again, count, forks=again.sequences[1:]) == found
    for i, seq in enumerate(group.sequences):
        own = request_of(prompt, (seed + i) % 2**64, **params)
        [tokens] = Group(executor).run(own, count)
        assert seq.output_token_ids == own.sequences[0].output_token_ids
        for token, wanted in zip(found[i], tokens, strict=True):
            assert token.logprob == (wanted.logprob and pytest.approx(wanted.logprob, abs=1e-4))
    assert len({tuple(seq.output_token_ids) for seq in group.sequences}) == 4
    executor.close()


def test_ranked_samples_carry_logprobs_without_being_asked() -> None:
    model, prompt = tiny_random("llama"), prompt_of(9)
    executor = executor_of(model)
    group = request_of(prompt, 3, n=1, best_of=3)
    found = Group(executor).run(group, 6, forks=group.sequences[1:])
    executor.close()
    for seq, tokens in zip(group.sequences, found, strict=True):
        with torch.no_grad():
            table = torch.log_softmax(model(torch.tensor([seq.token_ids])).logits[0].double(), dim=-1)
        expected = [float(table[len(prompt) - 1 + i, t]) for i, t in enumerate(seq.output_token_ids)]
        assert [token.logprob for token in tokens] == pytest.approx(expected, abs=1e-4)
        assert all(token.top == () for token in tokens)


def test_a_step_of_everything_at_once() -> None:
    """Forks, a beam, a plain decode, a chunk that does not sample, and prompt log-probabilities beside each other."""
    model = tiny_random("llama")
    executor = executor_of(model)
    table = Group(executor)
    group = request_of(prompt_of(7, 1), 5, n=3)
    beam = request_of(prompt_of(9, 2), temperature=0.0)
    plain = request_of(prompt_of(6, 3), temperature=0.0)
    telling = request_of(prompt_of(5, 4), temperature=0.0, prompt_logprobs=1)
    chunks = [
        table.chunk(group.sequences[0], forks=group.sequences[1:]),
        table.chunk(telling.sequences[0]),
        table.chunk(beam.sequences[0], top=6),
        table.chunk(plain.sequences[0]),
    ]
    partial = request_of(prompt_of(12, 5))
    part = table.chunk(partial.sequences[0])
    part.num_tokens, part.sample = 5, False
    chunks.insert(2, part)
    output: StepOutput = executor.execute(StepPlan(chunks))
    executor.close()

    def last_row(request: Request) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(torch.tensor([request.sequences[0].token_ids])).logits[0, -1]
        return torch.log_softmax(logits.double(), dim=-1)

    assert list(output.forked) == [0] and len(output.forked[0]) == 2
    assert [token is None for token in output.tokens] == [False, False, True, False, False]
    told, found, last = output.tokens[1], output.tokens[3], output.tokens[4]
    assert told and found and last
    assert told.token_id == int(last_row(telling).argmax()) and last.token_id == int(last_row(plain).argmax())
    best = last_row(beam).topk(6)
    assert [entry.token_id for entry in found.top] == best.indices.tolist()
    assert [entry.logprob for entry in found.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert (found.token_id, found.logprob) == (found.top[0].token_id, found.top[0].logprob)
    assert [position for position, _, _ in output.prompt_logprobs[1]] == [1, 2, 3, 4]


def test_top_beyond_the_vocabulary_is_the_vocabulary() -> None:
    executor = executor_of(tiny_random("llama"))
    [token] = executor.execute(StepPlan([Group(executor).chunk(request_of([1, 2]).sequences[0], top=1000)])).tokens
    assert token is not None and sorted(entry.token_id for entry in token.top) == list(range(VOCAB))
    executor.close()
