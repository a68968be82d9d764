"""Beam search of vLLM 0.6.2: which sequences of a group live on, and what becomes of their blocks.

That is (24) of V0's list in `presets/RULES.md`.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from vtop.engine import events as ev
from vtop.engine.executor import SampledToken
from vtop.engine.presets.base import PresetScheduler
from vtop.engine.request import FinishReason, Request, Sequence
from vtop.engine.sched.output import OutputProcessor
from vtop.engine.sched.samples import drop_beam, fork_beam


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that a step could go on with: `parent` and one token. `own`: the last of its parent's candidates.

    The original goes on in the parent itself with the last one, and forks the others.
    """

    parent: Sequence
    token: int
    logprob: float
    own: bool
    finish: FinishReason | None

    @property
    def score(self) -> float:
        """Mean log-probability over the whole length."""
        return self.logprob / (self.parent.num_tokens + 1)


@dataclass(slots=True)
class Beams:
    """The beams of one group."""

    request: Request
    finished: list[float] = field(default_factory=list)  # scores

    def advance(self, scheduler: PresetScheduler, stops: OutputProcessor, items: Items[Items[float]]) -> None:
        """Choose among candidates [parent position, token, log-probability], keep the best, drop the others."""
        width = len(self.request.sequences)
        candidates = self._candidates(stops, items)
        running = sorted((c for c in candidates if c.finish is None), key=lambda c: -c.score)
        ended = [c for c in candidates if c.finish is not None]
        self.finished = sorted([*self.finished, *(c.score for c in ended)], reverse=True)[:width]
        full = len(self.finished) == width
        if not running or (full and self.finished[-1] >= running[0].score):
            reason = ended[-1].finish if ended and ended[-1].finish is not None else FinishReason.STOP
            scheduler.finish(self.request, reason)
            return
        self._keep(scheduler, running[:width])

    def _candidates(self, stops: OutputProcessor, items: Items[Items[float]]) -> list[Candidate]:
        parents = self.request.computing
        last = {int(position): number for number, (position, *_) in enumerate(items)}
        found = []
        for number, (position, token, logprob) in enumerate(items):
            parent = parents[int(position)]
            parent.token_ids.append(int(token))
            finish = stops.accept(parent, SampledToken(int(token))).finish
            parent.token_ids.pop()
            total = parent.cumulative_logprob + logprob
            found.append(Candidate(parent, int(token), total, last[int(position)] == number, finish))
        return found

    def _keep(self, scheduler: PresetScheduler, kept: list[Candidate]) -> None:
        """Parents of nobody are freed; each other parent goes on as one of its candidates, the rest share its blocks.

        The order of the group is the original's: parents that went on by themselves, then the forked ones by score.
        """
        old = self.request.computing
        by_parent: dict[Sequence, list[Candidate]] = {}
        for candidate in kept:
            by_parent.setdefault(candidate.parent, []).append(candidate)
        for parent in old:
            if parent not in by_parent:
                drop_beam(scheduler, parent)
        free = [seq for seq in self.request.sequences if seq not in by_parent]
        place: dict[int, Sequence] = {}
        for parent, candidates in by_parent.items():
            here = next((c for c in candidates if c.own), candidates[0])
            for candidate in candidates:
                if candidate is here:
                    continue
                child = free.pop(0)
                fork_beam(scheduler, parent, child)
                place[id(candidate)] = child
            place[id(here)] = parent
        for candidate in kept:
            seq = place[id(candidate)]
            seq.token_ids.append(candidate.token)
            seq.cumulative_logprob = candidate.logprob
            seq.ended = False
        for seq in free:
            seq.ended = True
        own = sorted((c for c in kept if c.own), key=lambda c: old.index(c.parent))
        order = [place[id(c)] for c in own] + [place[id(c)] for c in kept if not c.own]
        self.request.sequences[:] = free + order
        ids = [self.request.request_id] * len(order)
        tokens = [seq.token_ids[-1] for seq in order]
        scheduler.note(ev.Tokens(ids, tokens, [""] * len(order), [seq.index for seq in order]))
