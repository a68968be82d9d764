"""BeamSearch: which continuations of which beams live on, which are done. Bookkeeping only; knows no blocks, no model.

Scores are sums of log-probabilities; a finished hypothesis is judged by score / length ** length_penalty, its length
being that of the output with its end token. The rules are those of transformers' beam search (version 5):
 - of all continuations the best max(2, 1 + number of end tokens) * width are looked at;
 - those among the best `width` that end are hypotheses; the best `width` that do not end are the next beams;
 - early_stopping True: stop as soon as `width` hypotheses exist; False: stop when the best running beam, judged at its
   present length, cannot beat the worst hypothesis; "never": judged at the longest length it may reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam: output tokens, sum of log-probabilities, and the score by which hypotheses are ranked."""

    tokens: tuple[int, ...]
    logprob: float
    score: float


@dataclass(frozen=True, slots=True)
class Continuation:
    """The next token of a beam: `parent` is the beam's index among those of this step."""

    parent: int
    token: int
    logprob: float  # of the whole output


@dataclass(slots=True)
class BeamSearch:
    """State of one request's search. `limit` is the most output tokens; `ends` are the end tokens that count."""

    width: int
    limit: int
    ends: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    finished: list[Hypothesis] = field(default_factory=list)
    done: bool = False
    _outputs: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    _logprobs: list[float] = field(default_factory=lambda: [0.0])
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
        return max(2, 1 + len(self.ends)) * self.width

    def advance(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> list[Continuation]:
        """One step: for each running beam its likeliest tokens with log-probabilities, best first.

        Returns the beams of the next step, best first; empty, with `done` true, when the search is over.
        """
        found = [
            Continuation(beam, token, self._logprobs[beam] + logprob)
            for beam, tokens in enumerate(likeliest)
            for token, logprob in tokens
        ]
        found.sort(key=lambda c: (-c.logprob, c.parent))
        found = found[: self.looked_at]
        length = len(self._outputs[0]) + 1
        ending = [c.token in self.ends or length >= self.limit for c in found]
        new = [c for c, ends in zip(found[: self.width], ending, strict=False) if ends]
        self._finish(new, length)
        running = [c for c, ends in zip(found, ending, strict=True) if not ends][: self.width]
        self._outputs = [(*self._outputs[c.parent], c.token) for c in running]
        self._logprobs = [c.logprob for c in running]
        self.done = not running or self._settled(length)
        return [] if self.done else running

    def best(self) -> list[Hypothesis]:
        """Finished hypotheses, best first, at most `width`."""
        return self.finished

    def _finish(self, ending: list[Continuation], length: int) -> None:
        full = len(self.finished) == self.width
        if (full and self.early_stopping is True) or not self._improvable:
            return
        for c in ending:
            score = c.logprob / length**self.length_penalty
            self.finished.append(Hypothesis((*self._outputs[c.parent], c.token), c.logprob, score))
        self.finished.sort(key=lambda h: -h.score)
        del self.finished[self.width :]

    def _settled(self, length: int) -> bool:
        """Whether nothing that still runs can change the result, by the rule of early_stopping."""
        if len(self.finished) < self.width:
            return False
        if self.early_stopping is True:
            return True
        at = self.limit if self.early_stopping == "never" and self.length_penalty > 0 else length
        self._improvable = self._logprobs[0] / at**self.length_penalty > self.finished[-1].score
        return not self._improvable
