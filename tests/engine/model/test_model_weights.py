"""Weights that are not there, do not fit or are of another model: refused in one line that names them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vtop.engine.config import EngineConfig
from vtop.engine.errors import ModelRefused
from vtop.engine.model.build import build_executor
from vtop.engine.model.load import load_pretrained
from vtop.engine.model.source import resolve
from vtop_support.models import saved_tiny_random, tiny_random

torch.set_num_threads(1)
UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_tiny_random("llama", tmp_path_factory.mktemp("whole") / "llama")


def changed(whole: Path, folder: Path, tensors: Tensors, **config: Any) -> Path:
    """The same model with other tensors, and with other fields of its config."""
    shutil.copytree(whole, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


def without(tensors: Tensors, *names: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def refusal(folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What is said of a model, on one line of printable text, with nothing else drawn over the app."""
    with pytest.raises(ModelRefused) as refused:
        build_executor(EngineConfig(model=str(folder), device="cpu", num_gpu_blocks_override=8))
    text = str(refused.value)
    assert text.isprintable() and len(text) < 700
    drawn = capfd.readouterr()
    assert drawn.out == "" and (folder.suffix == ".gguf" or drawn.err == "")  # reading GGUF has a bar of its own
    assert "REPORT" not in drawn.err
    return text


