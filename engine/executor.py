"""What the engine needs of whatever computes tokens: a model on a device, a cost model, or a stub in a test."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from typing import Protocol

from vtop.engine.request import Sequence


@dataclass(slots=True)
class Chunk:
    """Work for one sequence in one step: compute K/V of token_ids[start : start + num_tokens].

    `sample` is true when the chunk reaches the last known token, so that the step yields the next one.
    `forks`: further sequences of the request, equal to this one so far, that get a next token of their own from the
    same logits (the prompt of a group is done).
    `top` above 0 (beam search): nothing is drawn; the result is the most likely token, with the `top` most likely ones.
    The sequence is read-only for the executor; `sequence.blocks` covers at least start + num_tokens slots.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    sample: bool
    forks: list[Sequence] = field(default_factory=list)
    top: int = 0


@dataclass(slots=True)
class StepPlan:
    """What one step computes: chunks in batch order, and pairs of blocks (source, target) to copy before.

    The order is: `swap_out` (device block, host block), `swap_in` (host block, device block), `copies` (both on the
    device), then the chunks. All of them are done even when there is no chunk. So a device block may be swapped out and
    filled anew in one step; a host block that is swapped in must not be a target of `swap_out` in the same step.
    In each list a source may occur more than once, a target may not.
    """

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether the executor has nothing to do at all."""
        return not (self.chunks or self.copies or self.swap_out or self.swap_in)

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

    `logprob` is None unless asked for (SamplingParams.needs_logprob), and `rank` comes with it, as in Logprob; `top`
    are the most likely tokens, best first: SamplingParams.logprobs of them, or Chunk.top. With a `fault` there is no
    token: the request fails for that reason, alone.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[Logprob, ...] = ()
    rank: int = 1
    fault: str = ""


@dataclass(slots=True)
class StepOutput:
    """Result of a plan: one entry per chunk in the plan's order, None where the chunk does not sample.

    `forked`: per index of a chunk with `forks`, the tokens of those sequences in order.
    `prompt_logprobs`: per chunk index, entries for prompt positions start+1 … that the chunk computed
    (SamplingParams.prompt_logprobs): (position, chosen token, most likely tokens).
    `model_seconds` is the time in the model's forward pass, `sample_seconds` in choosing tokens, `prepare_seconds`
    before both, `swap_seconds` in moving blocks between the pools before everything else.
    """

    tokens: list[SampledToken | None]
    forked: dict[int, list[SampledToken]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[tuple[int, Logprob, tuple[Logprob, ...]]]] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    model_seconds: float = 0.0
    sample_seconds: float = 0.0
    swap_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ExecutorRates:
    """How fast blocks move and prompts are computed, as measured so far; 0 where nothing was.

    `swap_bytes_per_second` is of one way, the mean of out and in; `prefill_tokens_per_second` of steps that mostly
    compute prompts; `bytes_per_block` is K and V of one block over all layers.
    """

    swap_bytes_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0
    bytes_per_block: int = 0

    def swap_seconds(self, blocks: int) -> float:
        """Estimated time to move blocks one way; infinite when unknown."""
        return _ratio(blocks * self.bytes_per_block, self.swap_bytes_per_second)

    def prefill_seconds(self, tokens: int) -> float:
        """Estimated time to compute K/V of prompt tokens; infinite when unknown."""
        return _ratio(tokens, self.prefill_tokens_per_second)


def _ratio(amount: float, per_second: float) -> float:
    return amount / per_second if per_second > 0 else float("inf")


class Executor(Protocol):
    """Computes plans. Called from one thread only. Block ids are 0 … num_blocks - 1, and in the host pool
    0 … num_host_blocks - 1 (there may be none).

    An exception out of `execute` fails the batch, not the engine. Nothing of the plan counts as done then: neither K/V
    of its chunks nor copies, and what was to be saved in the host pool is computed again.
    """

    num_blocks: int
    num_host_blocks: int
    eos_token_ids: frozenset[int]

    def execute(self, plan: StepPlan) -> StepOutput:
        """Swap and copy blocks, write K/V of every chunk, and sample where asked."""
        ...

    @property
    def rates(self) -> ExecutorRates:
        """What was measured so far; to choose between swap and recompute."""
        ...

    def resize(self, num_blocks: int) -> None:
        """Give the pool another size; K/V of blocks below both sizes are kept."""
        ...

    def close(self) -> None:
        """Give back memory and hooks. Calling it twice is harmless."""
        ...


class TokenizedText(Protocol):
    """What a tokenizer gives for a text."""

    @property
    def input_ids(self) -> Sequence_[int]: ...


class Tokenizer(Protocol):
    """What is asked of a transformers tokenizer. What it says of single tokens is used where it says it."""

    def __call__(self, text: str, /) -> TokenizedText:
        """The tokens of a text, with those that its kind puts before and behind."""
        ...

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """The text of tokens."""
        ...


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Told by whoever builds the executor. `max_model_len` in tokens.

    `compile_note` says what came of the option `compile`; empty without it.
    `backend_note` says on one line why torch computes attention, or some of it, in place of a faster backend.
    `kv_note` and `host_note` say how the device pool and the host pool were sized, on one line each.
    """

    model: str = "stub"
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "none"
    max_model_len: int = 2048
    vocab_size: int | None = None
    kv_note: str = ""
    num_host_blocks: int = 0
    host_note: str = ""
    backend_note: str = ""
    compile_note: str = ""
