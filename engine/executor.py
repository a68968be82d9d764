"""What the engine needs of whatever computes tokens: a model on a device, a cost model, or a stub in a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from vtop.engine.request import Sequence


@dataclass(slots=True)
class Chunk:
    """Work for one sequence in one step: compute K/V of token_ids[start : start + num_tokens].

    `sample` is true when the chunk reaches the last known token, so that the step yields the next one.
    The sequence is read-only for the executor; `sequence.blocks` covers at least start + num_tokens slots.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    sample: bool


@dataclass(slots=True)
class StepPlan:
    """What one step computes: chunks in batch order, and pairs of blocks (source, target) to copy first."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(slots=True)
class Logprob:
    """Natural-log probability of a token and its rank (1 is the most likely) before temperature and filters."""

    token_id: int
    logprob: float
    rank: int


@dataclass(slots=True)
class SampledToken:
    """The token chosen for a chunk with `sample`.

    `logprob` is None unless asked for; `top` are the most likely tokens, best first (SamplingParams.logprobs).
    """

    token_id: int
    logprob: float | None = None
    top: tuple[Logprob, ...] = ()


@dataclass(slots=True)
class StepOutput:
    """Result of a plan: one entry per chunk in the plan's order, None where the chunk does not sample.

    `prompt_logprobs`: per chunk index, entries for prompt positions start+1 … that the chunk computed
    (SamplingParams.prompt_logprobs): (position, chosen token, most likely tokens).
    `model_seconds` is the time in the model's forward pass, `sample_seconds` in choosing tokens, `prepare_seconds`
    before both.
    """

    tokens: list[SampledToken | None]
    prompt_logprobs: dict[int, list[tuple[int, Logprob, tuple[Logprob, ...]]]] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    model_seconds: float = 0.0
    sample_seconds: float = 0.0


class Executor(Protocol):
    """Computes plans. Called from one thread only. Block ids are 0 … num_blocks - 1.

    An exception out of `execute` fails the batch, not the engine; K/V of that batch's chunks count as not written.
    """

    num_blocks: int
    eos_token_ids: frozenset[int]

    def execute(self, plan: StepPlan) -> StepOutput:
        """Copy blocks, write K/V of every chunk, and sample where asked."""
        ...

    def resize(self, num_blocks: int) -> None:
        """Give the pool another size; K/V of blocks below both sizes are kept."""
        ...

    def close(self) -> None:
        """Give back memory and hooks. Calling it twice is harmless."""
        ...
