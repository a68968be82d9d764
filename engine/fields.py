"""What every field of a public call or command, and every option, may hold: its type, its range, what to give instead.

Ranges are such that nothing overflows later: counters and recordings hold 64 bits, sums of seconds stay finite, and a
logit divided or multiplied by a penalty stays a float32. Text must be encodable, since recordings are UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vtop.engine.errors import BadValue

MOST_COUNT = 1_000_000_000  # of tokens, requests, steps …
MOST_BLOCKS = 100_000_000  # of a pool: some gigabytes of bookkeeping
MOST_SAMPLES = 4096  # of one request: each is a copy of its prompt
MOST_ID = 2**31 - 1  # of a token
MOST_SECONDS = 1e300  # a sum of two is still finite
MOST_TEXT = 1000  # characters of a name, id or tag
SLOWEST, FASTEST = 0.001, 1e6  # steps per second
MOST_THREADS = 4096
MOST_MEMORY = 1_048_576  # GiB
MOST_LEVELS = 1000  # of mlfq: the quantum doubles from each to the next
MOST_NOISE = 100  # beyond it an exponential is no float any more
ACCEPTED_BLOCK_SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)

_Name = Annotated[str, Meta(min_length=1, max_length=MOST_TEXT)]
_Count = Annotated[int, Meta(ge=1, le=MOST_COUNT)]
_Blocks = Annotated[int, Meta(ge=1, le=MOST_BLOCKS)]
_Number = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
_Samples = Annotated[int, Meta(ge=1, le=MOST_SAMPLES)]
_Seconds = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
_Instant = Annotated[float, Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Addend = Annotated[float, Meta(ge=-2, le=2)]
_Token = Annotated[int, Meta(ge=0, le=MOST_ID)]
_Positive = Annotated[float, Meta(gt=0, le=MOST_COUNT)]

_SECONDS = "give seconds above 0, or None for no limit"
_ADDEND = "give a number from -2 to 2"
_POSITIVE = f"give a number above 0, at most {MOST_COUNT:,}"
_COUNT = f"give at least 1 and at most {MOST_COUNT:,}"
_OFF = f"give 0 (off) or more, at most {MOST_COUNT:,}"
_LOGPROBS = f"give 0 or more, at most {MOST_COUNT:,}, or None for off"

Table = dict[str, tuple[Any, str]]
"""Name -> (type with its bounds, what to give instead)."""

FIELDS: Table = {
    # a request
    "request_id": (_Name, f"give a non-empty text of at most {MOST_TEXT:,} characters"),
    "group": (_Name, f"give a non-empty name of at most {MOST_TEXT:,} characters"),
    "cache_salt": (Annotated[str, Meta(max_length=MOST_TEXT)], f"give a text of at most {MOST_TEXT:,} characters"),
    "priority": (Annotated[float, Meta(ge=-(2**53), le=2**53)], "give a number, at most 53 bits before the point"),
    "timeout": (_Seconds | None, _SECONDS),
    "deadline": (_Seconds | None, _SECONDS),
    "arrival_time": (_Instant | None, "give engine time in seconds, or None for now"),
    "expected_tokens": (_Count | None, f"give at least 1 output token, at most {MOST_COUNT:,}, or None for unknown"),
    # SamplingParams
    "temperature": (Annotated[float, Meta(ge=0, le=1e6)], "give a number from 0 to 1e+06"),
    "top_p": (Annotated[float, Meta(gt=0, le=1)], "give a number above 0 and at most 1"),
    "top_k": (Annotated[int, Meta(ge=-1, le=MOST_COUNT)], f"give a whole number up to {MOST_COUNT:,}, 0 or -1 for off"),
    "min_p": (_Share, "give a number from 0 to 1"),
    "repetition_penalty": (Annotated[float, Meta(ge=1e-6, le=1e6)], "give a number from 1e-06 to 1e+06 (1 is off)"),
    "presence_penalty": (_Addend, _ADDEND),
    "frequency_penalty": (_Addend, _ADDEND),
    "seed": (Annotated[int, Meta(ge=-(2**63))] | None, "give a whole number of at most 64 bits, or None"),
    "stop": (tuple[Annotated[str, Meta(min_length=1)], ...], "every stop string must be a non-empty string"),
    "stop_token_ids": (tuple[_Token, ...], f"every stop token id must be a whole number from 0 to {MOST_ID}"),
    "include_stop_str_in_output": (bool, "give true or false"),
    "ignore_eos": (bool, "give true or false"),
    "max_tokens": (_Count | None, f"give at least 1 and at most {MOST_COUNT:,}, or None for no limit"),
    "min_tokens": (_Number, f"give 0 or more, at most {MOST_COUNT:,}"),
    "logprobs": (_Number | None, _LOGPROBS),
    "prompt_logprobs": (_Number | None, _LOGPROBS),
    "detokenize": (bool, "give true or false"),
    "skip_special_tokens": (bool, "give true or false"),
    "n": (_Samples, f"give at least 1 and at most {MOST_SAMPLES:,}"),
    "best_of": (_Samples | None, f"give at least n and at most {MOST_SAMPLES:,}, or None for as many as n"),
    "beam_width": (_Samples | None, f"give at least n and at most {MOST_SAMPLES:,}, or None for no beam search"),
    "length_penalty": (
        Annotated[float, Meta(ge=-20, le=20)],
        "give a number from -20 to 20 (1 is by length, 0 is off)",
    ),
    "early_stopping": (bool | Literal["never"], "give true, false or never"),
    # commands and calls
    "index": (_Number, "give the number of a sample, 0 for the first"),
    "num_blocks": (_Blocks, f"give at least 1 block, at most {MOST_BLOCKS:,}"),
    "steps": (_Count, f"give at least 1 step, at most {MOST_COUNT:,}"),
    "speed": (
        Annotated[float, Meta(ge=SLOWEST, le=FASTEST)] | None,
        f"give steps per second from {SLOWEST:g} to {FASTEST:g}, or none for no cap",
    ),
    "max_behind": (_Number | None, f"give 0 or more Frames, at most {MOST_COUNT:,}"),
    "stretch": (_Positive | None, _POSITIVE),
    "until": (_Seconds | None, _SECONDS),
    # a workload's job
    "id": (_Name, "give every job a name"),
    "at": (Annotated[float, Meta(ge=0, le=MOST_SECONDS)], "use seconds from the start, 0 or more"),
    "prompt_tokens": (_Count, f"use 1 or more, at most {MOST_COUNT:,}"),
    "output_tokens": (_Count, f"use 1 or more, at most {MOST_COUNT:,}"),
    "prefix": (tuple[tuple[str, _Count], ...], "use pieces of 1 token or more, each with a name"),
    "after": (_Name | None, "give the id of another job, or leave it out"),
}


OPTIONS: Table = {
    # EngineConfig's, as far as they have a range
    "seed": (Annotated[int, Meta(ge=-(2**63))], "give a whole number of at most 64 bits"),
    "cpu_threads": (
        Annotated[int, Meta(ge=1, le=MOST_THREADS)] | None,
        f"give at least 1 and at most {MOST_THREADS:,}",
    ),
    "block_size": (Literal[ACCEPTED_BLOCK_SIZES], f"choose one of {', '.join(map(str, ACCEPTED_BLOCK_SIZES))}"),
    "num_gpu_blocks_override": (_Blocks | None, f"give at least 1 and at most {MOST_BLOCKS:,}"),
    "gpu_memory_utilization": (Annotated[float, Meta(gt=0, le=1)], "give a share above 0 and at most 1"),
    "kv_cache_memory": (_Positive | None, _POSITIVE),
    "swap_space": (
        Annotated[float, Meta(ge=0, le=MOST_MEMORY)] | None,
        f"give 0 (no host pool) or more, at most {MOST_MEMORY:,}",
    ),
    "num_host_blocks_override": (
        Annotated[int, Meta(ge=0, le=MOST_BLOCKS)] | None,
        f"give 0 (no host pool) or more, at most {MOST_BLOCKS:,}",
    ),
    "max_model_len": (_Count | None, _COUNT),
    "max_num_seqs": (_Count, _COUNT),
    "max_num_batched_tokens": (_Count | None, _COUNT),
    "max_prefill_steps": (_Number, f"give 0 (no bound) or more, at most {MOST_COUNT:,}"),
    "watermark": (Annotated[float, Meta(ge=0, lt=1)], "give a share from 0 up to, not including, 1"),
    "aging_rate": (Annotated[float, Meta(ge=0, le=MOST_COUNT)], _OFF),
    "sjf_noise": (Annotated[float, Meta(ge=0, le=MOST_NOISE)], f"give 0 (off) or more, at most {MOST_NOISE:,}"),
    "mlfq_quantum": (_Count, _COUNT),
    "mlfq_levels": (Annotated[int, Meta(ge=1, le=MOST_LEVELS)], f"give at least 1 and at most {MOST_LEVELS:,}"),
    "mlfq_starvation": (_Positive, _POSITIVE),
    "skip_ahead": (_Number, _OFF),
    "max_waiting": (_Count | None, _COUNT),
    "max_predicted_ttft": (_Positive | None, _POSITIVE),
    "request_timeout": (_Positive | None, _POSITIVE),
    # AppConfig's
    "theme": (str, "give the name of a theme"),
    "fps": (Annotated[int, Meta(ge=1, le=60)], "give 1 to 60"),
    "speed": FIELDS["speed"],
    "max_tokens": (_Count, _COUNT),
    "temperature": FIELDS["temperature"],
    "cache_salt": FIELDS["cache_salt"],
}


def check(name: str, value: Any, shown: str = "", remedy: str = "", *, table: Table = FIELDS) -> None:
    """Raise BadValue unless `value` is what field `name` takes. `shown` is what the user calls it, if not `name`."""
    kind, known_remedy = table[name]
    for text in _texts(value):
        check_text(shown or name, text)
    given = float(value) if isinstance(value, float) else value  # numpy's float64 is one too
    try:
        msgspec.convert(given, kind)
        if name == "seed" and value is not None and value >= 2**64:  # more than msgspec's bounds hold
            raise OverflowError
    except (msgspec.ValidationError, OverflowError):
        raise BadValue(shown or name, value, remedy or known_remedy) from None


def check_text(name: str, text: str) -> None:
    """Raise BadValue when `text` holds half a surrogate pair: it is no character, and cannot be written anywhere."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        remedy = f"character {error.start + 1} is no Unicode (a lone surrogate); give text that is valid UTF-8"
        raise BadValue(name, text, remedy) from None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _texts(part)
