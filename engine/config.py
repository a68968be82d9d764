"""Every option, once. The command line, the settings file, the environment and `vtop config` are derived from here."""

from __future__ import annotations

import difflib
import functools
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vtop.engine.errors import BadValue
from vtop.engine.fields import OPTIONS, check, check_text
from vtop.engine.policy_spec import parse_spec, parse_weights

Batching = Literal["chunked", "prefill-first"]
Admission = Literal["reserve-full-prompt", "first-chunk", "reserve-worst-case"]
Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "float16", "bfloat16"]
BackendName = Literal["auto", "triton", "numba", "torch", "reference"]
Preset = Literal["sensible", "vllm-v0", "vllm-v1"]
PreemptionMode = Literal["recompute", "swap", "hybrid"]
VictimRuleName = Literal["policy", "latest", "least-computed", "most-blocks"]
PriorityOrder = Literal["high-first", "low-first"]

DEFAULT_TOKEN_BUDGET = 512
DEFAULT_PREFILL_FIRST_BUDGET = 2048
DEFAULT_VLLM_BUDGET = 2048
PRESETS: dict[str, dict[str, Any]] = {
    "sensible": {
        "batching": "chunked",
        "watermark": 0.0,
        "priority_order": "high-first",
        "enable_prefix_caching": True,
    },
    "vllm-v0": {
        "batching": "prefill-first",
        "watermark": 0.01,
        "priority_order": "low-first",
        "enable_prefix_caching": False,
    },
    "vllm-v1": {
        "batching": "chunked",
        "watermark": 0.0,
        "priority_order": "low-first",
        "enable_prefix_caching": True,
    },
}
"""What each preset gives to options that nobody set. They are None only until then: EngineConfig fills them in."""

_WORDS: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none",
}  # fmt: skip
MOST_BITS = 64  # what counters, arrays and recordings hold


