"""What the fold knows of a sequence, a request, a step, and in total: the parts of EngineState."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from vtop.engine import events as ev
from vtop.engine.request import Phase, RequestStatus
from vtop.engine.state.records import RequestRecord, RunTotals

KEEP_HISTORY = 100  # decisions per request


class Move(NamedTuple):
    """The K/V of block `source` was copied to block `target`, for the request with that `number`."""

    number: int
    source: int
    target: int


@dataclass(slots=True)
class Moves:
    """What moved in the latest step in which anything did: `time` is when it was complete."""

    step: int = -1
    time: float = 0.0
    made: list[Move] = field(default_factory=list)

    def add(self, step: int, time: float, number: int, pairs: Iterable[tuple[int, int]]) -> None:
        if step != self.step:
            self.step, self.made = step, []
        self.time = time
        self.made += [Move(number, source, target) for source, target in pairs]


class Told(NamedTuple):
    """An event about a request, and when it was told: engine step and seconds."""

    step: int
    time: float
    event: ev.AnyEvent


@dataclass(slots=True)
class SequenceView:
    """One sequence: its tokens so far (counts), its text, its block table."""

    num_tokens: int
    num_computed: int = 0
    most_computed: int = 0  # or found in the prefix cache, before any preemption too
    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)  # the table while swapped out
    output_tokens: list[int] = field(default_factory=list)
    text_parts: list[str] = field(default_factory=list)
    finish_reason: str = ""  # of one of several samples that ended before its request
    stop_reason: str | int | None = None
    logprob: float | None = None  # of its output, where best_of chose it

    def __deepcopy__(self, memo: dict[int, object]) -> SequenceView:
        """What the lists hold never changes; to look at each token would take a second for a thousand requests."""
        still = copy.copy(self)
        for name in ("blocks", "host_blocks", "output_tokens", "text_parts"):
            setattr(still, name, list(getattr(self, name)))
        return still

    @property
    def text(self) -> str:
        if len(self.text_parts) > 1:
            self.text_parts[:] = ["".join(self.text_parts)]
        return self.text_parts[0] if self.text_parts else ""


@dataclass(slots=True, kw_only=True)
class RequestView(RequestRecord):
    """A request as a person sees it. Times are engine seconds; None until they happen."""

    prompt: str | None
    limit: int
    max_tokens: int | None
    key: tuple[float, ...]
    temperature: float
    seed: int
    status: RequestStatus = RequestStatus.WAITING
    sequences: list[SequenceView] = field(default_factory=list)
    admitted_serial: int = -1
    admissions: int = 0
    expected_tokens: int | None = None
    passed: int = 0  # later ones that went ahead while it did not fit
    reason: ev.WaitReason | None = None
    reason_since: float = 0.0
    reason_step: int = 0  # in which it was decided
    scheduled_tokens: int = 0  # in the latest step that ran, over all sequences
    phase: Phase | None = None  # of the latest chunk
    queued_at: float = 0.0  # when it last entered the waiting queue
    preempted_wait: float = 0.0  # seconds waited after preemptions, until admitted again
    stop_reason: str | int | None = None
    message: str = ""
    found: list[ev.BeamOutput] = field(default_factory=list)  # what a beam search returned, best first
    chosen: list[int] = field(default_factory=list)  # sequences that best_of returned, best first
    history: deque[Told] = field(default_factory=lambda: deque(maxlen=KEEP_HISTORY))  # decisions about it

    def __deepcopy__(self, memo: dict[int, object]) -> RequestView:
        """Reasons and events never change."""
        still = copy.copy(self)
        still.sequences = copy.deepcopy(self.sequences, memo)
        still.history = self.history.copy()
        return still

    @property
    def num_sequences(self) -> int:
        """Sequences that are not ended; of a finished request those that ended with it."""
        return sum(not seq.finish_reason for seq in self.sequences)

    @property
    def computed(self) -> int:
        """Tokens with K/V; the prompt of several samples counts once."""
        computed = [seq.num_computed for seq in self.sequences if seq.num_computed]
        if len(computed) <= 1:
            return sum(computed)
        return sum(computed) - (len(computed) - 1) * min(self.prompt_tokens, *computed)

    @property
    def known(self) -> int:
        """Tokens of the prompt, once, and of every output so far."""
        return self.prompt_tokens + sum(seq.num_tokens - self.prompt_tokens for seq in self.sequences)

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds; those that its samples share count once."""
        if len(self.sequences) == 1:
            return len(self.sequences[0].blocks)
        return len({block for seq in self.sequences for block in seq.blocks})

    @property
    def num_host_blocks(self) -> int:
        """The same of the host pool."""
        return len({block for seq in self.sequences for block in seq.host_blocks})

    @property
    def text(self) -> str:
        """Of several outputs the best, once it is known which; before, the first."""
        if self.found:
            return self.found[0].text
        return self.sequences[self.chosen[0] if self.chosen else 0].text

    @property
    def planned_output(self) -> int:
        """Most output tokens it may give."""
        return self.limit - self.prompt_tokens


@dataclass(slots=True)
class StepView:
    """The latest step that ran. `used` blocks were held while it was computed (after it was scheduled, before its
    tokens ended anybody), and of their slots `filled` held K/V once it was.
    """

    step: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    sequences: int = 0
    used: int = 0
    filled: int = 0
    budget: int = 0
    limit: ev.Limit = ev.Limit.NONE
    times: ev.StepTimes | None = None
    preemptions: int = 0
    running: int = 0  # requests that ran and waited meanwhile
    waiting: int = 0


@dataclass(slots=True)
class Totals(RunTotals):
    """What a fold of every block and queue counts besides. `group_tokens` are what each group of requests was given:
    prompts that were admitted, each once, and output; groups are in the order in which they came.
    """

    held_slots: int = 0  # of the blocks held, summed over steps
    filled_slots: int = 0  # of these, those with K/V
    peak_running: int = 0  # requests
    peak_sequences: int = 0  # of running requests
    group_tokens: dict[str, int] = field(default_factory=dict)
