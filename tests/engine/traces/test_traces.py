"""Readers of request traces: every format by its content, plain or zipped; errors of one line that name the place."""

from __future__ import annotations

import gzip
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from vtop.engine.errors import BadValue
from vtop.engine.events.journal import Recorder
from vtop.engine.traces.read import SHIPPED, open_trace, read_measured, read_trace, shipped_settings, shipped_trace
from vtop.engine.traces.source import MAX_LINE
from vtop.engine.workload.jobs import prompt_ids
from vtop_support.engines import AuditedEngine


def log_row(name: str, arrival: float, *times: float) -> str:
    columns = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    row = {"request_id": name, "input_toks": 30, "output_toks": 4, "arrival_time": arrival}
    return json.dumps(row | dict(zip(columns, times, strict=True)))


def say(*texts: str) -> dict[str, object]:
    return {
        "id": "x",
        "conversations": [{"from": who, "value": text} for who, text in zip(cycle(["human", "gpt"]), texts)],
    }


# format -> (lines, [(at, prompt, output)])
SAMPLES: dict[str, tuple[list[str], list[tuple[float, int, int]]]] = {
    "azure": (
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:17:03.9799600,4808,10",
            "2023-11-16 18:17:04.0319600,3180,8",
        ],
        [(0, 4808, 10), (0.052, 3180, 8)],
    ),
    "azure 2024": (
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2024-05-10 00:00:00.009930+00:00,2162,5",
            "2024-05-10 00:00:01+00:00,2399,6",
        ],
        [(0, 2162, 5), (0.99007, 2399, 6)],
    ),
    "azure 2025": (
        [
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
            "2024-10-15 10:00:00.5,2,900,7",
            "2024-10-15 10:00:02.0,0,30,1",
        ],
        [(0, 900, 7), (1.5, 30, 1)],
    ),
    "burstgpt": (
        [
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,ChatGPT,472,18,490,Conversation log",
            "45,GPT-4,1087,230,1317,API log",
        ],
        [(0, 472, 18), (40, 1087, 230)],
    ),
    "burstgpt 3": (
        [
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
            '5.5,7,1.25,ChatGPT,472,18,490,"Conversation log"',
            "6,8,3,ChatGPT,10,20,30,API log",
        ],
        [(0, 472, 18), (0.5, 10, 20)],
    ),
    "mooncake": (
        [
            '{"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}',
            '{"timestamp": 4500, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}',
        ],
        [(0, 1030, 5), (1.5, 600, 9)],
    ),
    "qwen-bailian": (
        [
            '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 10.5, "input_length": 20, "output_length": 5,'
            ' "type": "text", "turn": 1, "hash_ids": [3, 4]}',
            '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 30.5, "input_length": 40, "output_length": 6,'
            ' "type": "text", "turn": 2, "hash_ids": [3, 5, 6]}',
        ],
        [(0, 20, 5), (20, 40, 6)],
    ),
    "vllm-log": (
        [log_row("a", 1e9, 50, 50, 51, 52), log_row("b", 1e9 + 0.5, 50.75, 51, 51.5, 53)],
        [(0, 30, 4), (0.5, 30, 4)],
    ),
    "vidur": (
        ["num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "3772,54,3826,69.8", "20,5,25,4"],
        [(0, 3772, 54), (0, 20, 5)],
    ),
    "vidur splitwise": (
        ["arrived_at,num_prefill_tokens,num_decode_tokens", "0.5,10,2", "0.75,20,5.0"],
        [(0, 10, 2), (0.25, 20, 5)],
    ),
    "sharegpt": (
        ["[", json.dumps(say("x" * 40, "one two three")) + ",", json.dumps(say("请求", "ok", "more")), "]"],
        [(0, 10, 4), (0, 2, 1)],
    ),
    "sharegpt lines": ([json.dumps(say("a b c", "d" * 9))], [(0, 3, 3)]),
}


def written(path: Path, lines: list[str], ending: str) -> Path:
    crlf, cut = "crlf" in ending, "cut" in ending
    text = ("\r\n" if crlf else "\n").join(lines) + ("" if cut else "\r\n" if crlf else "\n")
    data = ("\ufeff" if "bom" in ending else "").encode() + text.encode()
    path.write_bytes(gzip.compress(data) if "gz" in ending else data)
    return path


