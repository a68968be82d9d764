"""Every family of decoders that tests try: those that are served, those that are refused, and for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

VOCAB = 128

# Whatever of this a config knows is set; the names are those of many families.
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    "hidden_size": 64, "n_embd": 64, "d_model": 64,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "decoder_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "intermediate_size": 96, "ffn_dim": 96, "n_inner": 96, "decoder_ffn_dim": 96,
    "ffn_hidden_size": 96, "max_position_embeddings": 512, "n_positions": 512, "n_ctx": 512,
    "sliding_window": 9, "rotary_dim": 8, "layer_types": None, "word_embed_proj_dim": 64, "encoder_layers": 2,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_topk": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
    # latent attention
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
_MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
_MLA = {"num_key_value_heads": 4, "head_dim": 8}
_SHARED_KV = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": _MIXED["layer_types"] * 2,
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "activation_sparsity_pattern": [0.0] * 4,
}  # fmt: skip
_SCALED = 0.05  # the embedding is multiplied by the root of the width; larger, every token repeats itself


@dataclass(frozen=True, slots=True)
class Family:
    """A family as transformers' `model_type` names it, with what its config needs beyond `_SMALL`.

    embed: deviation of the random embedding. rare: tried by the slow tests only. experts: it routes tokens.
    """

    kind: str
    special: dict[str, Any] = field(default_factory=dict)
    embed: float = 0.35
    rare: bool = False
    experts: bool = False

    def config(self) -> Any:
        return small_config(self.kind, **self.special)

    def model(self, *, seed: int = 0) -> Any:
        """A random float32 decoder, in memory, without an end token."""
        return randomised(self.config(), seed=seed, embed=self.embed)


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_LONG = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}

SERVED: dict[str, Family] = {
    # rotary embeddings; the last two depend on length and are served up to the trained one
    "llama": Family("llama"),
    "llama, rope linear": Family("llama", _rope("linear", factor=4.0)),
    "llama, rope llama3": Family(
        "llama",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama, rope yarn": Family("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama, rope dynamic": Family("llama", {**_rope("dynamic", factor=4.0), "max_position_embeddings": 64}),
    "phi3, rope longrope": Family(
        "phi3",
        {**_rope("longrope", **_LONG), "original_max_position_embeddings": 64, "sliding_window": None},
    ),
    # plain causal attention
    "qwen2": Family("qwen2", rare=True),
    "qwen3": Family("qwen3", rare=True),
    "phi": Family("phi"),
    "phi3": Family("phi3", rare=True),
    "gpt2": Family("gpt2", rare=True),
    "gpt_bigcode": Family("gpt_bigcode", rare=True),
    "gpt_neox": Family("gpt_neox"),
    "gptj": Family("gptj"),
    "codegen": Family("codegen", rare=True),
    "opt": Family("opt", {"pad_token_id": 1}, rare=True),
    "biogpt": Family("biogpt", {"pad_token_id": 1}, embed=_SCALED),
    "stablelm": Family("stablelm"),
    "granite": Family("granite"),
    "olmo": Family("olmo", rare=True),
    "olmo2": Family("olmo2"),
    "cohere": Family("cohere"),
    "smollm3": Family("smollm3", {"no_rope_layers": [1, 0]}),
    "glm": Family("glm", rare=True),
    "glm4": Family("glm4"),
    "nemotron": Family("nemotron"),
    "helium": Family("helium", rare=True),
    "persimmon": Family("persimmon", rare=True),
    "seed_oss": Family("seed_oss", rare=True),
    "ernie4_5": Family("ernie4_5", rare=True),
    "hunyuan_v1_dense": Family("hunyuan_v1_dense", rare=True),
    "apertus": Family("apertus", rare=True),
    "arcee": Family("arcee", rare=True),
    "gemma": Family("gemma", rare=True, embed=_SCALED),
    "ctrl": Family("ctrl", {"dff": 96}, rare=True),
    "bitnet": Family("bitnet", rare=True),
    "nanochat": Family("nanochat", rare=True),
    "hyperclovax": Family("hyperclovax", rare=True),
    "jais2": Family("jais2", rare=True),
    # windows, soft caps, sinks
    "mistral": Family("mistral", rare=True),
    "ministral": Family("ministral", rare=True),
    "ministral3": Family("ministral3", rare=True),
    "starcoder2": Family("starcoder2"),
    "cohere2": Family("cohere2", _MIXED),
    "exaone4": Family("exaone4", _MIXED),
    "olmo3": Family("olmo3", _MIXED, rare=True),
    "gemma2": Family("gemma2", {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}, rare=True, embed=_SCALED),
    "gemma3_text": Family("gemma3_text", {**_MIXED, "query_pre_attn_scalar": 16}, embed=_SCALED),
    "vaultgemma": Family("vaultgemma", {"attn_logit_softcapping": 3.0}, rare=True, embed=_SCALED),
    "granite_swa": Family("granite_swa", rare=True),
    "cwm": Family("cwm", {"bos_token_id": 1}, rare=True),
    # K/V that several layers share are kept once for each of them
    "gemma3n_text": Family("gemma3n_text", _SHARED_KV, rare=True, embed=_SCALED),
    # experts
    "mixtral": Family("mixtral", experts=True),
    "qwen2_moe": Family("qwen2_moe", experts=True),
    "qwen3_moe": Family("qwen3_moe", experts=True),
    "gpt_oss": Family("gpt_oss", _MIXED, experts=True),
    "olmoe": Family("olmoe", rare=True, experts=True),
    "phimoe": Family("phimoe", {"sliding_window": None}, experts=True),
    "granitemoe": Family("granitemoe", rare=True, experts=True),
    "ernie4_5_moe": Family("ernie4_5_moe", rare=True, experts=True),
    "hunyuan_v1_moe": Family("hunyuan_v1_moe", rare=True, experts=True),
    "glm4_moe": Family("glm4_moe", rare=True, experts=True),
    "minimax_m2": Family("minimax_m2", rare=True, experts=True),
    "granitemoeshared": Family("granitemoeshared", rare=True, experts=True),
    "flex_olmo": Family("flex_olmo", rare=True, experts=True),
    "exaone_moe": Family("exaone_moe", _MIXED, rare=True, experts=True),
    "cohere2_moe": Family("cohere2_moe", _MIXED, rare=True, experts=True),
    "dots1": Family("dots1", rare=True, experts=True),
    "afmoe": Family("afmoe", rare=True, experts=True),
    "jetmoe": Family("jetmoe", rare=True, experts=True),
    "solar_open": Family("solar_open", rare=True, experts=True),
    # latent attention: values smaller than keys
    "deepseek_v2": Family("deepseek_v2", _MLA, rare=True, experts=True),
    "deepseek_v3": Family("deepseek_v3", _MLA, experts=True),
    "minicpm3": Family("minicpm3", _MLA, rare=True, embed=_SCALED),
    "glm4_moe_lite": Family("glm4_moe_lite", _MLA, rare=True, experts=True),
    "longcat_flash": Family(
        "longcat_flash", {**_MLA, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 64}, rare=True, experts=True
    ),
    "youtu": Family("youtu", {**_MLA, "v_head_dim": 12}, rare=True),
}


def _refused(kind: str, **special: Any) -> Callable[[], Any]:
    return lambda: Family(kind, special).model()


_ALL = ["full_attention", "full_attention"]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "bloom": (_refused("bloom"), "ALiBi"),
    "mpt": (_refused("mpt"), "ALiBi"),
    "falcon, alibi": (_refused("falcon", alibi=True), "ALiBi"),
    "falcon": (_refused("falcon"), "attention function"),
    "gpt_neo": (_refused("gpt_neo", attention_types=[[["global", "local"], 1]]), "attention function"),
    "xglm": (_refused("xglm", attention_heads=4), "attention function"),
    "gpt_neox_japanese": (_refused("gpt_neox_japanese"), "attention function"),
    "t5": (lambda: _of_class("T5ForConditionalGeneration", "t5", num_heads=4, d_kv=16, d_ff=96), "encoder-decoder"),
    "bart": (_refused("bart"), "position ids"),
    "prophetnet": (
        _refused("prophetnet", num_decoder_layers=2, num_decoder_attention_heads=4, num_encoder_layers=1),
        "cross-attention",
    ),
    "gpt2, cross-attention": (_refused("gpt2", add_cross_attention=True), "cross-attention"),
    "bert": (_refused("bert"), "not causal"),
    "bert, masked": (lambda: _of_class("BertForMaskedLM", "bert"), "does not generate"),
    "mamba": (_refused("mamba"), "state-space"),
    "falcon_mamba": (_refused("falcon_mamba"), "state-space"),
    "mamba2": (_refused("mamba2", num_heads=8, n_groups=1, state_size=8), "state-space"),
    "jamba": (
        _refused("jamba", attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False, pad_token_id=0),
        "state-space",
    ),
    "bamba": (_refused("bamba", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16), "state-space"),
    "recurrent_gemma": (_refused("recurrent_gemma", lru_width=64), "linear_attention"),
    "rwkv": (_refused("rwkv", attention_hidden_size=64), "recurrent state"),
    "qwen3_next": (_refused("qwen3_next"), "linear attention"),
    "minimax": (_refused("minimax"), "linear attention"),
    "lfm2": (_refused("lfm2", layer_types=["conv", "full_attention"]), "convolution"),
    "falcon_h1": (_refused("falcon_h1", mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16), "hybrid"),
    "granitemoehybrid": (_refused("granitemoehybrid", mamba_n_heads=8, mamba_d_head=16), "state-space"),
    "llama4_text": (_refused("llama4_text", attention_chunk_size=8, intermediate_size_mlp=96), "chunks"),
    "llama4_text, no chunks": (_refused("llama4_text", intermediate_size_mlp=96, layer_types=_ALL), "place"),
    "deepseek_v32": (_refused("deepseek_v32", **_MLA), "index"),
    "deepseek_v3, large values": (_refused("deepseek_v3", **_MLA, v_head_dim=32), "larger than the keys"),
    "diffllama": (_refused("diffllama"), "twice"),
    "doge": (_refused("doge"), "mask of the model's own"),
    "moshi": (_refused("moshi"), "sliding window of 9"),
    "phimoe, window": (_refused("phimoe", sliding_window=200), "sliding window of 200"),
    "mimo_v2_flash": (_refused("mimo_v2_flash"), "KV heads or head size"),
    "gemma4_text": (
        _refused("gemma4_text", **_MIXED, vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=8),
        "KV heads or head size",
    ),
    "mllama_text_model": (
        lambda: _of_class(
            "MllamaForCausalLM", "mllama_text_model", cross_attention_layers=[1], pad_token_id=0, bos_token_id=1
        ),
        "cross-attention",
    ),
}


def small_config(kind: str, **special: Any) -> Any:
    """A config of the family `kind` in which all sizes are small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    maker = CONFIG_MAPPING[kind]
    known = set(maker().to_dict())
    return maker(**{**{name: value for name, value in _SMALL.items() if name in known}, **special})


def randomised(config: Any, *, seed: int = 0, embed: float = 0.35, model_class: Any = None) -> Any:
    """A float32 model whose random weights are large enough that attention is not flat and the output varies."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    maker = model_class._from_config if model_class is not None else AutoModelForCausalLM.from_config
    model = maker(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, embed if "embed" in name or "wte" in name else 0.2)
            elif "sinks" in name:
                parameter.normal_()
            elif "bias" in name:
                parameter.normal_(0.0, 0.1)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = None
    return model


def _of_class(class_name: str, kind: str, **special: Any) -> Any:
    import transformers

    return randomised(small_config(kind, **special), model_class=getattr(transformers, class_name))
