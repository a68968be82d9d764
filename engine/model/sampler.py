"""From logits to tokens, for all rows of a step at once.

Order of operations (vLLM's): log-probabilities are taken from the raw logits; then end tokens are masked below
min_tokens, penalties, temperature, min-p, top-k, top-p. A random row takes the token at which its cumulative
probability, in vocabulary order, passes u; u depends on (seed + sequence index, output position) and nothing else, so
a token does not change with batching or preemption, and sample i of a request is what a request with seed + i gives.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from vtop.engine.errors import error_line
from vtop.engine.executor import Logprob, SampledToken
from vtop.engine.model.filters import draw, filtered_weights
from vtop.engine.request import SamplingParams, Sequence

_MASK64 = (1 << 64) - 1


def _mix(x: int) -> int:
    """A bijection of 64-bit integers whose output bits each depend on every input bit (the finaliser of splitmix64)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)


def uniform(seed: int, index: int, position: int) -> float:
    """The number in [0, 1) for output `position` of stream `index` (0 for what is sampled) under `seed`."""
    state = _mix((seed + 0x9E3779B97F4A7C15) & _MASK64)
    state = _mix(state ^ ((index + 1) * 0xD1342543DE82EF95 & _MASK64))
    state = _mix(state ^ ((position + 1) * 0x9E3779B97F4A7C15 & _MASK64))
    return (state >> 11) * 2.0**-53


@dataclass(slots=True)
class _Settings:
    """The parameters of a batch as tensors, kept while the same requests follow each other in the same order."""

    params: list[SamplingParams]
    plain: bool  # greedy throughout, nothing to mask, nothing to report
    random: list[int]
    temperature: torch.Tensor  # [random, 1], float32
    top_k: torch.Tensor | None  # [random] int64, 0 is off; None when no row uses it
    top_p: torch.Tensor | None  # [random, 1] float64
    min_p: torch.Tensor | None  # [random, 1] float32
    penalised: list[int]
    repetition: torch.Tensor  # [penalised, 1]
    presence: torch.Tensor
    frequency: torch.Tensor
    guarded: list[int]  # rows with min_tokens
    reporting: list[int]  # rows whose log-probability is needed


class Sampler:
    """Chooses tokens. `eos_token_ids` are the model's end tokens; logits are [rows, vocab] on any device.

    Raises FloatingPointError when the logits of a row are not numbers.
    """

    def __init__(self, eos_token_ids: frozenset[int]) -> None:
        self.eos_token_ids = eos_token_ids
        self._settings: _Settings | None = None

    def sample(self, logits: torch.Tensor, sequences: Seq[Sequence]) -> list[SampledToken]:
        """One token per row; row i continues sequences[i], whose token_ids are its whole history."""
        settings = self._settings_of(sequences, logits.device)
        guarded = [i for i in settings.guarded if sequences[i].num_output < settings.params[i].min_tokens]
        if settings.plain and not guarded:
            return [SampledToken(token) for token in _best(logits)]
        raw = logits.float()
        work = raw
        if guarded or settings.penalised:
            work = raw.clone()
        if guarded:
            self._mask_ends(work, guarded, settings.params)
        if settings.penalised:
            self._penalise(work, settings, sequences)
        tokens = self._choose(work, settings, sequences)
        found = [SampledToken(token) for token in tokens]
        if settings.reporting:
            rows = settings.reporting
            chosen = [tokens[i] for i in rows]
            wanted = [settings.params[i].logprobs or 0 for i in rows]
            for i, (own, top) in zip(rows, logprobs_of(_take(raw, rows), chosen, wanted), strict=True):
                found[i] = SampledToken(tokens[i], own.logprob, top, own.rank)
        return found

    def _choose(self, work: torch.Tensor, settings: _Settings, sequences: Seq[Sequence]) -> list[int]:
        rows = settings.random
        if not rows:
            return _best(work)
        tokens = _best(work) if len(rows) < len(sequences) else [0] * len(sequences)
        scaled = _take(work, rows) / settings.temperature
        weights = filtered_weights(scaled, settings.top_k, settings.top_p, settings.min_p)
        noise = [uniform(s.request.seed + s.index & _MASK64, 0, s.num_output) for s in (sequences[i] for i in rows)]
        drawn = draw(weights, torch.tensor(noise, dtype=torch.float64).to(work.device))
        for i, token in zip(rows, drawn, strict=True):
            tokens[i] = token
        return tokens

    def _mask_ends(self, work: torch.Tensor, rows: list[int], params: list[SamplingParams]) -> None:
        at: list[tuple[int, int]] = []
        for i in rows:
            ends = set(params[i].stop_token_ids)
            if not params[i].ignore_eos:
                ends |= self.eos_token_ids
            at += [(i, token) for token in ends if 0 <= token < work.shape[1]]
        if at:
            index = torch.tensor(at, device=work.device)
            work[index[:, 0], index[:, 1]] = float("-inf")

    @staticmethod
    def _penalise(work: torch.Tensor, settings: _Settings, sequences: Seq[Sequence]) -> None:
        rows = settings.penalised
        some = _take(work, rows)
        vocab = work.shape[1]
        everything = _counts([sequences[i].token_ids for i in rows], vocab, work.device)
        output = _counts([sequences[i].output_token_ids for i in rows], vocab, work.device)
        repeated = torch.where(some > 0, some / settings.repetition, some * settings.repetition)
        some = torch.where(everything > 0, repeated, some)
        some = some - settings.frequency * output - settings.presence * (output > 0)
        work[torch.tensor(rows, device=work.device)] = some

    def _settings_of(self, sequences: Seq[Sequence], device: torch.device) -> _Settings:
        params = [sequence.request.params for sequence in sequences]
        last = self._settings
        if last is not None and len(last.params) == len(params) and all(map(_same, last.params, params)):
            return last
        self._settings = _build_settings(params, device)
        return self._settings


