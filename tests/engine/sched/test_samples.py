"""Parallel sampling: forks, copy-on-write, samples that end one by one, and the way back after a preemption.

Blocks hold 4 tokens unless said. On the stub, sample i of a request is `expected_output(prompt, count, i)`.
"""

from __future__ import annotations

from typing import Any

import pytest

from vtop.engine import events as ev
from vtop.engine.errors import BadValue
from vtop_support.engines import AuditedEngine
from vtop_support.stub import expected_output
from vtop_support.stub_engine import WORDS, WordTokenizer

SAMPLES: dict[str, Any] = {"temperature": 1.0}


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def assert_samples(engine: AuditedEngine, name: str, tokens: list[int], count: int, n: int) -> None:
    for index in range(n):
        assert engine.output(name, index) == expected_output(tokens, count, index)


def test_the_first_write_into_a_shared_block_copies_it() -> None:
    """E088: P=6, n=3: block 0 is held three times, two copies are made, four blocks are in use; 0 at the end."""
    engine = AuditedEngine(16, enable_prefix_caching=False)
    engine.add("a", prompt(10, 6), 8, n=3, **SAMPLES)
    engine.step()
    engine.step()
    tables = [seq.blocks for seq in engine.state.requests["a"].sequences]
    assert engine.state.ref_count[tables[0][0]] == 3
    assert len(engine.events(ev.CopiedOnWrite)) == 2 and engine.state.used == 4
    engine.run()
    assert engine.state.used == 0
    assert_samples(engine, "a", prompt(10, 6), 8, 3)


def test_a_prompt_that_ends_on_a_block_border_copies_nothing() -> None:
    engine = AuditedEngine(16, enable_prefix_caching=False)
    engine.add("a", prompt(10, 8), 6, n=4, **SAMPLES)
    engine.run()
    assert not engine.events(ev.CopiedOnWrite)
    assert_samples(engine, "a", prompt(10, 8), 6, 4)


@pytest.mark.parametrize("mode", ["recompute", "swap", "hybrid"])
@pytest.mark.parametrize("batching", ["chunked", "prefill-first"])
def test_samples_survive_preemptions(mode: str, batching: str) -> None:
    """E042, E041: groups in a pool too small for two of them, beside a single request."""
    engine = AuditedEngine(
        24, preemption_mode=mode, num_host_blocks_override=60, batching=batching, max_num_batched_tokens=32
    )
    engine.add("one", prompt(500, 8), 24)
    for i in range(4):
        engine.add(f"g{i}", prompt(20 * i + 10, 6), 20, n=3, **SAMPLES)
        engine.step()
    engine.run()
    assert engine.state.totals.preemptions > 0
    assert (engine.state.totals.swapped_out_blocks > 0) == (mode != "recompute")
    assert engine.state.host_used == 0
    for i in range(4):
        assert_samples(engine, f"g{i}", prompt(20 * i + 10, 6), 20, 3)
    assert engine.output("one") == expected_output(prompt(500, 8), 24)


def test_a_full_host_pool_means_recompute_not_an_error() -> None:
    """E038: mode swap, 2 host blocks, three groups of 4: all finish, one warning at a time, no exception."""
    engine = AuditedEngine(16, preemption_mode="swap", num_host_blocks_override=2)
    for i in range(3):
        engine.add(f"g{i}", prompt(20 * i + 10, 8), 12, n=4, **SAMPLES)
    engine.run()
    for i in range(3):
        assert_samples(engine, f"g{i}", prompt(20 * i + 10, 8), 12, 4)
    assert not engine.events(ev.StepFailed)
    whys = {e.why for e in engine.events(ev.Preempted)}
    assert ev.ModeWhy.HOST_FULL in whys
    assert any(e.level == "warning" and "host pool full" in e.text for e in notes(engine))


def notes(engine: AuditedEngine) -> list[ev.Note]:
    return [e for frame in engine.frames for e in frame.events if isinstance(e, ev.Note)]


def test_samples_that_never_fit_end_with_a_reason() -> None:
    """E092: no step without work, the request ends with capacity."""
    engine = AuditedEngine(5)
    engine.add("a", prompt(10, 8), 8, n=4, **SAMPLES)
    engine.run()
    assert engine.finish_reason("a") == "capacity"
    assert "samples need" in engine.state.find("a").message  # type: ignore[union-attr]


