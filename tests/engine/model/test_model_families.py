"""Model breadth: every family equals transformers' generate through a small pool, or is refused in one line.

The families are in `vtop_support.families`. Random weights, two layers. Left to the slow tests are the rarer ones,
and those that `test_engine_equals_generate` tries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vtop.engine import events as ev
from vtop.engine.errors import BadValue, ModelRefused
from vtop.engine.model.executor import TorchExecutor
from vtop.engine.model.families import check_config, untold_window
from vtop.engine.model.load import load_pretrained
from vtop.engine.model.model import LoadedModel, load_model
from vtop.engine.model.source import resolve
from vtop.kernels.api import AttentionBatch, allocate_cache
from vtop.kernels.registry import get_backend
from vtop_support.engines import AuditedEngine
from vtop_support.families import REFUSED, SERVED, VOCAB, Family, small_config

torch.set_num_threads(1)

BLOCK_SIZE = 4
NUM_BLOCKS = 12  # 48 tokens: one request alone fits, two at their longest do not
BUDGET = 14  # less than the longer prompts: they are prefilled in chunks
OUTPUTS = [18, 15, 20, 14, 16, 12]


def _prompts() -> list[list[int]]:
    """Four that begin alike, and two others; the last is a single token."""
    generator = torch.Generator().manual_seed(3)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, VOCAB - 8, (count,), generator=generator).tolist()

    beginning = tokens(13)
    return [beginning + tokens(4), tokens(9), beginning + tokens(1), beginning + tokens(7), beginning, tokens(1)]


PROMPTS = _prompts()


def _marked(names: dict[str, Family]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] if family.rare else []) for name, family in names.items()]


def _load(model: Any, name: str) -> LoadedModel:
    return load_model(model, name=name, backend=get_backend("auto", torch.device("cpu")))


def _reference(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy output of transformers' generate for one prompt alone."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def _run(loaded: LoadedModel) -> AuditedEngine:
    """All prompts at once through a pool that is too small for them; the engine gives the model back."""
    engine = AuditedEngine(
        NUM_BLOCKS,
        executor=TorchExecutor(loaded, NUM_BLOCKS, BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=BUDGET,
        max_model_len=loaded.spec.max_model_len,
    )
    for i, prompt in enumerate(PROMPTS):
        engine.add(f"r{i}", prompt, OUTPUTS[i], ignore_eos=True)
    engine.run()
    assert engine.events(ev.Preempted), "the pool was meant to be too small"
    assert any(lookup.hit and not lookup.resumed for lookup in engine.events(ev.PrefixLookup))
    engine.engine.close()
    return engine


@pytest.mark.parametrize("name", _marked(SERVED))
def test_a_served_family_equals_generate(name: str) -> None:
    """Preemptions, prefill in chunks, prefix hits, and batches in which others run."""
    model = SERVED[name].model()
    expected = [_reference(model, p, n) for p, n in zip(PROMPTS, OUTPUTS, strict=True)]
    engine = _run(_load(model, name))
    assert [engine.output(f"r{i}") for i in range(len(PROMPTS))] == expected
    assert len({token for output in expected for token in output}) >= 8, "the outputs were meant to vary"


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_is_not_served_is_refused_in_one_line(name: str) -> None:
    make, feature = REFUSED[name]
    model = make()
    before = model.config._attn_implementation
    with pytest.raises(ModelRefused) as refusal:
        _load(model, name)
    text = str(refusal.value)
    assert name in text and feature in text and "\n" not in text and len(text) < 200
    assert model.config._attn_implementation == before


# One of each way of attending; the others are loaded in half precision by the slow tests.
_HALF = ("llama", "gpt2", "gpt_oss", "mixtral", "deepseek_v3")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _HALF else [pytest.mark.slow]) for name in SERVED]
)
def test_half_precision_loads_and_runs(name: str, dtype: torch.dtype) -> None:
    """Loading compares the logits with the model's own attention in the same precision."""
    loaded = _load(SERVED[name].model().to(dtype), name)
    assert loaded.spec.dtype == dtype
    engine = _run(loaded)
    assert [len(engine.output(f"r{i}")) for i in range(len(PROMPTS))] == OUTPUTS


