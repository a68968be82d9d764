"""Workloads: the requests of a simulated or replayed run, as plain data, and made-up token ids of their prompts."""

from __future__ import annotations

import functools
import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vtop.engine.errors import BadValue
from vtop.engine.fields import MOST_COUNT, check

FIRST_ID = 3  # below it are the special tokens of most vocabularies
_VOCABULARY = 32_000  # where there is no model
_CHARACTERS = 4  # of a made-up token; about what English takes
MAX_VOCABULARY = 2**31 - 1
MOST_TOKENS = MOST_COUNT  # of one prompt or output, and of what shapes it; far above what any model takes
MOST_SCALE = 1000


_CHECKED = (
    "id", "at", "prompt_tokens", "output_tokens", "priority", "group", "timeout", "deadline", "prefix",
    "expected_tokens", "after",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a workload. `at`: seconds of arrival from the start; lengths in tokens.

    `timeout` and `deadline` are seconds from arrival. `prefix` is a chain of (name, tokens): prompts that begin with
    equal pieces share them, and the rest of the prompt is the request's own. With `after`, the request arrives `at`
    seconds after the end of the job with that id (a closed loop, or the next turn of a session). Raises BadValue.
    """

    id: str
    at: float
    prompt_tokens: int
    output_tokens: int
    priority: float = 0
    group: str = "default"
    timeout: float | None = None
    deadline: float | None = None
    prefix: tuple[tuple[str, int], ...] = ()
    n: int = 1
    beam_width: int | None = None
    expected_tokens: int | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        for field in _CHECKED:
            check(field, getattr(self, field))
        for field in ("n", "beam_width"):  # too many samples are refused when it is added: that run goes on
            value = getattr(self, field)
            if value is not None or field == "n":
                check("output_tokens", value, shown=field)
        if self.beam_width is not None and self.beam_width < self.n:
            raise BadValue("beam_width", self.beam_width, f"use at least n ({self.n}), or leave it out")
        if self.after == self.id:
            raise BadValue("after", self.after, "a job cannot come after itself")
        if self.prefix:
            self._check_prefix()

    def _check_prefix(self) -> None:
        total = sum(tokens for _, tokens in self.prefix)
        if total > self.prompt_tokens:
            remedy = f"its pieces hold {total} tokens, more than the {self.prompt_tokens} of the prompt"
            raise BadValue("prefix", self.prefix[0], remedy)


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs by `at`; those with `after` arrive relative to the end of that job, wherever they stand. Raises BadValue."""

    name: str
    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        last = 0.0
        by_id: dict[str, Job] = {}
        for job in self.jobs:
            if by_id.setdefault(job.id, job) is not job:
                raise BadValue("id", job.id, "another job has it; ids must differ")
            if job.after is None:
                if job.at < last:
                    raise BadValue(
                        "at", job.at, f"{job.id!r} stands behind one that arrives at {last:g} s; sort by `at`"
                    )
                last = job.at
        _check_chains(by_id)

    def scaled(self, time: float = 1.0, length: float = 1.0, limit: int | None = None) -> Workload:
        """The first `limit` jobs, with times multiplied by `time` (0.5 arrives twice as fast) and tokens by `length`.

        Arrivals and pauses are times; time-outs and deadlines stay. Prompts and outputs keep at least 1 token, and what
        prompts shared stays shared. Jobs that come after one beyond the limit are left out. Raises BadValue.
        """
        if not (math.isfinite(time) and time >= 0):
            raise BadValue("scale_time", time, "use 0 or more; 0.5 makes requests arrive twice as fast")
        if not 0 < length <= MOST_SCALE:
            remedy = f"use more than 0 and at most {MOST_SCALE:,}; 0.0625 keeps one token of 16"
            raise BadValue("scale_length", length, remedy)
        jobs = _first(self.jobs, limit)
        if time != 1.0 or length != 1.0:
            jobs = tuple(_scaled(job, time, length) for job in jobs)
        return Workload(self.name, jobs)


def _check_chains(by_id: dict[str, Job]) -> None:
    """Every `after` names a job, and following it comes to one that has none."""
    rooted: set[str] = set()
    for job in by_id.values():
        path: dict[str, None] = {}  # in order, and quick to look into
        at: Job | None = job
        while at is not None and at.id not in rooted:
            if at.id in path:
                raise BadValue("after", at.after, f"the chain of {at.id!r} comes back to itself")
            path[at.id] = None
            if at.after is None:
                break
            if at.after not in by_id:
                raise BadValue("after", at.after, f"no job has this id; {at.id!r} waits for it")
            at = by_id[at.after]
        rooted.update(path)


def _first(jobs: tuple[Job, ...], limit: int | None) -> tuple[Job, ...]:
    if limit is None:
        return jobs
    if limit < 1:
        raise BadValue("limit", limit, "use 1 or more jobs, or leave it out")
    jobs = jobs[:limit]
    while True:
        ids = {job.id for job in jobs}
        kept = tuple(job for job in jobs if job.after is None or job.after in ids)
        if len(kept) == len(jobs):
            return kept
        jobs = kept


def _scaled(job: Job, time: float, length: float) -> Job:
    if length == 1.0:
        return replace(job, at=job.at * time)
    prompt = max(1, _rounded(job.prompt_tokens, length))
    return replace(
        job,
        at=job.at * time,
        prompt_tokens=prompt,
        output_tokens=max(1, _rounded(job.output_tokens, length)),
        prefix=_scaled_prefix(job.prefix, length),
        expected_tokens=None if job.expected_tokens is None else max(1, _rounded(job.expected_tokens, length)),
    )


def _scaled_prefix(prefix: Sequence[tuple[str, int]], length: float) -> tuple[tuple[str, int], ...]:
    """The ends of the pieces are rounded, not the pieces: they never outgrow the prompt, and equal chains stay equal.

    A piece of which nothing is left lends its name to the next one, so that different chains stay different.
    """
    scaled: list[tuple[str, int]] = []
    end = before = 0
    gone = ""
    for name, tokens in prefix:
        end += tokens
        piece = _rounded(end, length) - before
        if piece:
            scaled.append((gone + name, piece))
            gone = ""
        else:
            gone += name + "+"
        before += piece
    return tuple(scaled)


def _rounded(tokens: int, length: float) -> int:
    return math.floor(tokens * length + 0.5)


def prompt_ids(job: Job, vocab_size: int = _VOCABULARY) -> list[int]:
    """Token ids of a job's prompt, each at least 3 and below `vocab_size`.

    Every piece of the prefix gives its own reproducible run of ids, which depends on the names of the chain up to it; a
    shorter piece of the same name is the beginning of a longer one. The rest comes from the job's id. Raises BadValue.
    """
    if not FIRST_ID < vocab_size <= MAX_VOCABULARY:
        raise BadValue("vocab_size", vocab_size, f"use a number from {FIRST_ID + 1} to {MAX_VOCABULARY}")
    runs = []
    seed = b""
    rest = job.prompt_tokens
    for name, tokens in job.prefix:
        seed = _link(seed, name)
        runs.append(_shared_run(seed, tokens, vocab_size))
        rest -= tokens
    if rest:
        runs.append(_run(_link(b"own", job.id), rest, vocab_size))
    ids: list[int] = np.concatenate(runs).tolist()
    return ids


def _link(seed: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=seed, digest_size=16).digest()


@functools.lru_cache(maxsize=8192)
def _shared_run(seed: bytes, tokens: int, vocab_size: int) -> NDArray[np.uint32]:
    """Cached, since every request that shares the piece asks again."""
    return _run(seed, tokens, vocab_size)


def _run(seed: bytes, tokens: int, vocab_size: int) -> NDArray[np.uint32]:
    # an extendable hash: faster to start than a numpy Generator, and the same in every version of numpy
    words = np.frombuffer(hashlib.shake_128(seed).digest(4 * tokens), dtype="<u4")
    return words % np.uint32(vocab_size - FIRST_ID) + np.uint32(FIRST_ID)


@dataclass(frozen=True, slots=True)
class MadeUpIds:
    input_ids: list[int]


class MadeUpTokenizer:
    """A tokenizer for simulations, which have none: four characters are a token, equal beginnings give equal ids."""

    def __call__(self, text: str) -> MadeUpIds:
        pieces = (text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS))
        span = _VOCABULARY - FIRST_ID
        return MadeUpIds([FIRST_ID + zlib.crc32(p.encode("utf-8", "surrogatepass")) % span for p in pieces])

    def decode(self, ids: list[int], **_options: bool) -> str:
        """Made-up ids say nothing."""
        return ""
