"""A config.json with sizes that are none is refused before layers are made of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import vtop.engine.model
from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import ModelRefused
from vtop.engine.model.families import check_sizes

TINY = Path(next(iter(vtop.engine.model.__path__))) / "tiny"


def test_a_billion_layers_are_not_built(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    with pytest.raises(ModelRefused, match="num_hidden_layers = 1000000000; give a whole number of at most 10,000"):
        LLMEngine.from_config(EngineConfig(model=str(folder), num_gpu_blocks_override=8))


@pytest.mark.parametrize(
    "config", [{"vocab_size": 1e9}, {"hidden_size": -1}, {"text_config": {"num_hidden_layers": 10**6}}]
)
def test_sizes_are_looked_for_in_every_part(config: dict[str, object]) -> None:
    with pytest.raises(ModelRefused, match="its config has"):
        check_sizes(config, "m")
    check_sizes({"num_hidden_layers": 80, "vocab_size": 256_000, "head_dim": None}, "m")
