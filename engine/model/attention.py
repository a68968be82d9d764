"""How a transformers model is made to attend over our KV cache.

transformers looks its attention function up by name; ours is registered once under ATTENTION_NAME and has no state.
What it needs for a step, a `PagedAttention`, hangs on the modules of the model it serves, put there by `attach` and
taken away by `detach`. No mask function is registered under that name, so transformers builds no mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vtop.kernels.api import AttentionBackend, AttentionBatch

ATTENTION_NAME = "vtop_paged"
_BINDING = "_vtop_binding"

# Arguments that models pass on and that change nothing about attention over a paged cache.
_HARMLESS = frozenset(
    (
        "position_ids",
        "cache_position",
        "position_embeddings",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "num_items_in_batch",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "logits_to_keep",
        "output_router_logits",
        "layer_type",
        "layer_head_mask",
        "head_mask",
        "cross_attn_layer_head_mask",
    )
)


class UnsupportedAttention(Exception):
    """The model asks its attention for something we do not compute; the text names it."""


@dataclass(slots=True)
class LayerShape:
    """What a layer's first call showed: head counts, head size, window."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None


class PagedAttention:
    """The state shared by one model's attention modules: backend, cache views, and the batch of the current step.

    While `discovering`, a forward pass only fills `shapes`, one per layer in the order of the calls. After that it
    needs `use_cache` once, and `batch` for every step.
    """

    def __init__(self, model: nn.Module, backend: AttentionBackend) -> None:
        self.backend = backend
        self.batch: AttentionBatch | None = None
        self.shapes: list[LayerShape] = []
        self.discovering = True
        self._model = model
        self._layers: list[torch.Tensor] = []
        self._index: dict[int, int] = {}  # id(module) -> layer

    def attach(self) -> None:
        """Make every module of the model able to find this object; the ones that attend are learnt by `discover`."""
        for module in self._model.modules():
            module.__dict__[_BINDING] = self

    def detach(self) -> None:
        for module in self._model.modules():
            module.__dict__.pop(_BINDING, None)
        self.batch = None
        self._layers = []

    def use_cache(self, cache: torch.Tensor) -> None:
        """Attend over `cache` [num_blocks, layers, 2, kv_heads, block_size, head_dim] from now on."""
        self._layers = [cache[:, i] for i in range(cache.shape[1])]

    def run(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """query [1, heads, T, D], key [1, kv_heads, T, D], value [1, kv_heads, T, E] -> [1, T, heads, E]; E <= D."""
        if self.discovering:
            return self._discover(module, query, key, value, window)
        batch = self.batch
        if batch is None:
            raise RuntimeError("the model was called outside of a step while the engine holds it")
        layer = self._layers[self._index[id(module)]]
        size = value.shape[3]
        if size < key.shape[3]:  # latent attention (MLA): smaller values are kept at the size of the keys
            value = nn.functional.pad(value, (0, key.shape[3] - size))
        self.backend.write_kv(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), batch)
        out = self.backend.attend(
            query[0].transpose(0, 1), layer, batch, scale, sliding_window=window, softcap=softcap, sinks=sinks
        )
        return out[..., :size].unsqueeze(0)

    def _discover(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Note the layer; the output is zeros, for nobody reads the logits of a discovery pass."""
        if id(module) in self._index:
            raise UnsupportedAttention("one attention layer to run twice in a step (shared or differential layers)")
        if query.shape[0] != 1 or key.shape[2] != query.shape[2] or value.shape[2] != query.shape[2]:
            raise UnsupportedAttention("attention over other tokens than the input (cross-attention)")
        if key.shape[3] < value.shape[3] or query.shape[3] != key.shape[3]:
            raise UnsupportedAttention("values that are larger than the keys")
        if query.shape[1] % key.shape[1]:
            raise UnsupportedAttention("query heads that are no multiple of the KV heads")
        self._index[id(module)] = len(self.shapes)
        self.shapes.append(LayerShape(query.shape[1], key.shape[1], key.shape[3], window))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def is_attached(model: nn.Module) -> bool:
    """Whether an engine holds the model's attention."""
    return any(_BINDING in module.__dict__ for module in model.modules())


def paged_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' models call. Raises UnsupportedAttention for what is asked and not honoured."""
    paged: PagedAttention | None = module.__dict__.get(_BINDING)
    if paged is None:
        raise RuntimeError(f"{type(module).__name__} uses {ATTENTION_NAME!r} but belongs to no engine")
    if attention_mask is not None:
        raise UnsupportedAttention("a mask of the model's own")
    if dropout:
        raise UnsupportedAttention("dropout in attention")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedAttention("attention that is not causal")
    for name, value_ in others.items():
        if value_ is not None and name not in _HARMLESS:
            raise UnsupportedAttention(f"the attention argument {name!r}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return paged.run(module, query, key, value, scale, sliding_window or None, softcap or None, s_aux), None


def register() -> None:
    """Make ATTENTION_NAME known to transformers. Calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)