def _same(a: SamplingParams, b: SamplingParams) -> bool:
    return a is b


def _build_settings(params: list[SamplingParams], device: torch.device) -> _Settings:
    random = [i for i, p in enumerate(params) if not p.greedy]
    penalised = [
        i
        for i, p in enumerate(params)
        if p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
    ]
    reporting = [i for i, p in enumerate(params) if p.needs_logprob]

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).view(-1, 1).to(device)

    uses_k = any(params[i].top_k for i in random)
    uses_p = any(params[i].top_p < 1.0 for i in random)
    uses_min = any(params[i].min_p > 0.0 for i in random)
    return _Settings(
        params=params,
        plain=not (random or penalised or reporting),
        random=random,
        temperature=column([params[i].temperature for i in random]),
        top_k=torch.tensor([params[i].top_k for i in random]).to(device) if uses_k else None,
        top_p=column([params[i].top_p for i in random], torch.float64) if uses_p else None,
        min_p=column([params[i].min_p for i in random]) if uses_min else None,
        penalised=penalised,
        repetition=column([params[i].repetition_penalty for i in penalised]),
        presence=column([params[i].presence_penalty for i in penalised]),
        frequency=column([params[i].frequency_penalty for i in penalised]),
        guarded=[i for i, p in enumerate(params) if p.min_tokens],
        reporting=reporting,
    )


def logprobs_of(logits: torch.Tensor, chosen: Seq[int], wanted: Seq[int]) -> list[tuple[Logprob, tuple[Logprob, ...]]]:
    """Per row of logits [rows, vocab]: the entry of its chosen token, and its `wanted` most likely tokens, best first.

    Among equals the rank counts only tokens that are strictly more likely, plus one.
    """
    table = torch.log_softmax(logits.float(), dim=-1)
    index = torch.tensor(chosen, device=table.device).view(-1, 1)
    own = table.gather(1, index)
    ranks = ((table > own).sum(dim=-1) + 1).tolist()
    count = min(max(wanted, default=0), table.shape[1])
    values: list[list[float]] = [[]] * len(chosen)
    tokens: list[list[int]] = [[]] * len(chosen)
    if count:
        top = table.topk(count, dim=-1)
        values, tokens = top.values.tolist(), top.indices.tolist()
    found = []
    for i, (token, logprob) in enumerate(zip(chosen, own.view(-1).tolist(), strict=True)):
        best = tuple(Logprob(tokens[i][j], values[i][j], j + 1) for j in range(min(wanted[i], table.shape[1])))
        found.append((Logprob(token, logprob, ranks[i]), best))
    return found


def likeliest_of(logits: torch.Tensor, counts: Seq[int]) -> list[SampledToken]:
    """Per row of logits [rows, vocab]: its most likely token, with its `counts` most likely ones, best first, as `top`.

    For beam search: log-probabilities are natural, of the raw logits in float32. Raises FloatingPointError when the
    logits of a row are not numbers.
    """
    best = _best(logits)
    found = logprobs_of(logits, best, counts)
    # The first of `top`, not `best`: among equals the two may differ.
    return [SampledToken(top[0].token_id, top[0].logprob, top) for _, top in found]


def each_or_alone(choose: Callable[[list[int]], list[SampledToken]], count: int) -> list[SampledToken]:
    """What `choose` gives for rows 0 … count - 1; when it raises, each row by itself, with the fault where it is.

    A row's token does not depend on the rows beside it, so the others get what they would have got.
    """
    everybody = list(range(count))
    try:
        return choose(everybody)
    except Exception:
        pass  # whose fault it is shows below
    return [_alone(choose, row) for row in everybody]


def _alone(choose: Callable[[list[int]], list[SampledToken]], row: int) -> SampledToken:
    try:
        return choose([row])[0]
    except Exception as error:
        return SampledToken(0, fault=error_line(error))


def _best(logits: torch.Tensor) -> list[int]:
    values, tokens = logits.max(dim=-1)
    if not bool(torch.isfinite(values).all()):
        raise FloatingPointError("the model's logits are not finite numbers")
    return list(map(int, tokens.tolist()))


def _take(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if len(rows) == logits.shape[0]:
        return logits
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _counts(histories: list[list[int]], vocab: int, device: torch.device) -> torch.Tensor:
    """[rows, vocab]: how often each token occurs."""
    lengths = [len(history) for history in histories]
    flat = np.fromiter((t for history in histories for t in history), dtype=np.int64, count=sum(lengths))
    flat += np.repeat(np.arange(len(histories)) * vocab, lengths)
    counts = np.bincount(flat, minlength=len(histories) * vocab)
    return torch.from_numpy(counts.reshape(len(histories), vocab)).to(device)
