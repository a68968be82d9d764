"""What a person typed or chose, as AddRequest commands with ids that nobody else has; bursts with made-up prompts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from vtop.engine.commands import AddRequest
from vtop.engine.errors import BadValue
from vtop.engine.request import SamplingParams

MAX_BURST = 10_000
MAX_WORDS = 100_000

# Made-up sentences in the manner of the tales that small language models are trained on.
_TALE = (
    "One day a little girl named Mia found a red ball near the old tree . She was happy and wanted to play with it . "
    "Her friend Tom came to the park with his small dog . The dog saw the ball and ran very fast . "
    "They laughed and said that the sun was warm . Then it began to rain , so they went home to her mom . "
    "Her mom gave them bread and told them a story about a brave bird . The bird was lost in a big forest . "
    "It asked the wind for help , and the wind was kind . At night they looked at the moon and went to sleep ."
)
_CORPUS = _TALE.split()
MAX_PROMPT = 64 * 1024  # characters; a longer paste is cut


class Lengths(StrEnum):
    """How prompt lengths of a burst are spread."""

    FIXED = "fixed"  # all of the mean
    UNIFORM = "uniform"  # 1 … twice the mean
    SHORT = "short"  # 4 … 24
    LONG = "long"  # 150 … 400
    MIXED = "mixed"  # four short ones, one long one
    LOGNORMAL = "lognormal"  # around the mean, with a long tail


def draw_lengths(lengths: Lengths, count: int, rng: random.Random, mean: int = 48) -> list[int]:
    """`count` prompt lengths in words; a word is about one token."""
    if not 1 <= count <= MAX_BURST:
        raise BadValue("burst", count, f"give 1 to {MAX_BURST} requests")
    if not 1 <= mean <= MAX_WORDS:
        raise BadValue("length", mean, f"give 1 to {MAX_WORDS} words")
    return [min(MAX_WORDS, max(1, _draw(lengths, rng, mean))) for _ in range(count)]


def _draw(lengths: Lengths, rng: random.Random, mean: int) -> int:
    match lengths:
        case Lengths.FIXED:
            return mean
        case Lengths.UNIFORM:
            return rng.randint(1, 2 * mean)
        case Lengths.SHORT:
            return rng.randint(4, 24)
        case Lengths.LONG:
            return rng.randint(150, 400)
        case Lengths.MIXED:
            return rng.randint(4, 24) if rng.random() < 0.8 else rng.randint(150, 400)
        case Lengths.LOGNORMAL:
            sigma = 0.8
            # so that the mean of the distribution is `mean`
            return round(rng.lognormvariate(0.0, sigma) * mean / math.exp(sigma * sigma / 2))


def prompt_of(words: int, rng: random.Random) -> str:
    """A text of `words` words that starts anywhere in the corpus."""
    start = rng.randrange(len(_CORPUS))
    return " ".join(_CORPUS[(start + i) % len(_CORPUS)] for i in range(words))


def burst_prompts(lengths: Lengths, count: int, seed: int, mean: int = 48) -> Iterator[str]:
    """The prompts of a burst; the same for the same arguments."""
    rng = random.Random(seed)
    for words in draw_lengths(lengths, count, rng, mean):
        yield prompt_of(words, rng)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the inject form asks for."""

    prompt: str
    params: SamplingParams
    priority: int = 0
    group: str = "default"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Burst:
    """What the burst dialog asks for. `mean` is the mean prompt length where the distribution has one."""

    count: int
    lengths: Lengths
    mean: int
    seed: int
    params: SamplingParams
    group: str = "default"


class Injector:
    """Numbers requests r1, r2, … and bursts b1-1, b1-2, …"""

    def __init__(self, params: SamplingParams, cache_salt: str = "") -> None:
        self.params = params
        self._salt = cache_salt
        self._requests = 0
        self._bursts = 0

    def skip(self, requests: int, bursts: int) -> None:
        """So many requests and bursts were numbered by somebody else."""
        self._requests += requests
        self._bursts += bursts

    def typed(self, prompt: str) -> AddRequest:
        """One request with the default parameters."""
        return AddRequest(self._next_id(), prompt, self.params, cache_salt=self._salt)

    def wanted(self, wanted: Wanted) -> Iterator[AddRequest]:
        """`count` requests; with a seed each gets its own, so that they differ but can be repeated."""
        for index in range(wanted.count):
            params = wanted.params
            if params.seed is not None and index:
                params = replace(params, seed=params.seed + index)
            name = self._next_id()
            yield AddRequest(name, wanted.prompt, params, wanted.priority, wanted.group, cache_salt=self._salt)

    def burst(self, burst: Burst) -> Iterator[AddRequest]:
        """The requests of a burst."""
        self._bursts += 1
        prompts = burst_prompts(burst.lengths, burst.count, burst.seed, burst.mean)
        for index, prompt in enumerate(prompts, 1):
            name = f"b{self._bursts}-{index}"
            yield AddRequest(name, prompt, burst.params, 0, burst.group, cache_salt=self._salt)

    def _next_id(self) -> str:
        self._requests += 1
        return f"r{self._requests}"
