"""Beams of vLLM 0.6.2 as a case of steps: which go on, and whose blocks return."""

from __future__ import annotations

from typing import Any

from vtop.engine.conform.run import run_cases


def beam_case(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "group.beams",
        "kind": "steps",
        "semantics": "v0",
        "engine": "vllm 0.6.2, newer block manager",
        "config": {"block_size": 4, "gpu_blocks": 8, "token_budget": 64, "max_seqs": 4, "max_model_len": 64},
        "requests": {"A": {"prompt": 6, "n": 2, "beam": True, "max_tokens": 5}},
        "steps": steps,
    }


def test_beams_fork_and_unselected_parents_give_their_blocks_back() -> None:
    first = [[0, 11, -0.1], [0, 12, -0.2], [0, 13, -3.0], [0, 14, -4.0]]
    second = [[0, 21, -0.1], [0, 22, -0.2], [1, 23, -5.0], [1, 24, -6.0]]
    steps = [
        {"do": {"add": ["A"], "emit": {"A": first}}, "expect": {"run": {"A": 6}, "free": 6, "blocks": {"A": 2}}},
        {
            "do": {"emit": {"A": second}},  # both survivors come of the first; the copy of the second goes back
            "expect": {
                "run": {"A": 2},
                "copies": 1,
                "free": 5,
                "free_after": 6,
                "blocks": {"A/0": 2, "A/1": 2},
                "ids": {"tables": {"A/0": [0, 2], "A/1": [0, 1]}, "copies": [[1, 2]]},
            },
        },
        {
            "do": {"emit": {"A": [[0, 31, -0.1], [1, 32, -0.1]]}},
            "expect": {"run": {"A": 2}, "copies": 1, "free": 5, "blocks": {"A/0": 2, "A/1": 2}},
        },
    ]
    report = run_cases([beam_case(steps)])
    assert report.ok, report.lines()
