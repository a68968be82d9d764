"""Cards: by name, from files, and what a wrong one is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.sim.cards import Card, card_names, card_text, find_card, scaled
from vtop.engine.sim.cost_model import HingeCost, StepLoad
from vtop.engine.sim.shapes import model_shape

COST = HingeCost(0.0123456789, 3.3e-05, 1e-6, 192, 2.5e-6, 1.4e-7, 3.7e-9, 8.4e-5, 4e-6, 1.038)
LOAD = StepLoad(tokens=100, decodes=10, context=5000, area=300.0, prefill_context=90)


def _written(folder: Path, text: str) -> str:
    path = folder / "card.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", card_names())
def test_every_card_has_a_time(name: str) -> None:
    assert 1e-4 < find_card(name).cost.seconds(LOAD) < 0.1


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    shape = replace(model_shape("llama-8b"), name='odd "name" \\ \n µ')
    card = Card("my card", 'GPU "7"', shape, COST)
    assert find_card(_written(tmp_path, card_text(card, ["a note", "MAPE 3 %"]))) == card


def test_a_file_without_a_shape_is_of_the_default_model(tmp_path: Path) -> None:
    card = find_card(_written(tmp_path, "[cost]\nc0 = 0.01\nct = 0.0001\n"))
    assert card.name == "card" and card.shape.name == "llama-8b"
    assert card.cost == HingeCost(0.01, 0.0001)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("c0 = ", "TOML"),
        ("[shape]\n", "[cost]"),
        ("[cost]\nc0 = 1\n", "ct"),
        ("[cost]\nc0 = 1\nct = 1\nkne = 3\n", "knee"),
        ("[cost]\nc0 = 'x'\nct = 1\n", "number"),
        ("[cost]\nc0 = true\nct = 1\n", "number"),
        ("[cost]\nc0 = -1\nct = 1\n", "cost.c0"),
        ("[cost]\nc0 = nan\nct = 1\n", "cost.c0"),
        ("[cost]\nc0 = 1e400\nct = 1\n", "cost.c0"),
        (f"[cost]\nc0 = 1{'0' * 400}\nct = 1\n", "cost.c0"),
        (f"[cost]\nc0 = 1{'0' * 5000}\nct = 1\n", "TOML"),
        ("[cost]\nc0 = 0\nct = 0\n", "cost.c0"),
        ("[cost]\nc0 = 1\nct = 1\nscale = 0\n", "cost.scale"),
        ("names = 'x'\n[cost]\nc0 = 1\nct = 1\n", "did you mean name?"),
        ("[costs]\nc0 = 1\nct = 1\n", "did you mean cost?"),
        ("name = 5\n[cost]\nc0 = 1\nct = 1\n", "give a text"),
        ("shape = 5\n[cost]\nc0 = 1\nct = 1\n", "give a table [shape]"),
        ("cost = 5\n", "give a table [cost]"),
        ("a = " + "[" * 5000, "nested"),
    ],
)
def test_a_bad_file_is_told_by_its_key(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(BadValue) as error:
        find_card(_written(tmp_path, text))
    assert word in str(error.value)
    assert "card.toml" in f"{error.value.value} {error.value.remedy}" and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layers", "0"),
        ("layers", "1.5"),
        ("layers", "true"),
        ("heads", "-1"),
        ("kv_heads", "0"),
        ("head_dim", "9999999999"),
        ("hidden", "'x'"),
        ("max_model_len", "-5"),
        ("max_model_len", "nan"),
        ("max_model_len", "512.5"),
        ("parameters", "nan"),
        ("parameters", "inf"),
        ("parameters", "0"),
        ("active_parameters", "-1.0"),
        ("bytes_per_value", "0"),
    ],
)
def test_a_bad_shape_is_told_by_its_key(tmp_path: Path, key: str, value: str) -> None:
    text = card_text(Card("mine", "some GPU", model_shape("llama-8b"), COST))
    lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.splitlines()]
    with pytest.raises(BadValue) as error:
        find_card(_written(tmp_path, "\n".join(lines)))
    assert error.value.field == f"shape.{key}" and "card.toml" in error.value.remedy


@pytest.mark.parametrize("gpus", [0, -1, 1025, 10**12])
def test_how_many_gpus(gpus: int) -> None:
    with pytest.raises(BadValue, match="gpus"):
        find_card("h100", gpus=gpus)


def test_more_blocks_than_are_simulated() -> None:
    assert (find_card("h100", gpus=1024).blocks(16, 0.9) or 0) > 10**7
    with pytest.raises(BadValue, match="num_gpu_blocks_override"):
        find_card("h100", "smollm2-135m", gpus=1024).blocks(1, 0.9)


@pytest.mark.parametrize(("name", "value"), [("scale", 0.0), ("c0", 1e300), ("ck", True), ("ca", 10**400)])
def test_what_is_no_time(name: str, value: float) -> None:
    with pytest.raises(BadValue, match=name):
        HingeCost(**{"c0": 0.01, "ct": 1e-5, name: value})


def test_a_name_longer_than_file_systems_take() -> None:
    with pytest.raises(BadValue, match="card"):
        find_card("x" * 10_000)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(BadValue, match="rtx4090"):
        find_card("rtx4900")
    with pytest.raises(BadValue, match="h100"):
        find_card("zzz")


def test_fitted_cards_are_of_one_model() -> None:
    assert find_card("RTX 4090", "llama-3.1-8b").name == "rtx4090"
    with pytest.raises(BadValue, match="llama-8b"):
        find_card("rtx4090", "llama-70b")
    with pytest.raises(BadValue, match="one GPU"):
        find_card("rtx4090", gpus=2)


def test_blocks_that_fit_beside_the_weights() -> None:
    # 80 GB · 0.9 − 16.06 GB = 55.9 GB in blocks of 2 MiB
    blocks = find_card("a100").blocks(16, 0.9)
    assert blocks == pytest.approx(55.94e9 / 2**21, abs=2)
    assert Card("mine", "some GPU", model_shape("llama-8b"), COST).blocks(16, 0.9) is None
    with pytest.raises(BadValue, match="more gpus"):
        find_card("a100", "llama-70b").blocks(16, 0.9)


@pytest.mark.parametrize("name", ["rtx4090", "h100"])
def test_scaled(name: str) -> None:
    card = find_card(name)
    overhead = getattr(card.cost, "overhead_s", 0.0)
    plain, slow = card.cost.seconds(LOAD), scaled(scaled(card, 1.5), 2.0).cost.seconds(LOAD)
    assert slow - overhead == pytest.approx(3 * (plain - overhead))


def test_rooflines_are_not_written() -> None:
    with pytest.raises(TypeError):
        card_text(find_card("h100"))
