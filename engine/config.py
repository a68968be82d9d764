"""Every option, once. The command line, the settings file, the environment and `vtop config` are derived from here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from vtop.engine.errors import BadValue
from vtop.engine.fields import MOST_BLOCKS, MOST_COUNT
from vtop.engine.option_types import check_option
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

ACCEPTED_BLOCK_SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
DEFAULT_TOKEN_BUDGET = 512
DEFAULT_PREFILL_FIRST_BUDGET = 2048
DEFAULT_VLLM_BUDGET = 2048
MOST_MEMORY = 1_048_576  # GiB
MOST_LEVELS = 1000  # of mlfq: the quantum doubles from each to the next
MOST_NOISE = 100  # beyond it an exponential is no float any more
MOST = {"num_gpu_blocks_override": MOST_BLOCKS, "cpu_threads": 4096}

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
"""What each preset gives to options that nobody set (their default is None)."""


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

    enable_prefix_caching: bool = _option(
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
    batching: Batching = _option(
        None,
        "mix prefill chunks with decodes, or run whole prompts first (default: chunked; vllm-v0: prefill-first)",
    )
    max_prefill_steps: int = _option(3, "prefill-first: prompt steps in a row while decodes wait; 0 is no bound")
    admission: Admission = _option(
        "reserve-full-prompt",
        "admit when the whole prompt fits in what is available, when its first chunk does, or when nobody running can "
        "run out of blocks whatever it generates",
    )
    watermark: float = _option(
        None, "share of the pool that admission leaves available while something runs (default: 0; vllm-v0: 0.01)"
    )
    scheduling_policy: str = _option(
        "fcfs",
        "who goes first: fcfs, priority, fair, deadline, sjf, mlfq or FILE.py:Class; joined with +, most significant "
        "first, as in priority+fair",
    )
    priority_order: PriorityOrder = _option(
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
        if self.block_size not in ACCEPTED_BLOCK_SIZES:
            raise BadValue("block_size", self.block_size, f"choose one of {', '.join(map(str, ACCEPTED_BLOCK_SIZES))}")
        for name in (
            "num_gpu_blocks_override",
            "cpu_threads",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_waiting",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadValue(name, value, "give at least 1")
            if value is not None and value > (most := MOST.get(name, MOST_COUNT)):
                raise BadValue(name, value, f"give at most {most:,}")
        for name, most in (("swap_space", MOST_MEMORY), ("num_host_blocks_override", MOST_BLOCKS)):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise BadValue(name, value, "give 0 (no host pool) or more")
            if value is not None and value > most:
                raise BadValue(name, value, f"give at most {most:,}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise BadValue("gpu_memory_utilization", self.gpu_memory_utilization, "give a share above 0 and at most 1")
        if not 0.0 <= self.watermark < 1.0:
            raise BadValue("watermark", self.watermark, "give a share from 0 up to, not including, 1")
        names = parse_spec(self.scheduling_policy)
        if self.preset != "sensible" and names not in (("fcfs",), ("priority",)):
            raise BadValue("scheduling_policy", self.scheduling_policy, f"preset {self.preset} has fcfs and priority")
        if self.preset != "sensible" and self.priority_order != "low-first":
            raise BadValue("priority_order", self.priority_order, f"preset {self.preset} has low-first only")
        modes = {"vllm-v0": ("recompute", "swap"), "vllm-v1": ("recompute",)}.get(self.preset)
        if modes is not None and self.preemption_mode not in modes:
            raise BadValue("preemption_mode", self.preemption_mode, f"preset {self.preset} has {' and '.join(modes)}")
        parse_weights(self.group_weights)
        for name, most in (("mlfq_quantum", MOST_COUNT), ("mlfq_levels", MOST_LEVELS)):
            if not 1 <= getattr(self, name) <= most:
                raise BadValue(name, getattr(self, name), f"give at least 1 and at most {most:,}")
        for name, most in (("aging_rate", MOST_COUNT), ("sjf_noise", MOST_NOISE), ("skip_ahead", MOST_COUNT)):
            if not 0 <= getattr(self, name) <= most:
                raise BadValue(name, getattr(self, name), f"give 0 (off) or more, at most {most:,}")
        if not 0 <= self.max_prefill_steps <= MOST_COUNT:
            remedy = f"give 0 (no bound) or more, at most {MOST_COUNT:,}"
            raise BadValue("max_prefill_steps", self.max_prefill_steps, remedy)
        for name in ("kv_cache_memory", "request_timeout", "mlfq_starvation", "max_predicted_ttft"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST_COUNT:
                raise BadValue(name, value, f"give a number above 0, at most {MOST_COUNT:,}")
        if not -(2**63) <= self.seed < 2**64:
            raise BadValue("seed", self.seed, "give a whole number of at most 64 bits")

    def token_budget(self, max_model_len: int) -> int:
        """Tokens a step may compute, once the model's limit is known."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return default_budget(self.batching, self.preset, max_model_len)


def default_budget(batching: str, preset: str, max_model_len: int) -> int:
    """Tokens a step may compute when `max_num_batched_tokens` is not given."""
    if batching == "prefill-first":
        return max(max_model_len, DEFAULT_PREFILL_FIRST_BUDGET)
    return DEFAULT_TOKEN_BUDGET if preset == "sensible" else DEFAULT_VLLM_BUDGET


def option_help(name: str) -> str:
    """The help line of an option."""
    for f in fields(EngineConfig):
        if f.name == name:
            return str(f.metadata["help"])
    raise KeyError(name)