def _option(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of the engine. Raises BadValue naming the option when a value cannot be used.

    Sizes are counts unless the name or help says otherwise; memory is in GiB; times are seconds.
    """

    model: str = _option("tiny", "tiny, smollm2, a local folder, a .gguf file or a hub id")
    device: Device = _option("auto", "where the model runs; auto takes cuda when there is one")
    dtype: DType = _option("auto", "weights and KV; auto is float32 on cpu, the model's own on cuda")
    seed: int = _option(0, "seed for requests that bring none")
    cpu_threads: int | None = _option(
        None, "torch threads on cpu (default: OMP_NUM_THREADS, else 1 for small models and all cores for others)"
    )
    cpu_pack_weights: bool = _option(
        True, "run linear layers, norms and rotary embeddings on our own kernels on cpu, where there are any"
    )
    attention_backend: BackendName = _option("auto", "what computes attention; auto: the fastest that runs here")
    enforce_eager: bool = _option(False, "run decodes without CUDA graphs")
    compile: bool = _option(
        False,
        "compile the model's layers with torch.compile, where there is a compiler; on cpu in place of cpu_pack_weights",
    )

    block_size: int = _option(16, "tokens per KV block")
    num_gpu_blocks_override: int | None = _option(None, "blocks in the device pool; wins over profiling")
    gpu_memory_utilization: float = _option(0.9, "share of GPU memory for weights, activations and KV")
    kv_cache_memory: float | None = _option(None, "GiB for the KV pool on cpu (default: 25 % of free RAM, at most 4)")

    swap_space: float | None = _option(None, "GiB of host memory for swapped-out blocks; 0: none (default: 1, cuda: 4)")
    num_host_blocks_override: int | None = _option(None, "blocks in the host pool; wins over swap_space")

    enable_prefix_caching: bool | None = _option(
        None, "begin prompts with blocks that earlier ones of equal beginning left (default: true; vllm-v0: false)"
    )

    max_model_len: int | None = _option(None, "longest prompt + output in tokens (default: the model's own limit)")
    max_num_seqs: int = _option(64, "most sequences that run at once")
    max_num_batched_tokens: int | None = _option(
        None,
        f"tokens in a step (default: {DEFAULT_TOKEN_BUDGET}; prefill-first: at least {DEFAULT_PREFILL_FIRST_BUDGET})",
    )
    preset: Preset = _option("sensible", "whose scheduler decides; a preset sets batching, watermark and the like")
    preset_quirks: bool = _option(False, "waste blocks and steps where vLLM does; off: its rules without that")
    batching: Batching | None = _option(
        None,
        "mix prefill chunks with decodes, or run whole prompts first (default: chunked; vllm-v0: prefill-first)",
    )
    max_prefill_steps: int = _option(3, "prefill-first: prompt steps in a row while decodes wait; 0 is no bound")
    admission: Admission = _option(
        "reserve-full-prompt",
        "admit when the whole prompt fits in what is available, when its first chunk does, or when nobody running can "
        "run out of blocks whatever it generates",
    )
    watermark: float | None = _option(
        None, "share of the pool that admission leaves available while something runs (default: 0; vllm-v0: 0.01)"
    )
    scheduling_policy: str = _option(
        "fcfs",
        "who goes first: fcfs, priority, fair, deadline, sjf, mlfq or FILE.py:Class; joined with +, most significant "
        "first, as in priority+fair",
    )
    priority_order: PriorityOrder | None = _option(
        None, "which priorities go first: high or low numbers (default: high-first; vllm-v0, vllm-v1: low-first)"
    )
    aging_rate: float = _option(0.0, "priority: how much of it a waiting request gains per second")
    group_weights: str = _option("", "fair: shares of groups, as in a=2,b=1; others have 1")
    sjf_noise: float = _option(0.0, "sjf: error of the estimated lengths (sigma of their logarithm)")
    mlfq_quantum: int = _option(32, "mlfq: tokens in the top level; each level has twice those of the one above")
    mlfq_levels: int = _option(8, "mlfq: number of levels")
    mlfq_starvation: float = _option(3.0, "mlfq: seconds of waiting after which a request goes to the top level")
    preempt_for_waiting: bool = _option(False, "let a strictly more urgent waiting request preempt running ones")
    skip_ahead: int = _option(0, "how many later requests may pass one that does not fit")
    max_waiting: int | None = _option(
        None, "most requests that wait; beyond it the least urgent is turned away (default: no bound)"
    )
    max_predicted_ttft: float | None = _option(
        None, "seconds; refuse a request when what waits before it takes longer to prefill (default: no bound)"
    )
    victim: VictimRuleName = _option("latest", "who is preempted when no block is available")
    preemption_mode: PreemptionMode = _option("recompute", "what happens to a victim's KV")
    request_timeout: float | None = _option(None, "seconds after which a request is ended (default: never)")

    def __post_init__(self) -> None:
        check_option("preset", self.preset)
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for f in fields(self):
            check_option(f.name, getattr(self, f.name))
        parse_weights(self.group_weights)
        names = parse_spec(self.scheduling_policy)
        if self.preset != "sensible" and names not in (("fcfs",), ("priority",)):
            raise BadValue("scheduling_policy", self.scheduling_policy, f"preset {self.preset} has fcfs and priority")
        if self.preset != "sensible" and self.priority_order != "low-first":
            raise BadValue("priority_order", self.priority_order, f"preset {self.preset} has low-first only")
        modes = {"vllm-v0": ("recompute", "swap"), "vllm-v1": ("recompute",)}.get(self.preset)
        if modes is not None and self.preemption_mode not in modes:
            raise BadValue("preemption_mode", self.preemption_mode, f"preset {self.preset} has {' and '.join(modes)}")

    def watermark_blocks(self, num_blocks: int) -> int:
        """Blocks that admission leaves available in a pool of `num_blocks`."""
        return int((self.watermark or 0.0) * num_blocks)

    def token_budget(self, max_model_len: int) -> int:
        """Tokens a step may compute, once the model's limit is known."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return default_budget(self.batching, self.preset, max_model_len)


def default_budget(batching: str | None, preset: str, max_model_len: int) -> int:
    """Tokens a step may compute when `max_num_batched_tokens` is not given."""
    if batching == "prefill-first":
        return max(max_model_len, DEFAULT_PREFILL_FIRST_BUDGET)
    return DEFAULT_TOKEN_BUDGET if preset == "sensible" else DEFAULT_VLLM_BUDGET


def check_option(name: str, value: Any) -> None:
    """Raise BadValue unless `value` is what option `name` takes: one check for files, the command line and switches.

    None is a value of an option whose type says so, except where the preset would replace it.
    """
    hint = _hint(name)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if not isinstance(value, str) or value not in choices:
            raise BadValue(name, value, f"choose one of {', '.join(choices)}")
        return
    kinds = option_kinds(name)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if type(value) not in kinds and not (float in kinds and whole):
        words = [word for kind, word in _WORDS.items() if kind in kinds]
        raise BadValue(name, value, f"give {', or '.join(words)}")
    if isinstance(value, str):
        check_text(name, value)
        if "\0" in value:
            raise BadValue(name, value, "give a text without zero characters")
    if isinstance(value, float) and math.isnan(value):
        raise BadValue(name, value, "give a number")
    if whole and value.bit_length() > MOST_BITS:
        raise BadValue(name, value, f"give a whole number of at most {MOST_BITS} bits")
    if name in OPTIONS:
        check(name, value, table=OPTIONS)


def option_kinds(name: str) -> set[type]:
    """The types that an option takes; none for one whose values are chosen by name."""
    hint = _hint(name)
    return {kind for kind in get_args(hint) or (hint,) if isinstance(kind, type)}


def _hint(name: str) -> Any:
    hints = option_hints()
    if not isinstance(name, str) or name not in hints:
        close = difflib.get_close_matches(str(name), hints, n=1)
        nearest = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(hints)}"
        raise BadValue("option", name, f"there is no such option{nearest}")
    return hints[name]


@functools.cache
def option_hints() -> dict[str, Any]:
    """The types of the options' values; those that a preset fills in are never None."""
    hints = get_type_hints(EngineConfig)
    for name in PRESETS["sensible"]:
        kinds = [kind for kind in get_args(hints[name]) if kind is not type(None)]
        hints[name] = kinds[0]
    return hints
