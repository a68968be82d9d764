"""BeamSearch: which continuations of which beams live on, which are done. Bookkeeping only; knows no blocks, no model.

Scores are sums of log-probabilities; a finished hypothesis is judged by score / length ** length_penalty, its length
being that of the output with its end token. The rules are those of transformers' beam search (version 5):
 - of all continuations the best max(2, 1 + number of end tokens) * width are looked at;
 - those among the best `width` that end are hypotheses; the best `width` that do not end are the next beams;
 - before min_tokens end tokens are no continuations; the probabilities of the others stay as they are;
 - a hypothesis whose text comes to a stop string with its last token ends like one with an end token;
 - early_stopping True: stop as soon as `width` hypotheses exist; False: stop when the best running beam, judged at its
   present length, cannot beat the worst hypothesis; "never": judged at the longest length it may reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

EarlyStopping = bool | Literal["never"]
Ends = Callable[[tuple[int, ...]], str | None]
"""Output tokens -> the stop string in which their text ends, the last token being part of it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An output token: its log-probability and rank in its step, and the likeliest there (token, log-probability)."""

    logprob: float
    rank: int
    likeliest: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam: output tokens, sum of log-probabilities, and the score by which hypotheses are ranked.

    `stop` is the end token or stop string that ended it; None when it came to its limit, or was `cut`: the search was
    stopped while it ran. `choices`: one per token, when they are kept.
    """

    tokens: tuple[int, ...]
    logprob: float
    score: float
    stop: int | str | None = None
    cut: bool = False
    choices: tuple[Choice, ...] = ()

    @property
    def reason(self) -> str | None:
        """stop or length; None when it was cut: then it is what stopped the search."""
        return None if self.cut else "length" if self.stop is None else "stop"


@dataclass(frozen=True, slots=True)
class Continuation:
    """The next token of a beam: `parent` is the beam's index among those of this step."""

    parent: int
    token: int
    logprob: float  # of the whole output
    rank: int = 1  # of the token among those that follow the parent


@dataclass(slots=True)
class BeamSearch:
    """State of one request's search. `limit` is the most output tokens; `ends` are the end tokens that count.

    `stops` looks for stop strings. `keep`: how many of the likeliest tokens are kept of each step (None: no choices).
    """

    width: int
    limit: int
    ends: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    min_tokens: int = 0
    stops: Ends | None = None
    keep: int | None = None
    finished: list[Hypothesis] = field(default_factory=list)
    done: bool = False
    steps: int = 0  # tokens of the longest beam there was
    _outputs: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    _logprobs: list[float] = field(default_factory=lambda: [0.0])
    _choices: list[tuple[Choice, ...]] = field(default_factory=lambda: [()])
    _improvable: bool = True

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        """Output tokens of the beams that run, best first."""
        return self._outputs

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities of `outputs`."""
        return self._logprobs

    @property
    def looked_at(self) -> int:
        """How many of the likeliest tokens of each beam `advance` needs to see."""
        return max(self._candidates + (len(self.ends) if self._too_short else 0), self.keep or 0)

    @property
    def _candidates(self) -> int:
        return max(2, 1 + len(self.ends)) * self.width

    @property
    def _too_short(self) -> bool:
        """Whether an end token may not come next."""
        return len(self._outputs[0]) < self.min_tokens

    def advance(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> list[Continuation]:
        """One step: for each running beam its likeliest tokens with log-probabilities, best first.

        Returns the beams of the next step, best first; empty, with `done` true, when the search is over.
        """
        self.steps += 1
        banned = self.ends if self._too_short else frozenset()
        found = [
            Continuation(beam, token, self._logprobs[beam] + logprob, rank)
            for beam, tokens in enumerate(likeliest)
            for rank, (token, logprob) in enumerate(tokens, start=1)
            if token not in banned and logprob > -math.inf
        ]
        found.sort(key=lambda c: (-c.logprob, c.parent))
        found = found[: self._candidates]
        length = len(self._outputs[0]) + 1
        stops = [self._stop(c) for c in found]
        ending = [stop is not None or length >= self.limit for stop in stops]
        choices = [self._chosen(c, likeliest[c.parent]) for c in found]
        new = [
            self._hypothesis((*self._outputs[c.parent], c.token), c.logprob, stop, chosen)
            for c, stop, ends, chosen in list(zip(found, stops, ending, choices, strict=True))[: self.width]
            if ends
        ]
        self._finish(new)
        running = [(c, chosen) for c, ends, chosen in zip(found, ending, choices, strict=True) if not ends]
        running = running[: self.width]
        self.done = not running
        if not self.done:
            self._outputs = [(*self._outputs[c.parent], c.token) for c, _ in running]
            self._logprobs = [c.logprob for c, _ in running]
            self._choices = [chosen for _, chosen in running]
            self.done = self._settled(length)
        return [] if self.done else [c for c, _ in running]

    def best(self) -> list[Hypothesis]:
        """Finished hypotheses, best first, at most `width`; of a search that is stopped here, the running ones too."""
        if self.done or not self._outputs[0]:
            return self.finished
        running = [
            self._hypothesis(*beam, cut=True)
            for beam in zip(self._outputs, self._logprobs, [None] * len(self._outputs), self._choices, strict=True)
        ]
        return sorted([*self.finished, *running], key=lambda h: -h.score)[: self.width]

    def _stop(self, found: Continuation) -> int | str | None:
        if found.token in self.ends:
            return found.token
        return self.stops((*self._outputs[found.parent], found.token)) if self.stops is not None else None

    def _chosen(self, found: Continuation, likeliest: Sequence[tuple[int, float]]) -> tuple[Choice, ...]:
        if self.keep is None:
            return ()
        own = Choice(likeliest[found.rank - 1][1], found.rank, tuple(likeliest[: self.keep]))
        return (*self._choices[found.parent], own)

    def _hypothesis(
        self,
        tokens: tuple[int, ...],
        logprob: float,
        stop: int | str | None,
        choices: tuple[Choice, ...],
        cut: bool = False,
    ) -> Hypothesis:
        return Hypothesis(tokens, logprob, logprob / len(tokens) ** self.length_penalty, stop, cut, choices)

    def _finish(self, ending: list[Hypothesis]) -> None:
        full = len(self.finished) == self.width
        if (full and self.early_stopping is True) or not self._improvable:
            return
        self.finished = sorted([*self.finished, *ending], key=lambda h: -h.score)[: self.width]

    def _settled(self, length: int) -> bool:
        """Whether nothing that still runs can change the result, by the rule of early_stopping."""
        if len(self.finished) < self.width:
            return False
        if self.early_stopping is True:
            return True
        at = self.limit if self.early_stopping == "never" and self.length_penalty > 0 else length
        self._improvable = self._logprobs[0] / at**self.length_penalty > self.finished[-1].score
        return not self._improvable
