"""Every accepted block size serves the tiny model alike; others are refused at start (field case E126)."""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.fields import ACCEPTED_BLOCK_SIZES
from vtop.engine.llm import LLM
from vtop.engine.request import SamplingParams

PROMPT = [(7 * i) % 90 + 5 for i in range(37)]


def generated(block_size: int, backend: str) -> list[int]:
    options: dict[str, Any] = {
        "block_size": block_size,
        "attention_backend": backend,
        "num_gpu_blocks_override": 256,
        "swap_space": 0.0,
    }
    with LLM("tiny", device="cpu", dtype="float32", **options) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_all_accepted_block_sizes_give_the_same_ids(backend: str) -> None:
    wanted = generated(16, "reference")
    assert len(wanted) == 8
    found = {size: generated(size, backend) for size in ACCEPTED_BLOCK_SIZES}
    assert found == dict.fromkeys(ACCEPTED_BLOCK_SIZES, wanted)


@pytest.mark.parametrize("size", [0, 5, 48, 512, -16])
def test_other_block_sizes_are_refused_with_the_accepted_ones(size: int) -> None:
    with pytest.raises(BadValue, match="1, 2, 3, 4, 8, 16, 32, 64, 128, 256"):
        EngineConfig(block_size=size)
