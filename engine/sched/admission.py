"""What becomes of a request that is added: refused, because it can never run or too many wait, or queued.

One place, one line of text for each refusal.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from vtop.engine import events as ev
from vtop.engine.blocks.manager import BlockManager
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue, DuplicateRequest, error_line, in_one_line
from vtop.engine.fields import MOST_ID, MOST_TEXT, check, check_text
from vtop.engine.request import FinishReason, Request, SamplingParams

if TYPE_CHECKING:
    from vtop.engine.sched.core import SchedulerCore

SLACK = 1e-9  # of a sum of seconds


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


def refusal_event(request_id: object, error: BadValue, prompt: object) -> ev.Refused:
    """The event that tells a refusal; id and prompt may be what was refused, and are told as far as they can be."""
    text = prompt if isinstance(prompt, str) and _encodable(prompt) else None
    name = in_one_line(request_id if isinstance(request_id, str) else f"({type(request_id).__name__})")[:MOST_TEXT]
    if isinstance(error, Refusal):
        return ev.Refused(name, error.code, str(error), error.need, error.capacity, text)
    return ev.Refused(name, ev.RefusalCode.BAD_PARAMETER, str(error), prompt=text)


def _encodable(text: str) -> bool:
    try:
        check_text("prompt", text)
    except BadValue:
        return False
    return True


def check_request(request_id: object, alive: Container[str], params: object, **fields: object) -> None:
    """Raise BadValue unless id, parameters and the other `fields` of `add_request` can be used."""
    check("request_id", request_id)
    if request_id in alive:
        raise DuplicateRequest(str(request_id))
    if not isinstance(params, SamplingParams):
        raise BadValue("params", params, "give SamplingParams, or None for its defaults")
    for name, value in fields.items():
        if value is not None or name != "priority":  # None is the default priority
            check(name, value)


def check_arrival(arrival: float | None, started: float, now: float) -> None:
    """Raise BadValue when a request did not arrive between the start of the engine and now, by the engine's clock."""
    if arrival is not None and not started - SLACK <= arrival <= now + SLACK * max(1.0, abs(now)):
        remedy = (
            f"give engine time, which is now {now:.6g} and began at {started:.6g} (LLMEngine.clock), or None for now"
        )
        raise BadValue("arrival_time", arrival, remedy)


def check_ends(params: SamplingParams, eos: frozenset[int], vocab_size: int | None) -> None:
    """Raise BadValue when min_tokens would forbid every token there is."""
    if not params.min_tokens or vocab_size is None or len(params.stop_token_ids) + len(eos) < vocab_size:
        return
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
    if sum(token < vocab_size for token in ends) >= vocab_size:
        remedy = "every token of the model would end the output, so none can be the first; leave some out"
        raise BadValue("stop_token_ids", f"{len(ends)} of them with min_tokens {params.min_tokens}", remedy)


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
    text: object = None
    if isinstance(prompt, dict):
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt", text, "give text under the key prompt")
        if isinstance(ids, str):
            remedy = "give a list of token ids under this key, and text under prompt"
            raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt_token_ids", ids, remedy)
        prompt = ids or text
    if isinstance(text, str):
        check_text("prompt", text)
    if isinstance(prompt, str):
        return prompt, _encoded(prompt, tokenizer, vocab_size)
    if not isinstance(prompt, (list, tuple)):
        raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt", prompt, "give text or a list of token ids")
    if not prompt:
        raise Refusal(ev.RefusalCode.EMPTY_PROMPT, "prompt", prompt, "give at least one token")
    for token in prompt:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise Refusal(ev.RefusalCode.BAD_TOKEN, "prompt", token, "every token id must be a number of 0 or more")
        if token > (MOST_ID if vocab_size is None else vocab_size - 1):
            most = MOST_ID + 1 if vocab_size is None else vocab_size
            raise Refusal(ev.RefusalCode.BAD_TOKEN, "prompt", token, f"token ids must be below {most}", token, most)
    return text if isinstance(text, str) else None, list(prompt)


