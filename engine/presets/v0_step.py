"""V0Step: what a step of vLLM V0 has decided so far. Numbers are those of V0's list in `RULES.md`."""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine.executor import Chunk
from vtop.engine.request import Request
from vtop.engine.sched.changes import StepPass


@dataclass(slots=True)
class V0Step(StepPass):
    """`left` counts uncached tokens only (6); `sequences` are those that count against the cap (4)."""

    sequences: int = 0
    reached: int = 0  # sequences of the running requests that got tokens
    preempted: bool = False  # somebody, in the pass over running requests
    unreached: list[Request] = field(default_factory=list)  # running ones that the budget did not reach
    admitted: list[Request] = field(default_factory=list)
    prefills: list[Request] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    returned_prefills: list[Request] = field(default_factory=list)
    returned_decodes: list[Request] = field(default_factory=list)

    def compute(self, request: Request, tokens: int) -> None:
        """Put the request into the batch: so many tokens of its one sequence, or what each of several lacks."""
        seqs = request.computing
        for seq in seqs:
            start = seq.num_computed
            end = start + tokens if len(seqs) == 1 else seq.num_tokens
            sample = end == seq.num_tokens
            children = [] if request.forked or not sample else request.sequences[1:]
            self.add(request, Chunk(seq, start, end - start, sample, forks=children))


def sequences_of(request: Request) -> int:
    """Sequences that count against the cap: all of a group's until it forks, then its unfinished ones (4)."""
    return len(request.computing) if request.forked else len(request.sequences)