@pytest.mark.parametrize("ending", ["", "crlf", "cut", "crlf cut gz", "gz", "bom crlf"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_known_by_its_content(tmp_path: Path, name: str, ending: str) -> None:
    lines, jobs = SAMPLES[name]
    trace = open_trace(written(tmp_path / "trace.txt", lines, ending))
    assert trace.format == name.split()[0] or trace.format == name
    assert not trace.left_out
    found = [(job.at, job.prompt_tokens, job.output_tokens) for job in trace.workload.jobs]
    assert found == [(pytest.approx(at, abs=1e-6), prompt, output) for at, prompt, output in jobs]


def test_a_limit_takes_the_first_requests_and_reads_no_further(tmp_path: Path) -> None:
    path = written(tmp_path / "t", [*SAMPLES["azure"][0], "garbage,,"], "")
    assert [job.prompt_tokens for job in read_trace(path, limit=2).jobs] == [4808, 3180]
    with pytest.raises(BadValue, match="limit"):
        read_trace(path, limit=0)


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [*SAMPLES["burstgpt"][0], "50,ChatGPT,100,0,100,API log", "51,ChatGPT,0,4,4,API log"]
    trace = open_trace(written(tmp_path / "t", lines, ""))
    assert len(trace.workload.jobs) == 2
    assert trace.left_out == {"no output tokens (failed)": 1, "no prompt tokens": 1}


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    header, first, second = SAMPLES["azure"][0]
    jobs = read_trace(written(tmp_path / "t", [header, second, first], "")).jobs
    assert [(job.id, job.at) for job in jobs] == [("1", 0), ("0", pytest.approx(0.052))]


def test_hash_ids_become_shared_pieces_also_when_scaled(tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path / "t", SAMPLES["mooncake"][0], ""))
    first, second = workload.jobs
    assert first.prefix == (("0", 512), ("1", 512), ("2", 6))
    assert second.prefix == (("0", 512), ("7", 88))
    one, two = prompt_ids(first), prompt_ids(second)
    assert one[:512] == two[:512] and one[512:520] != two[512:520]
    small = workload.scaled(length=1 / 16)
    assert [job.prefix[0] for job in small.jobs] == [("0", 32)] * 2
    assert [(job.prompt_tokens, job.output_tokens) for job in small.jobs] == [(64, 1), (38, 1)]
    one, two = map(prompt_ids, small.jobs)
    assert one[:32] == two[:32] and one[32:34] != two[32:34]


def test_scaling_the_shipped_mooncake_keeps_what_is_shared() -> None:
    workload = read_trace(shipped_trace("mooncake-conversation"))
    small = workload.scaled(length=1 / 32)
    assert max(tokens for job in small.jobs for _, tokens in job.prefix) == 16
    for job, scaled in zip(workload.jobs, small.jobs, strict=True):
        whole = [name for name, tokens in job.prefix if tokens == 512]
        assert [name for name, _ in scaled.prefix][: len(whole)] == whole


def test_turns_of_bailian_share_their_beginning(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path / "t", SAMPLES["qwen-bailian"][0], "")).jobs
    assert (first.id, second.id) == ("1.1", "2.2")
    one, two = prompt_ids(first), prompt_ids(second)
    assert one[:16] == two[:16] and one[16:20] != two[16:20]


def test_measured_times_are_on_one_clock(tmp_path: Path) -> None:
    path = written(tmp_path / "t", SAMPLES["vllm-log"][0], "gz")
    first, second = read_measured(path)
    assert (first.arrival, first.queued, first.first_token, first.last_token) == (0, 0, 1, 2)
    assert (second.arrival, second.queued, second.scheduled, second.first_token) == (0.5, 0.75, 1, 1.5)
    with pytest.raises(BadValue, match=r"is azure, which has no measured times"):
        read_measured(shipped_trace("azure-code"))


def test_shipped_traces() -> None:
    sizes = {name: len(read_trace(shipped_trace(name)).jobs) for name in SHIPPED}
    assert sizes == dict.fromkeys(SHIPPED, 300) | {"mooncake-conversation": 200, "mooncake-synthetic": 200}
    requests = read_measured(shipped_trace("rtx4090"))
    assert sum(r.first_token - r.arrival for r in requests) / 300 == pytest.approx(65.5, abs=0.1)
    settings = shipped_settings("rtx4090")
    assert settings is not None and "num_gpu_blocks = 2588" in settings.read_text()
    assert shipped_settings("azure-code") is None
    assert "CC-BY-4.0" in settings.with_name("NOTICE.md").read_text()
    with pytest.raises(BadValue, match="rtxpro6000"):
        shipped_trace("nope")