def load(folder: Path) -> Any:
    return load_pretrained(resolve(str(folder)), torch.float32, torch.device("cpu"))[0]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda w: without(w, "lm_head.weight"), ["1 of 21 tensors: lm_head.weight"]),
        (lambda w: without(w, UP), [f"1 of 21 tensors: {UP}"]),
        (lambda w: without(w, UP, "lm_head.weight", "model.norm.weight"), [UP, "lm_head.weight", "model.norm.weight"]),
        (lambda w: prefixed(w, "transformer."), ["21 of 21 tensors", "lm_head.weight", "transformer.lm_head.weight"]),
        (lambda w: prefixed(w, "\x1b]0;owned\x07"), ["21 of 21 tensors", "lm_head.weight"]),
        (lambda w: {**w, UP: torch.zeros(50, 64)}, [UP, "[50, 64]", "[96, 64]"]),
        (lambda w: {**w, "model.layers.2.mlp.up_proj.weight": w[UP] + 1}, ["no 'model.layers.2.mlp.up_proj.weight'"]),
        (lambda w: {**w, "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, ["LlamaForCausalLM", "q_norm"]),
        (lambda w: {**w, "model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, ["q_proj.bias"]),
        (lambda w: {**w, "lm_head.bias": torch.ones(128)}, ["lm_head.bias"]),
    ],
    ids=["head", "matrix", "three", "prefix", "hostile", "shape", "layer", "qwen3", "bias", "head bias"],
)  # fmt: skip
def test_what_a_file_lacks_is_named(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: Any, names: list[str]
) -> None:
    text = refusal(changed(whole, tmp_path / "m", change(load_file(whole / "model.safetensors"))), capfd)
    assert text.startswith("model 'm' cannot be served: its weights ") and all(name in text for name in names), text


def test_a_base_model_with_a_bias_it_does_not_compute_is_refused(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint of the base model has no `model.` before its names."""
    tensors = {name.removeprefix("model."): t for name, t in load_file(whole / "model.safetensors").items()}
    del tensors["lm_head.weight"]
    tied = changed(whole, tmp_path / "tied", tensors, tie_word_embeddings=True)
    assert load(tied).lm_head.weight is not None
    tensors["layers.0.mlp.up_proj.bias"] = torch.ones(96)
    assert "up_proj.bias" in refusal(changed(whole, tmp_path / "m", tensors, tie_word_embeddings=True), capfd)


def test_a_config_of_another_size_is_refused_with_the_count(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(whole / "model.safetensors")
    text = refusal(changed(whole, tmp_path / "m", tensors, vocab_size=100), capfd)
    assert "lm_head.weight is [128, 64], [100, 64] is needed, and 1 more do not fit" in text


@pytest.mark.parametrize("stored", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_tied_weight_is_stored_once(whole: Path, tmp_path: Path, stored: str) -> None:
    tensors = load_file(whole / "model.safetensors")
    kept = tensors[stored]
    left = without(tensors, *({"model.embed_tokens.weight", "lm_head.weight"} - {stored}))
    model = load(changed(whole, tmp_path / "m", left, tie_word_embeddings=True))
    assert torch.equal(model.lm_head.weight, kept) and torch.equal(model.model.embed_tokens.weight, kept)


@pytest.mark.parametrize(
    "more",
    [
        "score.weight", "v_head.summary.weight", "vision_tower.layers.0.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.self_attn.k_scale",
    ],
)  # fmt: skip
def test_tensors_beside_the_decoder_do_no_harm(whole: Path, tmp_path: Path, more: str) -> None:
    tensors = load_file(whole / "model.safetensors")
    model = load(changed(whole, tmp_path / "m", {**tensors, more: torch.ones(4)}))
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])


def test_the_causal_masks_of_an_old_gpt2_do_no_harm(tmp_path: Path) -> None:
    folder = saved_tiny_random("gpt2", tmp_path / "gpt2")
    tensors = load_file(folder / "model.safetensors")
    masks = {
        f"transformer.h.{i}.attn.{name}": torch.ones(1, 1, 8, 8) for i in (0, 1) for name in ("bias", "masked_bias")
    }
    save_file({**tensors, **masks}, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load(folder).lm_head.weight, tensors["lm_head.weight"])


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tiny_random("llama").save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    return tmp_path / "shards"


def test_a_shard_that_is_not_there_is_named(sharded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    assert f"names files that are not there: {gone.name!r}" in refusal(sharded, capfd)


def test_a_shard_with_the_content_of_another_lacks_its_own(sharded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = sorted(sharded.glob("*.safetensors"))
    shutil.copy(second, first)
    assert "model.embed_tokens.weight" in refusal(sharded, capfd)


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', "[" * 100_000],
    ids=["cut", "list", "empty", "number", "no name", "deep"],
)
def test_an_index_that_is_none_is_refused(sharded: Path, capfd: pytest.CaptureFixture[str], index: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(sharded, capfd)


@pytest.mark.parametrize("kept", [0, 7, 40, -100, -1])
def test_a_file_cut_short_is_named(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kept: int) -> None:
    shutil.copytree(whole, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "'model.safetensors' is damaged or cut short" in refusal(tmp_path / "m", capfd)


def test_a_shard_cut_short_is_named(sharded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cut = sorted(sharded.glob("*.safetensors"))[2]
    cut.write_bytes(cut.read_bytes()[:-1])
    assert f"{cut.name!r} is damaged or cut short" in refusal(sharded, capfd)


def test_weights_of_the_older_format_are_looked_at_too(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save(without(tensors, UP), tmp_path / "m" / "pytorch_model.bin")
    assert UP in refusal(tmp_path / "m", capfd)


# --- GGUF ------------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, leave: Iterable[str] = ()) -> Path:
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    model = tiny_random("llama")
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(16)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        if stored not in leave:
            writer.add_tensor(stored, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("leave", "name"), [("blk.1.ffn_up.weight", UP), ("token_embd.weight", "model.embed_tokens.weight")]
)
def test_a_gguf_file_that_lacks_tensors_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], leave: str, name: str
) -> None:
    assert f"lack 1 of 21 tensors: {name}" in refusal(write_gguf(tmp_path / "m.gguf", [leave]), capfd)


def test_a_gguf_file_without_an_output_matrix_is_tied(tmp_path: Path) -> None:
    model = load(write_gguf(tmp_path / "m.gguf", ["output.weight"]))
    assert torch.equal(model.lm_head.weight, tiny_random("llama").model.embed_tokens.weight)


def test_a_gguf_file_cut_short_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes()[:-5000])
    assert "transformers cannot read it" in refusal(file, capfd)
