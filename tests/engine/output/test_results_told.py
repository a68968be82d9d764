"""What a request returns is told: the result of a beam search, the samples that best_of chose, whatever ended it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from vtop.engine import events as ev
from vtop.engine.beam import BeamSearch
from vtop.engine.events.journal import Recorder, Recording
from vtop.engine.state.fold import EngineState
from vtop.engine.state.ledger import Ledger
from vtop_support.engines import AuditedEngine
from vtop_support.stub import likeliest

PROMPT = list(range(10, 17))
RANDOM: dict[str, Any] = {"temperature": 1.0, "seed": 1}


class Letters:
    """A tokenizer of one letter per token."""

    is_fast = False
    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


def searched(prompt: list[int], width: int, limit: int, steps: int | None = None) -> BeamSearch:
    """The search on the stub without an engine, stopped after so many steps."""
    beams = BeamSearch(width, limit, frozenset({2}))
    while not beams.done and beams.steps != steps:
        tops = [likeliest([*prompt, *output], beams.looked_at) for output in beams.outputs]
        beams.advance([[(entry.token_id, entry.logprob) for entry in top] for top in tops])
    return beams


def told(engine: AuditedEngine, name: str) -> list[ev.BeamOutput]:
    view = engine.state.find(name)
    assert view is not None
    assert view.found == [output for e in engine.events(ev.Searched, name) for output in e.outputs]
    return view.found


def assert_told_as_given(engine: AuditedEngine, name: str) -> None:
    """The fold has what the caller got, output by output."""
    outputs = engine.outputs[name].outputs
    assert [(o.tokens, o.text, o.logprob, o.reason, o.stop_reason) for o in told(engine, name)] == [
        (o.token_ids, o.text, o.cumulative_logprob, o.finish_reason, o.stop_reason) for o in outputs
    ]


@pytest.mark.parametrize("n", [1, 3])
def test_the_result_of_a_beam_search_is_told(n: int) -> None:
    engine = AuditedEngine(64, tokenizer=Letters())
    engine.add("a", PROMPT, 9, beam_width=3, n=n)
    engine.run()
    expected = searched(PROMPT, 3, 9).best()[:n]
    assert [tuple(output.tokens) for output in told(engine, "a")] == [found.tokens for found in expected]
    assert [output.score for output in told(engine, "a")] == pytest.approx([found.score for found in expected])
    assert_told_as_given(engine, "a")
    view = engine.state.find("a")
    assert view is not None and view.text == engine.outputs["a"].outputs[0].text != ""


@pytest.mark.parametrize("how", ["abort", "timeout", "failed", "capacity", "shrunk", "model limit"])
def test_a_search_that_is_cut_returns_its_running_beams(how: str) -> None:
    """The hypotheses are the finished ones and the beams as they run, ranked by score, as transformers ends them."""
    engine = AuditedEngine(
        9 if how == "capacity" else 64, tokenizer=Letters(), max_model_len=14 if how == "model limit" else 2048
    )
    engine.add("a", PROMPT, 40, beam_width=3, n=3, ignore_eos=True, timeout=5.5 if how == "timeout" else None)
    for _ in range(4):
        engine.step()
    if how == "abort":
        engine.engine.abort_request("a")
        engine.step()
    elif how == "failed":
        engine.executor.fail_at = {engine.executor.calls + 1}  # type: ignore[attr-defined]
        engine.step()
    elif how == "shrunk":
        engine.engine.resize_pool(3)
        engine.step()
    engine.run()
    reason = {"shrunk": "capacity", "model limit": "length"}.get(how, how)
    assert engine.finish_reason("a") == reason
    [event] = engine.events(ev.Searched)
    beams = BeamSearch(3, 14 - len(PROMPT) if how == "model limit" else 40, frozenset())
    while not beams.done and beams.steps < event.steps:
        tops = [likeliest([*PROMPT, *output], beams.looked_at) for output in beams.outputs]
        beams.advance([[(entry.token_id, entry.logprob) for entry in top] for top in tops])
    assert event.steps >= 4
    assert [tuple(output.tokens) for output in told(engine, "a")] == [found.tokens for found in beams.best()]
    assert [output.reason for output in told(engine, "a")] == [reason] * 3
    assert all(len(output.tokens) == event.steps for output in told(engine, "a"))
    assert_told_as_given(engine, "a")
    assert engine.state.used == 0


def test_a_search_that_fills_the_pool_goes_as_far_as_any_request() -> None:
    """Alone in 3 blocks of 4, a beam of a search of width 1 ends as a greedy request does: with one token too many."""
    engine = AuditedEngine(3)
    engine.add("beam", PROMPT, 40, beam_width=1, ignore_eos=True)
    engine.run()
    engine.add("plain", PROMPT, 40, ignore_eos=True)
    engine.run()
    beam, plain = engine.outputs["beam"].outputs[0], engine.outputs["plain"].outputs[0]
    assert (beam.token_ids, beam.finish_reason) == (plain.token_ids, "capacity")
    assert engine.outputs["beam"].message == engine.outputs["plain"].message


def test_a_search_that_never_began_returns_nothing() -> None:
    engine = AuditedEngine(64, max_num_seqs=3)
    engine.add("first", 5, 20)
    engine.step()
    engine.add("a", PROMPT, 9, beam_width=3, n=2)
    engine.step()
    engine.engine.abort_request("a")
    engine.run()
    assert told(engine, "a") == []
    assert [(o.token_ids, o.finish_reason) for o in engine.outputs["a"].outputs] == [([], "abort")] * 2


@pytest.mark.parametrize("tokens", [1, 2, 6])
def test_beams_have_the_times_of_any_request(tokens: int) -> None:
    """Side by side with a greedy request of as many tokens: same TTFT, same TPOT, in every place that tells them."""
    engine = AuditedEngine(64)
    ledger = Ledger(engine.engine.meta)
    engine.engine.on_frame(ledger.apply)
    engine.add("beam", PROMPT, tokens, beam_width=3, ignore_eos=True)
    engine.add("plain", PROMPT, tokens, ignore_eos=True)
    engine.run()
    beam, plain = engine.state.find("beam"), engine.state.find("plain")
    assert beam is not None and plain is not None
    assert (beam.ttft, beam.tpot, beam.last_token, beam.longest_gap) == (
        plain.ttft, plain.tpot, plain.last_token, plain.longest_gap,
    )  # fmt: skip
    assert beam.ttft is not None and beam.rounds == tokens
    mine, other = engine.outputs["beam"].metrics, engine.outputs["plain"].metrics
    assert (mine.first_token_time, mine.last_token_time) == (other.first_token_time, other.last_token_time)
    records = {record.id: record for record in ledger.records}
    assert records["beam"].ttft == records["plain"].ttft is not None


# --- best_of ---------------------------------------------------------------------------------------------------------


def logprobs(engine: AuditedEngine, name: str) -> dict[int, float]:
    [event] = engine.events(ev.Chosen, name)
    return dict(zip(event.seqs, event.logprobs, strict=True))


def test_the_samples_that_best_of_returns_are_told() -> None:
    engine = AuditedEngine(64, tokenizer=Letters())
    engine.add("all", PROMPT, 8, n=4, best_of=4, logprobs=0, **RANDOM)
    engine.add("some", PROMPT, 8, n=2, best_of=4, **RANDOM)
    engine.run()
    every = {o.index: o.cumulative_logprob for o in engine.outputs["all"].outputs}
    best = sorted(every, key=lambda index: -every[index])[:2]  # type: ignore[operator]
    assert [output.index for output in engine.outputs["some"].outputs] == best
    view = engine.state.find("some")
    assert view is not None and view.chosen == list(logprobs(engine, "some")) == best
    assert [seq.logprob for seq in view.sequences] == [every[i] if i in best else None for i in range(4)]
    assert view.text == engine.outputs["some"].outputs[0].text
    assert not engine.events(ev.Chosen, "all"), "all of them are returned"


def test_an_aborted_sample_is_no_candidate() -> None:
    """The likeliest one, aborted early, would win by having fewer tokens."""
    engine = AuditedEngine(64)
    engine.add("a", PROMPT, 8, n=2, best_of=3, **RANDOM)
    for _ in range(3):
        engine.step()
    engine.engine.abort_sample("a", 1)
    engine.run()
    assert [len(output.token_ids) for output in engine.outputs["a"].outputs] == [8, 8]
    assert sorted(logprobs(engine, "a")) == [0, 2]
    assert [output.finish_reason for output in engine.outputs["a"].outputs] == ["length", "length"]


def test_aborting_the_last_sample_that_runs_leaves_the_whole_ones() -> None:
    """Of three, two ended with their stop tokens; the third is aborted: the request returns a whole one."""
    engine = AuditedEngine(64)
    engine.add("probe", PROMPT, 8, n=3, **RANDOM)
    engine.run()
    ends = tuple(engine.output("probe", index)[2] for index in (0, 1))
    engine.add("a", PROMPT, 30, n=1, best_of=3, stop_token_ids=ends, **RANDOM)
    for _ in range(5):
        engine.step()
    assert engine.engine.abort_sample("a", 2)
    engine.check()
    engine.step()
    [output] = engine.outputs["a"].outputs
    assert output.index in (0, 1) and output.finish_reason == "stop" and output.stop_reason in ends
    assert (engine.finish_reason("a"), engine.state.used) == ("stop", 0)
    view = engine.state.find("a")
    assert view is not None and [seq.finish_reason for seq in view.sequences] == ["stop", "stop", "abort"]


def test_best_of_ends_as_its_best_sample_did() -> None:
    """One sample meets a stop token, the others go to the limit; the request ended as the one it returns."""
    engine = AuditedEngine(64)
    engine.add("probe", PROMPT, 8, n=3, logprobs=0, **RANDOM)
    engine.run()
    ends = tuple(engine.output("probe", index)[2] for index in (0, 1))
    engine.add("a", PROMPT, 8, n=1, best_of=3, stop_token_ids=ends, **RANDOM)
    engine.run()
    [output] = engine.outputs["a"].outputs
    assert output.finish_reason == "stop", "the shorter ones are likelier"
    view = engine.state.find("a")
    assert view is not None and (view.finish_reason, view.stop_reason) == ("stop", output.stop_reason)
    assert [seq.finish_reason for seq in view.sequences] == ["stop", "stop", "length"]


def test_when_all_samples_are_aborted_what_there_is_is_returned() -> None:
    engine = AuditedEngine(64)
    engine.add("a", PROMPT, 30, n=1, best_of=2, **RANDOM)
    for _ in range(4):
        engine.step()
    for index in (0, 1):
        assert engine.engine.abort_sample("a", index)
    engine.check()
    engine.step()
    [output] = engine.outputs["a"].outputs
    assert output.finish_reason == "abort" and len(output.token_ids) == 4 and engine.finish_reason("a") == "abort"


def test_an_abort_of_the_request_leaves_every_sample_a_candidate() -> None:
    engine = AuditedEngine(64)
    engine.add("a", PROMPT, 30, n=2, best_of=3, **RANDOM)
    for _ in range(4):
        engine.step()
    engine.engine.abort_request("a")
    engine.step()
    assert len(engine.outputs["a"].outputs) == len(logprobs(engine, "a")) == 2


# --- recordings ------------------------------------------------------------------------------------------------------


def test_a_recording_tells_results(tmp_path: Path) -> None:
    engine = AuditedEngine(64, tokenizer=Letters())
    recorder = Recorder(tmp_path / "run.vtop", engine.engine.meta)
    engine.engine.on_frame(recorder.write)
    engine.add("beam", PROMPT, 9, beam_width=3, n=2)
    engine.add("best", PROMPT, 9, n=1, best_of=3, **RANDOM)
    engine.run()
    recorder.close()
    recording = Recording(tmp_path / "run.vtop")
    state = EngineState(recording.meta)
    for frame in recording.frames():
        state.apply(frame)
    for name in ("beam", "best"):
        live, replayed = engine.state.find(name), state.find(name)
        assert live is not None and replayed is not None and (live.found or live.chosen)
        assert (replayed.found, replayed.chosen, replayed.text) == (live.found, live.chosen, live.text)
        assert msgspec.json.encode(replayed.found) == msgspec.json.encode(live.found)