def test_a_sample_ends_alone() -> None:
    """Of one request, the first sample meets its stop token; the others go on and every reason is its own."""
    stop = expected_output(prompt(10, 6), 3)[2]
    engine = AuditedEngine(32)
    engine.add("a", prompt(10, 6), 8, n=3, stop_token_ids=(stop,), **SAMPLES)
    engine.run()
    output = engine.outputs["a"]
    assert [len(sample.token_ids) for sample in output.outputs] == [3, 8, 8]
    assert [sample.finish_reason for sample in output.outputs] == ["stop", "length", "length"]
    ended = engine.events(ev.SequenceFinished)
    assert [(e.seq, e.reason, e.output_tokens) for e in ended] == [(0, "stop", 3), (1, "length", 8)]


def test_one_sample_or_all_can_be_aborted() -> None:
    engine = AuditedEngine(32)
    engine.add("a", prompt(10, 6), 8, n=3, **SAMPLES)
    for _ in range(3):
        engine.step()
    assert engine.engine.abort_sample("a", 1)
    assert not engine.engine.abort_sample("a", 1)
    engine.check()
    engine.step()
    assert [len(seq.blocks) > 0 for seq in engine.state.requests["a"].sequences] == [True, False, True]
    engine.engine.abort_request("a")
    engine.check()
    assert engine.state.used == 0 and engine.finish_reason("a") == "abort"


def test_all_samples_get_in_or_none() -> None:
    """E085: more samples than seats are refused whole."""
    engine = AuditedEngine(32, max_num_seqs=2)
    with pytest.raises(BadValue, match="more samples than max_num_seqs 2"):
        engine.add("a", prompt(10, 6), 8, n=3, **SAMPLES)


def test_seats_count_samples() -> None:
    engine = AuditedEngine(64, max_num_seqs=4)
    engine.add("a", prompt(10, 6), 8, n=3, **SAMPLES)
    engine.add("b", prompt(50, 6), 8, n=2, **SAMPLES)
    engine.step()
    assert list(engine.state.running) == ["a"] and list(engine.state.waiting) == ["b"]
    engine.run()
    assert_samples(engine, "b", prompt(50, 6), 8, 2)


class Letters:
    """A tokenizer of one letter per token, so that a stop string can be half there at the end."""

    is_fast = False
    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


def test_text_held_back_at_the_end_belongs_to_its_own_sample() -> None:
    """The sample that ends last ends the request; what was held back of it is its own, on the screen too."""
    tokens = prompt(10, 6)
    letters = [Letters().decode(expected_output(tokens, 8, index)) for index in range(3)]
    engine = AuditedEngine(32, tokenizer=Letters())
    # a stop string that begins with the last letter of the sample that ends last, and never comes
    engine.add("a", tokens, 8, n=3, stop=(letters[2][-1] + "???",), **SAMPLES)
    engine.run()
    view = engine.state.find("a")
    assert view is not None
    assert [seq.text for seq in view.sequences] == letters
    assert [sample.text for sample in engine.outputs["a"].outputs] == letters


@pytest.mark.parametrize("steps", [1, 3, 8, 15])
def test_text_held_back_when_a_group_is_aborted_is_told_of_the_sample_whose_it_is(steps: int) -> None:
    """Both samples may be inside what begins like a stop string."""
    stop = tuple(f" {word} XX" for word in WORDS)  # so that the last word is always held back
    engine = AuditedEngine(64, tokenizer=WordTokenizer())
    engine.add("a", "the cat sat", 60, n=3, stop=stop, **SAMPLES)
    for _ in range(steps):
        engine.step()
    engine.engine.abort_request("a")
    engine.engine.flush()
    engine.step()
    outputs = engine.outputs["a"].outputs
    seen = engine.state.find("a")
    assert seen is not None
    assert [seq.text for seq in seen.sequences] == [output.text for output in outputs]
    assert all(output.text.count(" ") == len(output.token_ids) > 0 for output in outputs), "every word is there"
    ended = [seq.finish_reason for seq in seen.sequences]
    assert ended.count("abort") == 2 and seen.finish_reason == "abort", "the last one ends with its request"
