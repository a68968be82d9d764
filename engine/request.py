"""What is asked for (`SamplingParams`), and what becomes of it (`Request`, `Sequence`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from typing import Any

from vtop.engine.beam import BeamSearch, EarlyStopping, Ends
from vtop.engine.errors import BadValue
from vtop.engine.fields import check


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. `stop` and `length` are what users of serving APIs know; the rest name the cause."""

    STOP = "stop"  # end token, stop token or stop string
    LENGTH = "length"  # max_tokens or max_model_len
    CAPACITY = "capacity"  # the next token would need more blocks than the pool has
    ABORT = "abort"
    TIMEOUT = "timeout"
    FAILED = "failed"  # the executor raised while this request was in its batch
    REFUSED = "refused"  # never accepted


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when to stop. Names and defaults are those of vLLM's SamplingParams.

    temperature 0 is greedy. top_k 0 (or -1) and top_p 1.0 and min_p 0.0 are off. Penalties: repetition (multiplicative,
    over prompt and output, 1.0 off), presence and frequency (additive, over output, 0.0 off).
    seed: equal seeds give equal tokens whatever else runs; None draws one when the request is added.
    max_tokens None means until the model's limit or the end of the KV pool.
    logprobs k returns the sampled token's log-probability and the k most likely ones, per output token;
    prompt_logprobs likewise per prompt token (the first has none).
    n outputs are returned, the likeliest of best_of (default: n) that are computed; one that was aborted counts only
    when all were. With seed s they are those of
    separate requests with seeds s, s + 1 …
    beam_width w searches with w beams instead and returns the best n; hypotheses are ranked by
    log-probability / length ** length_penalty, early_stopping is true, false or "never" (see `beam.py`). Stop strings,
    min_tokens and logprobs hold for each hypothesis.

    Raises BadValue naming the field when a value cannot be used.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    n: int = 1
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else _as_tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple(self.stop_token_ids))
        for f in fields(self):
            check(f.name, getattr(self, f.name))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        self._check()

    def _check(self) -> None:
        """What fields must hold beside each other; `fields.py` says what each may be."""
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadValue("min_tokens", self.min_tokens, f"must not exceed max_tokens ({self.max_tokens})")
        if self.best_of is not None and self.best_of < self.n:
            raise BadValue("best_of", self.best_of, f"give at least n ({self.n}), or None for as many")
        if self.beam_width is not None:
            self._check_beams(self.beam_width)
        elif self.num_samples > 1 and self.greedy:
            name = "n" if self.n > 1 else "best_of"
            raise BadValue(name, getattr(self, name), "greedy outputs are all the same; give a temperature above 0")
        if self.stop and not self.detokenize:
            raise BadValue("detokenize", False, "stop strings need text; leave detokenize on or use stop_token_ids")

    def _check_beams(self, width: int) -> None:
        if width < self.n:
            raise BadValue("beam_width", width, f"give at least n ({self.n})")
        if self.best_of is not None:
            raise BadValue("best_of", self.best_of, "beam search has beam_width instead")

    @property
    def beams(self) -> bool:
        """Whether outputs are found by beam search instead of being drawn."""
        return self.beam_width is not None

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def num_samples(self) -> int:
        """Outputs that are computed; the best n of them are returned."""
        if self.beam_width is not None:
            return self.beam_width
        return self.n if self.best_of is None else self.best_of

    @property
    def needs_logprob(self) -> bool:
        """Whether each output token's log-probability is needed: asked for, or to choose the best outputs."""
        return self.logprobs is not None or self.num_samples > self.n


def _as_tuple(values: Any) -> Any:
    """Lists and sets, as users pass them, in the type of the field; anything else is left to be refused."""
    if values is None:
        return ()
    return tuple(values) if isinstance(values, (list, set, frozenset)) else values


