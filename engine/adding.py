"""From what `LLMEngine.add_request` is given to a Request, or one line that says why not."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from vtop.engine.blocks.manager import BlockManager
from vtop.engine.executor import EngineFacts, Tokenizer
from vtop.engine.output.text import BeamStops
from vtop.engine.presets.factory import AnyScheduler
from vtop.engine.request import Request, SamplingParams, new_request
from vtop.engine.sched.admission import (
    check_arrival,
    check_ends,
    check_fits,
    check_request,
    check_samples,
    tokens_of,
)

Prompt = str | list[int] | tuple[int, ...] | dict[str, Any]
"""Text, token ids, or {"prompt": text} / {"prompt_token_ids": ids} as in vLLM."""


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Checks and makes the requests of one engine. `alive` holds their ids; `started` is engine time."""

    scheduler: AnyScheduler
    blocks: BlockManager
    facts: EngineFacts
    alive: Container[str]
    eos_token_ids: frozenset[int]
    max_model_len: int
    started: float

    def make(
        self,
        request_id: str,
        number: int,
        prompt: Prompt,
        params: SamplingParams,
        *,
        tokenizer: Tokenizer | None,
        now: float,
        priority: float | None,
        group: str,
        cache_salt: str | None,
        timeout: float | None,
        deadline: float | None,
        arrival_time: float | None,
        expected_tokens: int | None,
    ) -> Request:
        """The request, number `number` of the engine. Raises BadValue for what can never run (see `add_request`)."""
        config, token_budget, vocab_size = self.scheduler.config, self.scheduler.token_budget, self.facts.vocab_size
        timeout = timeout if timeout is not None else config.request_timeout
        check_request(
            request_id,
            self.alive,
            params,
            priority=priority,
            group=group,
            cache_salt="" if cache_salt is None else cache_salt,
            timeout=timeout,
            deadline=deadline,
            arrival_time=arrival_time,
            expected_tokens=expected_tokens,
        )
        check_arrival(arrival_time, self.started, now)
        check_samples(params, config, token_budget)
        check_ends(params, self.eos_token_ids, vocab_size)
        text, ids = tokens_of(prompt, tokenizer, vocab_size)
        check_fits(len(ids), self.max_model_len, self.blocks, token_budget, config)
        limit = self.max_model_len
        if params.max_tokens is not None:
            limit = min(limit, len(ids) + params.max_tokens)
        arrival = now if arrival_time is None else arrival_time
        seed = params.seed
        if seed is None:  # far apart: samples of a request have the seeds that follow its own
            seed = config.seed * 0x9E3779B97F4A7C15 + (number << 32)
        request = new_request(
            request_id,
            number,
            ids,
            params,
            arrival=arrival,
            limit=limit,
            seed=seed & (2**64 - 1),
            prompt=text,
            priority=priority or 0,
            group=group,
            cache_salt=cache_salt or "",
            deadline=None if deadline is None else arrival + deadline,
            expires=None if timeout is None else arrival + timeout,
            expected_tokens=expected_tokens,
        )
        if params.beams:
            eos = frozenset() if params.ignore_eos else self.eos_token_ids
            stops = BeamStops(tokenizer, request) if params.stop and tokenizer is not None else None
            request.start_beams(frozenset(params.stop_token_ids) | eos, stops)
        return request
