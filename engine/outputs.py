"""What a caller gets back: RequestOutput with its CompletionOutputs, as users of vLLM know them."""

from __future__ import annotations

from dataclasses import dataclass, field

from vtop.engine.executor import Logprob

TokenLogprobs = dict[int, Logprob]
"""Token id -> log-probability and rank: the chosen token and the most likely ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `finish_reason` is None until it ends; `stop_reason` is the stop string or token that ended it.

    `logprobs` has one entry per output token when SamplingParams.logprobs was given, else it is None.
    """

    index: int
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    _parts: list[str] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        """All text so far; never ends in part of a character or of a stop string."""
        if len(self._parts) > 1:
            self._parts[:] = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def append_text(self, text: str) -> None:
        if text:
            self._parts.append(text)


@dataclass(slots=True)
class RequestMetrics:
    """Engine times in seconds; None until they happen."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """What is known of a request. One object per request, brought up to date by each step that changes it.

    `prompt_logprobs`: one entry per prompt token, None for the first, when SamplingParams.prompt_logprobs was given.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    message: str = ""  # why it failed, timed out or ended for lack of room