class Phase(Enum):
    """What a scheduled chunk of a sequence is. Judged by computed against known tokens, never by 'has outputs'."""

    PREFILL = "prefill"
    RE_PREFILL = "re-prefill"  # after a preemption: prompt and outputs again
    DECODE = "decode"


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream of tokens with its own block table. A request with n samples has n sequences.

    `token_ids` is prompt + output; the newest output has no K/V yet. `num_computed` counts tokens whose K/V are
    written; `blocks` is the block table (logical index -> block id), changed by BlockManager only.
    """

    request: Request
    index: int
    token_ids: list[int]
    prompt_len: int
    num_computed: int = 0
    most_computed: int = 0  # the most that num_computed ever was: what is computed again is no new service
    num_indexed: int = 0  # blocks, from the first, whose content was offered to the prefix index
    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)  # the table while swapped out; `blocks` is empty then
    ended: bool = False  # of a group: it has all its tokens while others go on
    finish_reason: FinishReason | None = None  # of one that ended before its request, or with it as the last
    stop_reason: str | int | None = None
    cumulative_logprob: float = 0.0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def salt(self) -> str:
        """Only sequences of equal salt share cached blocks."""
        return self.request.cache_salt

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def tells_prompt(self) -> bool:
        """Whether its prompt is computed for log-probabilities too, which cached blocks do not hold."""
        return self.request.params.prompt_logprobs is not None and len(self.token_ids) == self.prompt_len

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def phase(self) -> Phase:
        if self.num_computed >= len(self.token_ids) - 1 and self.num_computed >= self.prompt_len:
            return Phase.DECODE
        return Phase.PREFILL if len(self.token_ids) == self.prompt_len else Phase.RE_PREFILL


@dataclass(slots=True, eq=False)
class Request:
    """One request as the scheduler sees it. Times are engine seconds; `number` is the serial number of arrival.

    `key` orders requests (smaller runs first); the policy gives it when the request is queued and when it moves.
    `limit` is the most tokens (prompt + output) it may reach, from max_tokens and max_model_len, resolved when it was
    added.
    """

    request_id: str
    number: int
    params: SamplingParams
    sequences: list[Sequence]
    arrival: float
    limit: int
    seed: int
    prompt: str | None = None
    priority: float = 0
    group: str = "default"
    cache_salt: str = ""
    deadline: float | None = None  # engine time by which it should be done; without one of its own, `expires`
    expires: float | None = None  # engine time at which it is timed out
    status: RequestStatus = RequestStatus.WAITING
    key: tuple[float, ...] = ()
    expected_tokens: int | None = None  # output tokens it is expected to give, as its sender says
    queued: float = 0.0  # engine time at which it was added; a client's `arrival` may be earlier
    passed: int = 0  # how many went ahead of it while it did not fit (skip_ahead)
    owed_token: bool = False  # was admitted and has given no token since
    first_scheduled: float | None = None
    admissions: int = 0  # how often admitted; > 1 after a preemption
    admitted_serial: int = -1  # engine-wide serial of the latest admission; the victim rule `latest` reads it
    preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    finish_message: str = ""
    beam: BeamSearch | None = None
    beam_order: list[Sequence] = field(default_factory=list)  # the sequences of beam.outputs, best first
    beam_found: dict[Sequence, list[tuple[int, float]]] = field(default_factory=dict)  # beams that wait for the others

    @property
    def prompt_len(self) -> int:
        return self.sequences[0].prompt_len

    @property
    def num_blocks(self) -> int:
        return sum(len(seq.blocks) for seq in self.sequences)

    @property
    def forked(self) -> bool:
        """Whether the samples go their own ways; a single sequence does from the start."""
        if self.beam is not None:
            return len(self.beam.outputs[0]) > 0
        return len(self.sequences) == 1 or self.sequences[-1].num_output > 0

    @property
    def computing(self) -> list[Sequence]:
        """The sequences that compute: of several samples, the first until the prompt is done, then the unfinished."""
        if len(self.sequences) == 1:
            return self.sequences
        return [seq for seq in self.sequences if not seq.ended] if self.forked else self.sequences[:1]

    def chosen(self) -> list[Sequence]:
        """The samples that are returned, the likeliest first. One that was aborted is no candidate, unless all were."""
        candidates = [seq for seq in self.sequences if seq.finish_reason is not FinishReason.ABORT]
        ranks = sorted(candidates or self.sequences, key=lambda seq: -seq.cumulative_logprob)
        return ranks[: self.params.n]

    @property
    def awaiting(self) -> list[Sequence]:
        """Samples without K/V that wait, after a preemption, for the first one to compute their common prompt again."""
        return [seq for seq in self.computing[1:] if not seq.blocks and not seq.host_blocks]

    def start_beams(self, ends: frozenset[int], stops: Ends | None = None) -> None:
        """Search with beams that end with one of `ends`, or with a stop string as `stops` finds them."""
        params = self.params
        assert params.beam_width is not None
        limit = self.limit - self.prompt_len
        self.beam = BeamSearch(
            params.beam_width,
            limit,
            ends,
            params.length_penalty,
            params.early_stopping,
            min_tokens=params.min_tokens,
            stops=stops,
            keep=params.logprobs,
        )
        self.beam_order = self.sequences[:1]

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED


def new_request(
    request_id: str,
    number: int,
    prompt_token_ids: list[int],
    params: SamplingParams,
    *,
    arrival: float,
    limit: int,
    seed: int,
    prompt: str | None = None,
    priority: float = 0,
    group: str = "default",
    cache_salt: str = "",
    deadline: float | None = None,
    expires: float | None = None,
    expected_tokens: int | None = None,
) -> Request:
    """A waiting request with as many sequences as `params` wants samples."""
    request = Request(
        request_id,
        number,
        params,
        [],
        arrival,
        limit,
        seed,
        prompt=prompt,
        priority=priority,
        group=group,
        cache_salt=cache_salt,
        deadline=expires if deadline is None else deadline,
        expires=expires,
        expected_tokens=expected_tokens,
        queued=arrival,
    )
    for index in range(params.num_samples):
        request.sequences.append(Sequence(request, index, list(prompt_token_ids), len(prompt_token_ids)))
    return request


Key = tuple[float, ...]
"""What a policy says of one request. Smaller goes first; the last number is unique, so no two keys are equal."""

NO_FAIR = -1  # in `fair_at`: the policy has no part that follows group counters


def order_key(key: Key, group: str, fair_at: int, counters: Mapping[str, float]) -> Key:
    """The key with the counter of the request's group at its place.

    Counters change for all requests of a group at once, so they are not stored in each key but looked up here.
    """
    if fair_at == NO_FAIR:
        return key
    return (*key[:fair_at], counters.get(group, 0.0), *key[fair_at:])
