"""Sizes of models from a config.json, and what is said of one that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.sim.shapes import model_shape

GOOD: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "intermediate_size": 128, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def _written(folder: Path, text: str) -> str:
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_config_is_read(tmp_path: Path) -> None:
    shape = model_shape(_written(tmp_path, json.dumps(GOOD)))
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.max_model_len) == (2, 4, 2, 16, 256)
    assert shape.parameters == 2 * (64 * 16 * 8 + 64 * 64 + 3 * 64 * 128) + 100 * 64


def test_what_is_null_or_no_expert_is_the_default(tmp_path: Path) -> None:
    more = {"num_key_value_heads": None, "head_dim": None, "num_experts": 0, "moe_intermediate_size": 0}
    shape = model_shape(_written(tmp_path, json.dumps(GOOD | more)))
    assert shape.kv_heads == 4 and shape.head_dim == 16 and shape.active_parameters == shape.parameters


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_key_value_heads", "abc"),
        ("num_key_value_heads", [1]),
        ("num_key_value_heads", 0),
        ("head_dim", "x"),
        ("head_dim", 2.5),
        ("intermediate_size", {}),
        ("max_position_embeddings", float("inf")),
        ("max_position_embeddings", float("nan")),
        ("max_position_embeddings", -1),
        ("max_position_embeddings", 10**30),
        ("num_hidden_layers", True),
        ("num_hidden_layers", None),
        ("num_local_experts", -3),
        ("num_local_experts", False),
        ("num_experts_per_tok", 9),
        ("moe_intermediate_size", "big"),
        ("num_attention_heads", 65),
        ("vocab_size", 10**9 + 1),
    ],
)
def test_a_bad_config_is_one_line(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(BadValue) as caught:
        model_shape(_written(tmp_path, json.dumps(GOOD | {key: value})))
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{", "[" * 100_000, '{"a":' * 100_000, '{"num_hidden_layers": ' + "9" * 5000 + "}", "\x00"],
    ids=["empty", "a list", "cut", "deep list", "deep table", "huge number", "binary"],
)
def test_a_file_that_is_no_config_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadValue) as caught:
        model_shape(_written(tmp_path, text))
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_number_beyond_floats(tmp_path: Path) -> None:
    text = json.dumps(GOOD).replace("256", "1e400")
    with pytest.raises(BadValue, match="max_position_embeddings"):
        model_shape(_written(tmp_path, text))


def test_a_name_longer_than_file_systems_take() -> None:
    with pytest.raises(BadValue):
        model_shape("x" * 10_000)