AZURE = SAMPLES["azure"][0]
MOONCAKE = '{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty"),
        (["a,b", "1,2"], r"line 1 = \['a', 'b'\]: are the columns of no known trace; known are .*mooncake .*azure"),
        (['{"a": 1}'], "line 1 = .*are the keys of no known trace"),
        (["just text"], "no known trace"),
        (AZURE[:1], "holds no request"),
        ([*AZURE, "2023-11-16 18:17:05,12,x"], "line 4, GeneratedTokens = 'x': is no whole number"),
        ([*AZURE, "2023-11-16 18:17:05,-12,3"], "line 4, ContextTokens = '-12'"),
        ([*AZURE, "yesterday,12,3"], "line 4, TIMESTAMP = 'yesterday': is no time"),
        ([*AZURE, "2023-11-16 18:17"], "line 4 = .* has 1 cells, the header 3"),
        ([*AZURE, "2023-11-16 18:17:05,99999999999,3"], "more than 10,000,000 tokens"),
        ([*AZURE, '"2023,1,2'], "line 4 = .*is no line of a CSV table"),
        ([*SAMPLES["burstgpt"][0], "inf,x,1,2,3,y"], "line 4, Timestamp = 'inf': is no time"),
        ([MOONCAKE % (0, 5, 5, "[0]"), '{"timestamp": 1, "inp'], "line 2 = .*is not JSON"),
        ([MOONCAKE % (0, 5, 5, "[0]"), "[1]"], "line 2 = .*is not a JSON object"),
        ([MOONCAKE % (0, 5, 5, "[0]"), '{"timestamp": 1}'], "line 2, input_length = None: is missing"),
        ([MOONCAKE % (0, '"5"', 5, "[0, 1]")], "line 1, hash_ids = .*2 ids; a prompt of 5 tokens has 1 blocks"),
        ([MOONCAKE % (0, 5, "true", "[0]")], "output_length = True"),
        ([MOONCAKE % (0, 5, 5, '["a"]')], "hash_ids = 'a'"),
        ([MOONCAKE % (0, 5, 5, '{"0": 1}')], "hash_ids = .* is no list"),
        ([MOONCAKE % ("1" * 5000, 5, 5, "[0]")], "line 1 = .*is not JSON"),
        (["[" * 100_000], "is no conversation"),
        (['{"a":' * 100_000], "is not JSON"),
        (["[", json.dumps(say("a", "b")), "", "7]"], "line 4 = '7': use a comma"),
        (["[", json.dumps(say("a", "b")) + ",", "", '{"conversations": 3}]'], "line 4, conversations = 3"),
        (["[", json.dumps(say("a", "b")) + ","], "the file ends inside its list"),
        (["[" + json.dumps(say("a", "b"))[:-5]], "line 1 = .*is no JSON object"),
        (['[{"conversations": [{"value": 3}, {}]}]'], "is no turn"),
    ],
)
@pytest.mark.parametrize("ending", ["", "gz"])
def test_errors_are_one_line_that_names_the_place(tmp_path: Path, lines: list[str], said: str, ending: str) -> None:
    path = written(tmp_path / "odd\n\x1b[31mname.csv", lines, ending)
    with pytest.raises(BadValue, match=said) as caught:
        read_trace(path)
    assert str(caught.value).isprintable()
    assert "name.csv" in str(caught.value)
    assert len(str(caught.value)) < 900


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    rows = [f"2023-11-16 18:17:{i % 60:02},{i},{i}" for i in range(1, 9000)]
    whole = gzip.compress("\n".join([AZURE[0], *rows]).encode())
    for data, said in (
        (whole[:-2000], "damaged gzip"),
        (b"\x1f\x8bnot gzip at all", "damaged gzip"),
        (b"\xff\xfe\x00bin\n", "is not UTF-8"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff,1,1\n", "line 2 = .*is not UTF-8"),
        (b"x" * (MAX_LINE + 10), "longer than 16 MiB"),
        (b"[" + b" " * 300_000 + b'{"conversations": "' + b"\xff" * 20, "is not UTF-8"),
    ):
        path.write_bytes(data)
        with pytest.raises(BadValue, match=said):
            read_trace(path)
    with pytest.raises(BadValue, match="cannot be read"):
        read_trace(tmp_path / "missing")
    with pytest.raises(BadValue, match="is a folder; give a file with a trace"):
        read_trace(tmp_path)


def test_a_large_sharegpt_list_on_one_line_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    many = [say("q" * (4 * (i % 700 + 1)), "a" * 400) for i in range(600)]
    many[7] = say("long " + "w" * 900_000, "请" * 1000)
    many[9] = say("no answer")
    path.write_text(json.dumps(many, ensure_ascii=False), encoding="utf-8")
    trace = open_trace(path)
    assert trace.left_out == {"no output tokens (failed)": 1}
    jobs = trace.workload.jobs
    assert len(jobs) == 599
    assert [(job.prompt_tokens, job.output_tokens) for job in jobs[:3]] == [(1, 100), (2, 100), (3, 100)]
    assert (jobs[7].prompt_tokens, jobs[7].output_tokens) == (225_002, 1000)
    assert open_trace(path, limit=1, count_tokens=lambda text: 77).workload.jobs[0].prompt_tokens == 77


def test_our_own_recordings_come_back_as_jobs(tmp_path: Path) -> None:
    path = tmp_path / "run.of.mine"
    engine = AuditedEngine(40, max_num_batched_tokens=32)
    recorder = Recorder(path, engine.engine.meta)
    engine.engine.on_frame(recorder.write)
    engine.clock.advance(100)
    engine.add("a", 11, 9, priority=3, group="blue", ignore_eos=True)
    engine.step(2.5)
    engine.add("b", 7, 5, timeout=500.0, expected_tokens=6, ignore_eos=True)
    engine.add("n", 6, 8, n=3, temperature=1.0, ignore_eos=True)
    engine.add("beam", 6, 7, beam_width=2, ignore_eos=True)
    with pytest.raises(BadValue):
        engine.add("too big", 400, 3)
    engine.run()
    engine.add("a", 4, 3, ignore_eos=True)  # the id of one that ended
    engine.add("expires", 5, 20, timeout=4.5, ignore_eos=True)
    engine.run()
    engine.add("open", 5, 30, ignore_eos=True)
    engine.step()
    recorder.close()

    trace = open_trace(path)
    assert trace.format == "vtop-recording"
    jobs = {job.id: job for job in trace.workload.jobs}
    lengths = {name: (job.prompt_tokens, job.output_tokens) for name, job in jobs.items()}
    assert lengths == {
        "a": (11, 9), "b": (7, 5), "n": (6, 8), "beam": (6, 7), "a#2": (4, 3), "expires": (5, 20), "open": (5, 30),
    }  # fmt: skip
    assert (jobs["a"].at, jobs["a"].priority, jobs["a"].group, jobs["b"].at) == (0, 3, "blue", 2.5)
    assert (jobs["b"].timeout, jobs["b"].deadline, jobs["b"].expected_tokens) == (pytest.approx(500), None, 6)
    assert (jobs["n"].n, jobs["n"].beam_width, jobs["beam"].n, jobs["beam"].beam_width) == (3, None, 1, 2)

    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-40])
    assert read_trace(cut).jobs[0].id == "a"