def _encoded(prompt: str, tokenizer: Any, vocab_size: int | None) -> list[int]:
    check_text("prompt", prompt)
    if not prompt.strip():
        raise Refusal(ev.RefusalCode.EMPTY_PROMPT, "prompt", prompt, "type some text")
    if tokenizer is None:
        raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt", prompt, "this model has no tokenizer; give token ids")
    try:
        ids = list(tokenizer(prompt).input_ids)
    except Exception as error:
        remedy = f"the tokenizer fails on it ({error_line(error)}); give other text, or token ids"
        raise Refusal(ev.RefusalCode.BAD_PARAMETER, "prompt", prompt, remedy) from error
    if not ids:  # its normaliser dropped every character
        raise Refusal(
            ev.RefusalCode.EMPTY_PROMPT, "prompt", prompt, "the tokenizer leaves no token of it; type other text"
        )
    highest = max(ids)
    if vocab_size is not None and highest >= vocab_size:  # added to the tokenizer, not to the model
        remedy = f"it holds token {highest}, and the model knows those below {vocab_size}; leave that text out"
        raise Refusal(ev.RefusalCode.BAD_TOKEN, "prompt", prompt, remedy, highest, vocab_size)
    return ids


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


def queue_request(scheduler: SchedulerCore, request: Request, now: float | None) -> Request | None:
    """Into the waiting queue, as `SchedulerCore.add` says."""
    request.queued = scheduler.now = request.arrival if now is None else now
    scheduler.policy.on_arrival(request, scheduler.now)
    try:
        request.key = scheduler.policy.key(request)
        turned_away = check_queue(scheduler, request)
    except Exception:
        scheduler.policy.on_finish(request)
        raise
    if turned_away is not None:
        turn_away(scheduler, turned_away, request)
    scheduler.waiting.push(request)
    for at in {request.deadline, request.expires}:
        if at is not None:
            heapq.heappush(scheduler.deadlines, (at, request.number, request))
    params = request.params
    scheduler.note(
        ev.Arrived(
            id=request.request_id,
            number=request.number,
            key=request.key,
            arrival=request.arrival,
            prompt_tokens=request.prompt_len,
            limit=request.limit,
            max_tokens=params.max_tokens,
            prompt=request.prompt,
            priority=request.priority,
            group=request.group,
            deadline=request.deadline,
            expires=request.expires,
            temperature=params.temperature,
            seed=request.seed,
            expected_tokens=request.expected_tokens,
            samples=len(request.sequences),
        )
    )
    return turned_away


def check_queue(scheduler: SchedulerCore, new: Request) -> Request | None:
    """Who must leave the waiting queue for `new`, which has its key but is in no queue yet; None: there is room.

    Requests that ran already are never turned away: their tokens were seen. Raises Refusal when `new` itself is the
    least urgent, or when those that come before it take longer to prefill than max_predicted_ttft.
    """
    config, place = scheduler.config, scheduler.place_of
    most = config.max_waiting
    leaves: Request | None = None
    if most is not None and len(scheduler.waiting) >= most:
        others = [request for request in scheduler.waiting.ordered() if not request.admissions]
        leaves = max(others, key=place, default=None)
        if leaves is None or place(leaves) <= place(new):
            waiting = len(scheduler.waiting)
            remedy = f"{waiting} wait already, none less urgent; come back later, or raise it"
            raise Refusal(ev.RefusalCode.QUEUE_FULL, "max_waiting", most, remedy, need=waiting + 1, capacity=most)
    if config.max_predicted_ttft is not None:
        _check_predicted(scheduler, new, config.max_predicted_ttft)
    return leaves


def _check_predicted(scheduler: SchedulerCore, new: Request, most: float) -> None:
    rate = scheduler.rates().prefill_tokens_per_second
    if rate <= 0:
        return
    place = scheduler.place_of(new)
    before = [request for request in scheduler.waiting.ordered() if scheduler.place_of(request) < place]
    tokens = new.prompt_len + sum(seq.num_tokens for request in before for seq in request.computing)
    if tokens / rate > most:
        remedy = (
            f"{tokens} prompt tokens take {tokens / rate:.3g} s at {rate:.0f} per second; come back later, or raise it"
        )
        raise Refusal(ev.RefusalCode.PREDICTED_TTFT, "max_predicted_ttft", most, remedy, need=tokens)


def turn_away(scheduler: SchedulerCore, leaves: Request, new: Request) -> None:
    """End a waiting request, so that a more urgent one can wait in its place."""
    most = scheduler.config.max_waiting or 0
    scheduler.note(ev.TurnedAway(leaves.request_id, new.request_id, leaves.key, new.key, most))
    message = f"turned away for {new.request_id}, which is more urgent: max_waiting is {most}"
    scheduler.finish(leaves, FinishReason.REFUSED, message=message)