@pytest.mark.parametrize("name", _marked({name: family for name, family in SERVED.items() if family.experts}))
def test_experts_do_not_depend_on_what_else_is_in_the_batch(name: str) -> None:
    loaded = _load(SERVED[name].model(), name)
    spec = loaded.spec
    cache = allocate_cache(32, spec.num_layers, spec.num_kv_heads, 4, spec.head_dim, spec.dtype, "cpu")
    loaded.use_cache(cache)

    def logits(prompts: list[list[int]]) -> torch.Tensor:
        """Of the first prompt, packed before the others."""
        lengths = list(map(len, prompts))
        tables = [list(range(8 * i, 8 * i + 8)) for i in range(len(prompts))]
        ids = torch.tensor([token for prompt in prompts for token in prompt])
        positions = torch.cat([torch.arange(n) for n in lengths])
        with torch.inference_mode():
            out = loaded.forward(ids, positions, AttentionBatch.build(lengths, lengths, tables, 4), None)
        return out[: lengths[0]]

    alone = logits(PROMPTS[:1])
    torch.testing.assert_close(logits(PROMPTS[:4]), alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits([PROMPTS[0], *[[7] * 20] * 3]), alone, atol=1e-4, rtol=1e-4)
    loaded.close()


@pytest.mark.parametrize("name", ["llama, rope dynamic", "phi3, rope longrope"])
def test_rotary_frequencies_that_depend_on_length_are_never_reached(name: str) -> None:
    """Past the trained 64 tokens a sequence's frequencies would be those of the longest one in its batch."""
    model = SERVED[name].model()
    expected = _reference(model, PROMPTS[3], 64 - len(PROMPTS[3]))
    loaded = _load(model, name)
    assert loaded.spec.max_model_len == 64
    engine = AuditedEngine(
        40, executor=TorchExecutor(loaded, 40, 4), block_size=4, max_model_len=64, max_num_batched_tokens=16
    )
    engine.add("long", PROMPTS[3], 200, ignore_eos=True)
    engine.add("short", PROMPTS[5], 9, ignore_eos=True)
    engine.run()
    assert engine.output("long") == expected
    assert engine.finish_reason("long") == "length"


@pytest.mark.parametrize("name", ["llama, rope linear", "llama, rope llama3", "llama, rope yarn"])
def test_other_rope_scaling_has_the_length_of_the_config(name: str) -> None:
    loaded = _load(SERVED[name].model(), name)
    assert loaded.spec.max_model_len == 512
    loaded.close()


def test_a_window_that_no_layer_is_told_counts_only_where_it_can_be_reached() -> None:
    config = small_config("phimoe", sliding_window=200)
    assert untold_window(config, told=0, limit=512) == 200
    assert untold_window(config, told=0, limit=200) is None
    assert untold_window(config, told=2, limit=512) is None
    assert untold_window(small_config("llama"), told=0, limit=512) is None


def _folder(tmp_path: Path, config: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"model_type": "mamba"}, "state-space"),
        ({"model_type": "qwen2_5_vl"}, "no text decoder for its kind, qwen2_5_vl"),
        ({"model_type": "vit"}, "no text decoder for its kind, vit"),
    ],
)
def test_what_the_config_tells_is_refused_before_weights_are_looked_for(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    source = resolve(_folder(tmp_path, config))
    with pytest.raises(ModelRefused, match=words):
        load_pretrained(source, torch.float32, torch.device("cpu"))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    """Nor is anybody asked at the terminal, which the screen owns."""
    config = {"model_type": "odd", "auto_map": {"AutoConfig": "configuration_odd.OddConfig"}}
    (tmp_path / "configuration_odd.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(BadValue, match="custom code") as error:
        load_pretrained(resolve(_folder(tmp_path, config)), torch.float32, torch.device("cpu"))
    assert "\n" not in str(error.value)


def test_a_served_config_passes() -> None:
    for family in SERVED.values():
        check_config(family.config(), family.kind)


def test_the_readme_names_every_family() -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text()
    section = text.split("\n## Models\n")[1].split("\n## ")[0]
    served = {name.strip("` ") for line in section.splitlines() if "| served" in line for name in _names(line)}
    refused = {name.strip("` ") for line in section.splitlines() if "| refused" in line for name in _names(line)}
    assert {family.kind for family in SERVED.values()} <= served
    assert {name.split(",")[0] for name in REFUSED} - served <= refused


def _names(line: str) -> list[str]:
    return line.split("|")[1].split(",")
