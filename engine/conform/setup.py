"""What a recorded case says about the engine: its configuration, requests and tokens, as ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtop.engine.config import EngineConfig
from vtop.engine.conform.faithful_v0 import (
    FaithfulV0,
    FaithfulV0Blocks,
    FaithfulV0Chunked,
    OlderV0Blocks,
    V0CaseOptions,
)
from vtop.engine.conform.faithful_v1 import FaithfulV1, FaithfulV1Blocks, V1CaseOptions
from vtop.engine.conform.stops import Repetition, V0Stops, V1Stops
from vtop.engine.sched.output import OutputProcessor

_CONFIG_KEYS = {
    "async",
    "block_size",
    "chunked",
    "cpu_blocks",
    "delay_factor",
    "gpu_blocks",
    "long_prefill_threshold",
    "lookahead",
    "max_active_seqs",
    "max_long_partial_prefills",
    "max_model_len",
    "max_partial_prefills",
    "max_seqs",
    "policy",
    "preemption",
    "prefix_caching",
    "reserve_full_prompt",
    "token_budget",
    "watermark_blocks",
}
_REQUEST_KEYS = {
    "arrival",
    "beam",  # a group whose tokens come as beams; it forks as `emit` says
    "beam_search",
    "beams",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "n",
    "priority",
    "prompt",
    "repetition",
    "stop_tokens",
}


class CaseError(ValueError):
    """A case cannot be run as it is written, or our own engine is not sound while running it."""


@dataclass(slots=True)
class CaseSetup:
    """One case under one preset (`semantics` v0 or v1) and, where the case says "either", one choice of chunking."""

    semantics: str
    engine: str
    config: Mapping[str, Any]
    requests: Mapping[str, Mapping[str, Any]]
    chunked: bool

    def __post_init__(self) -> None:
        for name in self.config:
            if name not in _CONFIG_KEYS:
                raise CaseError(f"config.{name} is not known to this runner")
        for request, spec in self.requests.items():
            for name in spec:
                if name not in _REQUEST_KEYS:
                    raise CaseError(f"{request}.{name} is not known to this runner")

    @property
    def max_model_len(self) -> int:
        return int(self.config["max_model_len"])

    @property
    def asynchronous(self) -> bool:
        return self.semantics == "v1" and bool(self.config.get("async", False))

    @property
    def first_block(self) -> int:
        """Our blocks begin at 0; V1's at 1, behind its placeholder."""
        return 1 if self.semantics == "v1" else 0

    @property
    def host_ids_follow(self) -> bool:
        """Whether host blocks are numbered on from the device's, as the newer manager does in its tables."""
        return not self._older

    @property
    def _older(self) -> bool:
        return "older block manager" in self.engine

    def engine_config(self) -> EngineConfig:
        config = self.config
        most = config["max_seqs"]
        if self.semantics == "v1":
            most = min(most, config.get("max_active_seqs") or most)
        return EngineConfig(
            preset="vllm-v1" if self.semantics == "v1" else "vllm-v0",
            block_size=config["block_size"],
            max_model_len=config["max_model_len"],
            max_num_seqs=most,
            max_num_batched_tokens=config["token_budget"],
            batching="chunked" if self.chunked else "prefill-first",
            enable_prefix_caching=config.get("prefix_caching", False),
            scheduling_policy=config.get("policy", "fcfs"),
            watermark=0.0,
        )

    def make_scheduler(
        self, config: EngineConfig, stops: OutputProcessor
    ) -> FaithfulV0 | FaithfulV0Chunked | FaithfulV1:
        """The scheduler of the case's engine, over block tables of its own."""
        blocks = self.config["gpu_blocks"], self.config["block_size"]
        caching = self.config.get("prefix_caching", False)
        budget = config.token_budget(self.max_model_len)
        if self.semantics == "v1":
            return FaithfulV1(
                config, FaithfulV1Blocks(*blocks, prefix_caching=caching), stops, budget, self._v1_options()
            )
        tables = (OlderV0Blocks if self._older else FaithfulV0Blocks)(
            *blocks,
            prefix_caching=caching,
            host_blocks=self.config.get("cpu_blocks", 0),
            lookahead=self.config.get("lookahead", 0),
        )
        kind = FaithfulV0Chunked if self.chunked else FaithfulV0
        return kind(config, tables, stops, budget, self._v0_options())

    def _v0_options(self) -> V0CaseOptions:
        config = self.config
        return V0CaseOptions(
            **self._options(),
            preemption=config.get("preemption", "auto"),
            delay_factor=config.get("delay_factor", 0.0),
            max_partial_prefills=config.get("max_partial_prefills", 1),
            max_long_partial_prefills=config.get("max_long_partial_prefills", 1),
            long_prefill_threshold=config.get("long_prefill_threshold", 0),
        )

    def _v1_options(self) -> V1CaseOptions:
        threshold = self.config.get("long_prefill_threshold", 0)
        return V1CaseOptions(
            **self._options(),
            reserve_full_prompt=self.config.get("reserve_full_prompt", True),
            own_victim_ends_pass=True,
            long_prefill_threshold=1 if threshold == "adaptive" else threshold,
            adaptive_long_prefill=threshold == "adaptive",
            asynchronous=self.asynchronous,
        )

    def _options(self) -> dict[str, Any]:
        return {
            "max_model_len": self.max_model_len,
            "chunked": self.chunked,
            "priority": self.config.get("policy") == "priority",
            "watermark_blocks": self.config.get("watermark_blocks", 0),
        }

    def make_stops(self) -> OutputProcessor:
        if self.semantics == "v0":
            return V0Stops(self.max_model_len)
        rules = {name: Repetition(**spec["repetition"]) for name, spec in self.requests.items() if "repetition" in spec}
        return V1Stops(self.max_model_len, rules)

    def number_of(self, name: str) -> int:
        return list(self.requests).index(name)

    def width_of(self, name: str) -> int:
        """Sequences of a group."""
        spec = self.requests[name]
        widths = [int(spec.get(key, 1)) for key in ("n", "beam", "beams", "beam_search")]
        return max(widths)

    def prompt_of(self, name: str) -> list[int]:
        prompt = self.requests[name]["prompt"]
        if isinstance(prompt, int):
            return [(self.number_of(name) + 1) * 1000 + j for j in range(prompt)]
        return [first + j for first, count in prompt["parts"] for j in range(count)]

    def token_of(self, name: str, place: int) -> int:
        """The output token of a request at that place, when the case does not name it."""
        return (self.number_of(name) + 1) * 1000 + 500 + place
