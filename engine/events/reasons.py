"""Why something was decided, as data: limits, reasons of waits, and the codes that events carry."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Limit(StrEnum):
    """Which limit stopped a step from doing more."""

    NONE = "none"  # nothing was left out
    BLOCKS = "blocks"
    BUDGET = "budget"
    SEQS = "seqs"
    PREEMPTED = "preempted"  # a step that preempts admits nobody
    SWAPPED = "swapped"  # swapped requests return before anybody is admitted
    DECODES = "decodes"  # prefill-first: it was the decodes' turn


# --- reasons: why a request waits, or got nothing in this step -------------------------------------------------


class Reason(msgspec.Struct, frozen=True, tag=True, tag_field="code"):
    """Base of the reasons. `code` in JSON is the tag."""


class NeedsBlocks(Reason, frozen=True, tag="blocks"):
    """Admission needs `need` blocks and leaves `watermark` available; only `free` + `cached` are.

    `growth` more are kept for what running requests take while a preempted one is computed again.
    """

    need: int
    free: int
    watermark: int = 0
    growth: int = 0
    cached: int = 0

    @property
    def available(self) -> int:
        return self.free + self.cached

    @property
    def total(self) -> int:
        """What must be available."""
        return self.need + self.growth + self.watermark


class NeedsBudget(Reason, frozen=True, tag="budget"):
    """The step's token budget is spent: `need` tokens wanted, `left` left of `budget`."""

    need: int
    left: int
    budget: int


class NeedsSeat(Reason, frozen=True, tag="seqs"):
    """All `limit` sequence slots are taken."""

    limit: int


class AfterPreemption(Reason, frozen=True, tag="preempted-this-step"):
    """A step that preempts admits nobody; `victim` was preempted."""

    victim: str


class SwappedFirst(Reason, frozen=True, tag="swapped-first"):
    """Nobody is admitted while somebody is left swapped out; `id` is the next of them to return."""

    id: str


class DecodesFirst(Reason, frozen=True, tag="decodes-first"):
    """prefill-first: `steps` prompt steps ran in a row, now the decodes have a turn."""

    steps: int


WaitReason = NeedsBlocks | NeedsBudget | NeedsSeat | AfterPreemption | SwappedFirst | DecodesFirst


class RefusalCode(StrEnum):
    EMPTY_PROMPT = "empty-prompt"
    PROMPT_TOO_LONG = "prompt-too-long"  # no room for a token under max_model_len
    NEVER_FITS = "never-fits"  # the prompt needs more blocks than the pool has
    OVER_BUDGET = "over-budget"  # prefill-first: the prompt exceeds the token budget
    QUEUE_FULL = "queue-full"  # as many wait as max_waiting allows
    PREDICTED_TTFT = "predicted-ttft"  # its first token would come later than max_predicted_ttft
    BAD_TOKEN = "bad-token"  # a token id outside the vocabulary
    BAD_PARAMETER = "bad-parameter"


class PreemptCause(StrEnum):
    NO_FREE_BLOCK = "no-free-block"  # and no cached one either
    POOL_RESIZED = "pool-resized"  # it held blocks beyond the new size
    CACHE_RESET = "cache-reset"  # somebody forced the prefix cache to be forgotten
    MORE_URGENT = "more-urgent"  # preempt_for_waiting: for a waiting request
    STEP_FAILED = "step-failed"  # the step it was scheduled in was abandoned


class ModeWhy(StrEnum):
    """Why a victim's KV was swapped or thrown away."""

    MODE = "mode"  # as preemption_mode says
    CHEAPER = "cheaper"  # hybrid: the estimates were compared
    HOST_FULL = "host-full"  # no room in the host pool: recompute instead
    NOTHING_COMPUTED = "nothing-computed"  # there was nothing to keep


class MoveCause(StrEnum):
    """Why a policy moved a request to another place."""

    AGING = "aging"  # it waited so long that it came before a more important one
    STARVED = "starved"  # mlfq: it waited for the whole starvation time
    QUANTUM = "quantum"  # mlfq: it used up the quantum of its level
    USER = "user"  # a user's policy said so
