"""Many requests at once: how long each prompt is, and words to fill it. Everything follows from the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from enum import StrEnum

from vtop.engine.errors import BadValue

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
