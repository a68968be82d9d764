"""Types of options, wherever they come from."""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine.config import EngineConfig, check_option
from vtop.engine.errors import BadValue
from vtop.engine.fields import MOST_BLOCKS
from vtop.engine.sim.policy_choice import parse_policies

WRONG: list[tuple[str, Any, str]] = [
    ("max_num_seqs", "x", "a whole number"),
    ("max_num_seqs", None, "a whole number"),
    ("num_gpu_blocks_override", 2.5, "a whole number, or none"),
    ("block_size", 16.0, "a whole number"),
    ("enable_prefix_caching", "no", "true or false"),
    ("enable_prefix_caching", 1, "true or false"),
    ("max_model_len", True, "a whole number, or none"),
    ("skip_ahead", 1.5, "a whole number"),
    ("skip_ahead", 10**400, "64 bits"),
    ("aging_rate", "x", "a number"),
    ("aging_rate", float("nan"), "a number"),
    ("request_timeout", 10**400, "64 bits"),
    ("request_timeout", [1], "a number, or none"),
    ("model", 7, "a text"),
    ("group_weights", None, "a text"),
    ("scheduling_policy", 3, "a text"),
    ("preset", ["vllm-v0"], "sensible"),
    ("preset", None, "sensible"),
    ("batching", 1, "chunked"),
    ("victim", {}, "latest"),
]


@pytest.mark.parametrize(("name", "value", "remedy"), WRONG)
def test_a_wrong_type_is_told(name: str, value: Any, remedy: str) -> None:
    for check in (check_option, lambda name, value: EngineConfig(**{name: value})):
        with pytest.raises(BadValue) as caught:
            check(name, value)
        assert caught.value.field == name and remedy in caught.value.remedy
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("watermark", 0), ("request_timeout", 3), ("max_model_len", None), ("seed", 2**64 - 1), ("victim", "policy")],
)
def test_what_is_of_the_type_is_taken(name: str, value: Any) -> None:
    check_option(name, value)
    assert getattr(EngineConfig(**{name: value}), name) == value


def test_every_default_is_of_its_type() -> None:
    for preset in ("sensible", "vllm-v0", "vllm-v1"):
        config = EngineConfig(preset=preset)  # type: ignore[arg-type]
        for name in EngineConfig.__dataclass_fields__:
            check_option(name, getattr(config, name))


def test_no_such_option() -> None:
    with pytest.raises(BadValue, match="did you mean max_num_seqs"):
        check_option("max_num_sqs", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_gpu_blocks_override", MOST_BLOCKS + 1),
        ("num_host_blocks_override", MOST_BLOCKS + 1),
        ("swap_space", 1e300),
        ("swap_space", float("inf")),
        ("max_num_seqs", 10**12),
        ("max_model_len", 10**12),
        ("cpu_threads", 10**6),
        ("sjf_noise", 1e6),
        ("aging_rate", float("inf")),
        ("request_timeout", float("inf")),
        ("kv_cache_memory", float("inf")),
    ],
)
def test_what_nothing_could_hold_is_told(name: str, value: Any) -> None:
    with pytest.raises(BadValue) as caught:
        EngineConfig(**{name: value})
    assert caught.value.field == name and "give" in caught.value.remedy


@pytest.mark.parametrize("text", ["priority:aging_rate=x", "fcfs:max_num_seqs=2.5", "fcfs:max_num_seqs=none"])
def test_options_of_policies_are_checked_alike(text: str) -> None:
    with pytest.raises(BadValue):
        for choice in parse_policies(text):
            choice.apply(EngineConfig())
