"""What is refused when it is added, because it can never run: one place, one line of text for each."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from vtop.engine import events as ev
from vtop.engine.block_manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue, DuplicateRequest


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


def check_request(request_id: object, alive: Container[str], priority: object, group: object, timeout: object) -> None:
    """Raise BadValue unless id, priority, group and time-out can be used."""
    if not isinstance(request_id, str) or not request_id:
        raise BadValue("request_id", request_id, "give a non-empty string")
    if request_id in alive:
        raise DuplicateRequest(request_id)
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
        raise BadValue("priority", priority, "give a whole number")
    if not isinstance(group, str) or not group:
        raise BadValue("group", group, "give a non-empty name")
    if timeout is not None and (not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0):
        raise BadValue("timeout", timeout, "give seconds above 0, or None for no limit")


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
