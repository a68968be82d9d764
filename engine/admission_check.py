"""What is refused when it is added, because it can never run: one place, one line of text for each."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from vtop.engine import events as ev
from vtop.engine.block_manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue, DuplicateRequest
from vtop.engine.request import SamplingParams


class Refusal(BadValue):
    """A refusal with its code, and the sizes (in blocks or tokens) that the Refused event tells."""

    def __init__(
        self,
        code: ev.RefusalCode,
        field: str,
        value: object,
        remedy: str,
        need: int = 0,
        capacity: int = 0,
    ) -> None:
        super().__init__(field, value, remedy)
        self.code = code
        self.need = need
        self.capacity = capacity


def refusal_event(request_id: str, error: BadValue, prompt: str | None) -> ev.Refused:
    """The event that tells a refusal."""
    if isinstance(error, Refusal):
        return ev.Refused(request_id, error.code, str(error), error.need, error.capacity, prompt)
    return ev.Refused(request_id, ev.RefusalCode.BAD_PARAMETER, str(error), prompt=prompt)


def check_request(
    request_id: object,
    alive: Container[str],
    priority: object,
    group: object,
    timeout: object,
    expected_tokens: object = None,
    deadline: object = None,
) -> None:
    """Raise BadValue unless id, priority, group, time-out, expected length and deadline can be used."""
    if not isinstance(request_id, str) or not request_id:
        raise BadValue("request_id", request_id, "give a non-empty string")
    if request_id in alive:
        raise DuplicateRequest(request_id)
    if priority is not None:
        check_priority(priority)
    if not isinstance(group, str) or not group:
        raise BadValue("group", group, "give a non-empty name")
    for name, value in (("timeout", timeout), ("deadline", deadline)):
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0):
            raise BadValue(name, value, "give seconds above 0, or None for no limit")
    if expected_tokens is not None and (
        not isinstance(expected_tokens, int) or isinstance(expected_tokens, bool) or expected_tokens < 1
    ):
        raise BadValue("expected_tokens", expected_tokens, "give at least 1 output token, or None for unknown")


def check_priority(priority: object) -> None:
    """Raise BadValue unless it is a whole number that a float holds exactly, as keys are floats in a recording."""
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**53:
        raise BadValue("priority", priority, "give a whole number of at most 53 bits")


def check_queue(waiting: int, config: EngineConfig) -> None:
    """Raise Refusal when no more requests may wait."""
    most = config.max_waiting
    if most is not None and waiting >= most:
        remedy = f"{waiting} wait already; come back later, or raise it"
        raise Refusal(ev.RefusalCode.QUEUE_FULL, "max_waiting", most, remedy, need=waiting + 1, capacity=most)


def check_predicted(waiting: int, rate: float, config: EngineConfig) -> None:
    """Raise Refusal when `waiting` prompt tokens take longer than max_predicted_ttft at `rate` tokens per second."""
    most = config.max_predicted_ttft
    if most is None or rate <= 0:
        return
    predicted = waiting / rate
    if predicted > most:
        remedy = (
            f"{waiting} prompt tokens take {predicted:.3g} s at {rate:.0f} per second; come back later, or raise it"
        )
        raise Refusal(ev.RefusalCode.PREDICTED_TTFT, "max_predicted_ttft", most, remedy, need=waiting)


def check_samples(params: SamplingParams, config: EngineConfig, token_budget: int) -> None:
    """Raise Refusal when a request wants more samples than may run at once."""
    if params.beams and config.preset != "sensible":
        remedy = f"preset {config.preset} has no beam search; use preset = sensible"
        raise Refusal(ev.RefusalCode.BAD_PARAMETER, "beam_width", params.beam_width, remedy)
    wanted = params.num_samples
    if wanted > 1 and config.preset == "vllm-v1":
        name = "n" if params.n == wanted else "best_of"
        remedy = "preset vllm-v1 has one sequence per request; send as many requests"
        raise Refusal(ev.RefusalCode.BAD_PARAMETER, name, wanted, remedy, need=wanted, capacity=1)
    if wanted > token_budget and config.preset == "vllm-v0":
        name = "n" if params.n == wanted else "best_of"
        remedy = (
            f"preset vllm-v0 decodes all samples in one step, of max_num_batched_tokens {token_budget}; "
            "ask for fewer or raise it"
        )
        raise Refusal(ev.RefusalCode.OVER_BUDGET, name, wanted, remedy, need=wanted, capacity=token_budget)
    if wanted > config.max_num_seqs:
        raise Refusal(
            ev.RefusalCode.BAD_PARAMETER,
            "n" if params.n == wanted else "best_of",
            wanted,
            f"more samples than max_num_seqs {config.max_num_seqs}; ask for fewer or raise it",
            need=wanted,
            capacity=config.max_num_seqs,
        )


def tokens_of(prompt: object, tokenizer: Any, vocab_size: int | None) -> tuple[str | None, list[int]]:
    """(text, token ids) of a prompt: text, ids, or a dict as vLLM takes it. Raises Refusal.

    A tokenizer may add a start token; a blank text is refused all the same, since nothing was asked.
    """
    text: str | None = None
    if isinstance(prompt, dict):
        text = prompt.get("prompt")
        prompt = prompt.get("prompt_token_ids") or text
    if isinstance(prompt, str):
        if not prompt.strip():
            raise Refusal(ev.RefusalCode.EMPTY_PROMPT, "prompt", prompt, "type some text")
        if tokenizer is None:
            raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt", prompt, "this model has no tokenizer; give token ids")
        return prompt, list(tokenizer(prompt).input_ids)
    if not isinstance(prompt, (list, tuple)):
        raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt", prompt, "give text or a list of token ids")
    if not prompt:
        raise Refusal(ev.RefusalCode.EMPTY_PROMPT, "prompt", prompt, "give at least one token")
    for token in prompt:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise Refusal(ev.RefusalCode.BAD_TOKEN, "prompt", token, "every token id must be a number of 0 or more")
        if vocab_size is not None and token >= vocab_size:
            raise Refusal(
                ev.RefusalCode.BAD_TOKEN, "prompt", token, f"token ids must be below {vocab_size}", token, vocab_size
            )
    return text, list(prompt)


def check_fits(
    prompt_len: int, max_model_len: int, blocks: BlockManager, token_budget: int, config: EngineConfig
) -> None:
    """Raise Refusal when a prompt of that many tokens can never be computed."""
    if prompt_len >= max_model_len:
        raise Refusal(
            ev.RefusalCode.PROMPT_TOO_LONG,
            "prompt tokens",
            prompt_len,
            f"leaves no room for an output token under max_model_len {max_model_len}; shorten it",
            need=prompt_len + 1,
            capacity=max_model_len,
        )
    need, pool = blocks.blocks_for(prompt_len), blocks.pool.total
    if need > pool:
        raise Refusal(
            ev.RefusalCode.NEVER_FITS,
            "prompt tokens",
            prompt_len,
            f"needs {need} blocks of {blocks.block_size}, the pool has {pool}; shorten it or raise "
            "num_gpu_blocks_override",
            need=need,
            capacity=pool,
        )
    if config.batching == "prefill-first" and prompt_len > token_budget:
        raise Refusal(
            ev.RefusalCode.OVER_BUDGET,
            "prompt tokens",
            prompt_len,
            f"exceeds max_num_batched_tokens {token_budget}, and batching = prefill-first never splits a prompt; "
            "raise it or use batching = chunked",
            need=prompt_len,
            capacity=token_budget,
        )
