"""Stop strings, min_tokens and log-probabilities of beams: those of transformers' beam search, through preemptions."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.load import load_pretrained
from vtop.engine.model.model import load_model
from vtop.engine.model.source import resolve
from vtop.engine.outputs import CompletionOutput
from vtop.kernels.registry import get_backend
from vtop_support.engines import AuditedEngine
from vtop_support.models import tiny_random

torch.set_num_threads(1)
CPU = torch.device("cpu")
WIDTH, TOKENS = 4, 12
TEXTS = ["KING HENRY:\nTo be", "ROMEO:\nMy lord, what"]
IDS = [[5, 9, 11, 3, 40], [8, 2, 1, 30, 31, 32, 33, 34]]
ENDS = [7, 16, 25, 34, 43, 52, 61, 70, 79, 88]


@cache
def tiny() -> tuple[Any, Any]:
    """The bundled model and its tokenizer, for transformers to use."""
    return load_pretrained(resolve("tiny"), torch.float32, CPU)


def search(
    model: Any, prompts: list[Any], *, blocks: int, mode: str, tokenizer: Any = None, **params: Any
) -> tuple[list[list[CompletionOutput]], AuditedEngine]:
    """The outputs of all prompts, which run together."""
    executor = TorchExecutor(load_model(model, name="m", backend=get_backend("auto", CPU)), blocks, 4, 60)
    engine = AuditedEngine(
        blocks, executor=executor, tokenizer=tokenizer, preemption_mode=mode, num_host_blocks_override=60,
        max_num_batched_tokens=16,
    )  # fmt: skip
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, TOKENS, n=WIDTH, beam_width=WIDTH, **params)
    engine.run()
    assert engine.state.used == engine.state.host_used == 0
    return [engine.outputs[f"r{i}"].outputs for i in range(len(prompts))], engine


def reference(model: Any, ids: list[int], **more: Any) -> tuple[list[tuple[list[int], float]], torch.Tensor]:
    """(output, score) of transformers' search, best first, padded at their ends; its transition scores [width, T].

    Those are empty without end tokens, where it pads with an id that it cannot look up itself.
    """
    prompt = torch.tensor([ids])
    found = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), num_beams=WIDTH, num_return_sequences=WIDTH,
        max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
        output_logits=True, **more,
    )  # fmt: skip
    rows = [row[len(ids) :].tolist() for row in found.sequences]
    steps = torch.empty(0)
    if more.get("eos_token_id"):
        steps = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    return list(zip(rows, found.sequences_scores.tolist(), strict=True)), steps


POOLS = pytest.mark.parametrize(("blocks", "mode"), [(80, "recompute"), (14, "recompute"), (14, "swap")])


@POOLS
@pytest.mark.parametrize("stop", [("\n", " the"), ("tleman, and I", "?\n\nPETR"), (" will",)], ids=repr)
def test_stop_strings_are_those_of_transformers(blocks: int, mode: str, stop: tuple[str, ...]) -> None:
    theirs, tokenizer = tiny()
    mine, engine = search(
        load_pretrained(resolve("tiny"), torch.float32, CPU)[0], TEXTS, blocks=blocks, mode=mode,
        tokenizer=tokenizer, stop=stop, ignore_eos=True, length_penalty=0.0,
    )  # fmt: skip
    assert blocks == 80 or engine.state.totals.preemptions > 0
    stopped = 0
    for text, outputs in zip(TEXTS, mine, strict=True):
        expected, _ = reference(
            theirs,
            tokenizer(text).input_ids,
            stop_strings=list(stop),
            tokenizer=tokenizer,
            eos_token_id=None,
            length_penalty=0.0,  # so that short ones win
        )
        assert len(outputs) == WIDTH
        for output, (tokens, score) in zip(outputs, expected, strict=True):
            assert output.token_ids == tokens[: len(output.token_ids)]
            assert output.cumulative_logprob == pytest.approx(score, abs=1e-3)
            whole = tokenizer.decode(output.token_ids, skip_special_tokens=True)
            if output.finish_reason == "stop":
                stopped += 1
                assert output.stop_reason in stop and output.text + str(output.stop_reason) in whole
            else:
                assert output.finish_reason == "length" and len(output.token_ids) == TOKENS and output.text == whole
    assert stopped, "no stop string came up"


@POOLS
@pytest.mark.parametrize("least", [1, 3, 5])
def test_min_tokens_is_that_of_transformers(blocks: int, mode: str, least: int) -> None:
    model = tiny_random("llama")
    expected = [reference(model, ids, min_new_tokens=least, eos_token_id=ENDS)[0] for ids in IDS]
    mine, engine = search(
        model, IDS, blocks=blocks, mode=mode, min_tokens=least, stop_token_ids=tuple(ENDS), ignore_eos=True
    )
    assert blocks == 80 or engine.state.totals.preemptions > 0
    for outputs, theirs in zip(mine, expected, strict=True):
        for output, (tokens, score) in zip(outputs, theirs, strict=True):
            assert output.token_ids == tokens[: len(output.token_ids)] and len(output.token_ids) > least
            assert output.cumulative_logprob == pytest.approx(score * len(output.token_ids), abs=1e-3)


def test_min_tokens_holds_for_stop_strings() -> None:
    """A hypothesis may not end with one before it has so many tokens; the searches differ only by that."""
    _, tokenizer = tiny()
    for least in (0, 6):
        [outputs], _ = search(
            load_pretrained(resolve("tiny"), torch.float32, CPU)[0], TEXTS[:1], blocks=80, mode="recompute",
            tokenizer=tokenizer, stop=(",", "\n", " "), min_tokens=least, ignore_eos=True,
        )  # fmt: skip
        lengths = [len(output.token_ids) for output in outputs]
        assert min(lengths) < 6 if least == 0 else min(lengths) >= 6
        for output in outputs:
            text = tokenizer.decode(output.token_ids[:-1])
            assert least or not any(stop in text for stop in (",", "\n", " ")), "it ended later than it should"


@POOLS
def test_log_probabilities_are_those_of_transformers(blocks: int, mode: str) -> None:
    """Each token's own, along the beams it came by, its rank, and the k likeliest of its step."""
    model = tiny_random("llama")
    expected = [reference(model, ids, eos_token_id=ENDS) for ids in IDS]
    tables = []
    for ids, (rows, _) in zip(IDS, expected, strict=True):
        with torch.no_grad():
            tables.append([torch.log_softmax(model(torch.tensor([ids + row])).logits[0], -1) for row, _ in rows])
    mine, engine = search(model, IDS, blocks=blocks, mode=mode, logprobs=3, stop_token_ids=tuple(ENDS), ignore_eos=True)
    assert blocks == 80 or engine.state.totals.preemptions > 0
    for ids, outputs, (_, steps), known in zip(IDS, mine, expected, tables, strict=True):
        for output, own, table in zip(outputs, steps.tolist(), known, strict=True):
            assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
            for at, (token, entries) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
                row = table[len(ids) - 1 + at]
                assert entries[token].logprob == pytest.approx(own[at], abs=1e-4)
                assert entries[token].rank == 1 + int((row > row[token]).sum())
                assert set(entries) == {token, *row.topk(3).indices.tolist()}
            total = sum(
                entries[token].logprob for token, entries in zip(output.token_ids, output.logprobs, strict=True)
            )
            assert output.cumulative_logprob == pytest.approx(total, abs=1e-4)


def test_more_log_probabilities_than_beams_look_at() -> None:
    [[output, *_]], _ = search(tiny_random("llama"), IDS[:1], blocks=80, mode="recompute", logprobs=40)
    assert output.logprobs is not None and all(len(entries) == 40 for entries in output.logprobs)
