"""LLM.generate over the stub: order, batches, refusals. With real models: test_engine_equals_generate.py."""

from __future__ import annotations

import pytest

from vtop.engine import LLM, SamplingParams
from vtop.engine.errors import BadValue
from vtop_support.engines import AuditedEngine
from vtop_support.stub import expected_output

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def make(**options: object) -> LLM:
    return LLM(engine=AuditedEngine(16, **options).engine)  # type: ignore[arg-type]


def test_results_are_in_the_order_of_the_prompts() -> None:
    """E123: shorter ones end first, and still stand in their place; a second batch is a batch of its own."""
    llm = make(max_num_seqs=2)
    first = [[10 + i, 11, 12] for i in range(7)]
    params = [SamplingParams(temperature=0, max_tokens=9 - i) for i in range(7)]
    for prompts in (first, [[99, 98]] * 7):
        results = llm.generate(prompts, params, use_tqdm=False)
        assert [r.prompt_token_ids for r in results] == prompts
        assert [r.outputs[0].token_ids for r in results] == [expected_output(p, 9 - i) for i, p in enumerate(prompts)]
    assert all(r.finished and r.outputs[0].finish_reason == "length" for r in results)


def test_one_prompt_is_a_batch_of_one() -> None:
    [result] = make().generate([5, 6, 7], GREEDY, use_tqdm=False)
    assert result.outputs[0].token_ids == expected_output([5, 6, 7], 6)


def test_a_bad_prompt_is_named_before_anything_runs() -> None:
    llm = make()
    with pytest.raises(BadValue, match="prompt"):
        llm.generate([[5, 6], []], GREEDY, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()
    assert llm.generate([[5, 6]], GREEDY, use_tqdm=False)


def test_numbers_of_params_and_prompts_must_agree() -> None:
    with pytest.raises(BadValue, match="one for each of the 3 prompts"):
        make().generate([[1], [2], [3]], [GREEDY, GREEDY], use_tqdm=False)


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(BadValue, match="block_size"):
        LLM(block_sise=4)


def test_a_failed_batch_is_told_per_request() -> None:
    audited = AuditedEngine(16)
    audited.executor.fail_at = {2}  # type: ignore[attr-defined]
    [result] = LLM(engine=audited.engine).generate([[5, 6]], GREEDY, use_tqdm=False)
    assert (result.outputs[0].finish_reason, len(result.outputs[0].token_ids)) == ("failed", 1)
    assert "injected fault" in result.message