def test_a_recording_cut_before_its_first_request(tmp_path: Path) -> None:
    path = tmp_path / "r"
    Recorder(path, AuditedEngine(8).engine.meta).close()
    with pytest.raises(BadValue, match="holds no request"):
        read_trace(path)
    path.write_bytes(gzip.decompress(path.read_bytes()))
    with pytest.raises(BadValue, match="holds no request"):
        read_trace(path)


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": who, "value": text} for who, text in pairs]


@pytest.mark.parametrize(
    ("conversation", "texts"),
    [
        (turns(("human", "q"), ("gpt", "a"), ("human", "more"), ("gpt", "b")), ("q", "a")),
        (turns(("gpt", "hello"), ("human", "q"), ("gpt", "a")), ("q", "a")),
        (turns(("system", "rules"), ("human", "q"), ("gpt", "a")), ("rules\nq", "a")),
        (turns(("human", "q"), ("system", "rules"), ("gpt", "a")), ("rules\nq", "a")),
        (turns(("human", "q"), ("human", "and"), ("gpt", "a"), ("gpt", "b"), ("human", "x")), ("q\nand", "a\nb")),
        (turns(("human", "lost"), ("tool", "t"), ("human", "q"), ("gpt", "a")), ("q", "a")),
        (turns(("user", "q"), ("chatgpt", "a")), ("q", "a")),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
         ("s\nq", "a")),
        ([{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url"}]},
          {"role": "assistant", "content": "a"}], ("q", "a")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["conversations", "messages"])
@pytest.mark.parametrize("lines", [False, True])
def test_the_first_question_that_was_answered_is_the_request(
    conversation: list[Any], texts: tuple[str, str], key: str, lines: bool, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({key: conversation} if lines else [{key: conversation}]) + "\n")
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return len(text)

    found = open_trace(path, count_tokens=count)
    assert tuple(seen) == texts
    assert [(j.prompt_tokens, j.output_tokens) for j in found.workload.jobs] == [tuple(map(len, texts))]


@pytest.mark.parametrize(
    "conversation",
    [
        [],
        turns(("human", "q")),
        turns(("gpt", "a")),
        turns(("gpt", "a"), ("human", "q")),
        turns(("human", "q"), ("gpt", "")),
    ],
)
def test_a_conversation_that_nobody_answers_counts_as_failed(conversation: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(
        json.dumps([{"conversations": conversation}, {"conversations": turns(("human", "q"), ("gpt", "a"))}])
    )
    found = open_trace(path)
    assert len(found.workload.jobs) == 1 and sum(found.left_out.values()) == 1
