"""Load a transformers decoder and serve it over paged KV, or refuse it with a reason."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vtop.engine.errors import ModelRefused
from vtop.engine.model.attention import ATTENTION_NAME, PagedAttention, UnsupportedAttention, is_attached, register
from vtop.engine.model.families import check_config, end_token_ids, position_limit, untold_window
from vtop.kernels.api import AttentionBackend, AttentionBatch, allocate_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE_TOKENS = 24
PROBE_WINDOW_AT_MOST = 160  # windows up to this length are exceeded by the probe


@dataclass(slots=True)
class ModelSpec:
    """What the rest of the engine needs to know about a model. `max_model_len` is in tokens, prompt and output."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    windows: frozenset[int] = field(default_factory=frozenset)


class LoadedModel:
    """A model whose attention reads and writes our cache, until `close` gives it back as it was.

    Built by `load_model`. Use: `use_cache(cache)` once, then `forward` per step.
    """

    def __init__(self, model: PreTrainedModel, spec: ModelSpec, paged: PagedAttention, tokenizer: Any | None) -> None:
        self.model = model
        self.spec = spec
        self.tokenizer = tokenizer
        self._paged = paged
        self._restore: str | None = None
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def backend(self) -> AttentionBackend:
        return self._paged.backend

    def open(self) -> None:
        """Switch the model's attention to ours."""
        if self._restore is None:
            self._restore = self.model.config._attn_implementation
            self._paged.attach()
            self.model.set_attn_implementation(ATTENTION_NAME)

    def close(self) -> None:
        """Give the model its own attention back. Calling it twice is harmless."""
        if self._restore is not None:
            self.model.set_attn_implementation(self._restore)
            self._paged.detach()
            self._restore = None

    def use_cache(self, cache: torch.Tensor) -> None:
        """cache [num_blocks, layers, 2, kv_heads, block_size, head_dim] on the model's device."""
        self._paged.use_cache(cache)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, batch: AttentionBatch, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """One packed step: input_ids, position_ids [T] int64 on the device -> logits [R, vocab] of `rows`, or all."""
        self._paged.batch = batch
        kwargs: dict[str, Any] = {}
        if rows is not None and self._takes_rows:
            kwargs["logits_to_keep"] = rows
        try:
            logits: torch.Tensor = self.model(
                input_ids=input_ids.unsqueeze(0), position_ids=position_ids.unsqueeze(0), use_cache=False, **kwargs
            ).logits[0]
        finally:
            self._paged.batch = None
        return logits if rows is None or self._takes_rows else logits.index_select(0, rows)


def load_model(
    model: PreTrainedModel,
    *,
    name: str,
    backend: AttentionBackend,
    tokenizer: Any | None = None,
    probe: bool = True,
) -> LoadedModel:
    """Take a transformers model into service, on the device and in the dtype it has.

    Raises ModelRefused, naming model and feature, when it cannot be served correctly; the model is then as it was.
    `probe` also compares a short paged run with the model's own attention.
    """
    _check_kind(model, name)
    model.eval()
    register()
    paged = PagedAttention(model, backend)
    shell = LoadedModel(model, _unknown_spec(model, name), paged, tokenizer)
    try:
        with torch.inference_mode():
            shell.open()
            _discover(model, paged, name, tokenizer)
            shell.spec = _spec(model, name, paged, tokenizer)
            if probe:
                _probe(shell)
    except UnsupportedAttention as error:
        shell.close()
        raise ModelRefused(name, f"it needs {error}") from None
    except BaseException:
        shell.close()
        raise
    return shell


def _check_kind(model: PreTrainedModel, name: str) -> None:
    if is_attached(model):
        raise ModelRefused(name, "another engine serves this model object; close that engine, or load the model again")
    check_config(model.config, name)
    kind = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise ModelRefused(name, "it keeps a recurrent state (state-space or hybrid layers), which has no blocks")
    if not model.can_generate():
        raise ModelRefused(name, f"{kind} does not generate text")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelRefused(name, f"{kind} takes no position ids, which packed sequences need")
    if not type(model)._can_set_attn_implementation():
        raise ModelRefused(name, f"{kind} does not let its attention function be exchanged")


def _discover(model: PreTrainedModel, paged: PagedAttention, name: str, tokenizer: Any | None) -> None:
    """Learn which modules attend, in which order and shape, from a forward pass over two tokens."""
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    positions = torch.arange(2, device=model.device).unsqueeze(0)
    try:
        model(input_ids=ids, position_ids=positions, use_cache=False)
    except UnsupportedAttention:
        raise
    except Exception as error:
        raise ModelRefused(name, f"a packed forward pass fails: {_one_line(error)}") from error
    paged.discovering = False
    shapes = paged.shapes
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", len(shapes))
    if len(shapes) != layers:
        raise ModelRefused(name, f"{len(shapes)} of its {layers} layers use the exchangeable attention function")
    if len({(shape.kv_heads, shape.head_dim) for shape in shapes}) != 1:
        raise ModelRefused(name, "its layers differ in KV heads or head size, and all blocks are of one size")
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    for shape, kind in zip(shapes, kinds, strict=False):
        if (kind == "sliding_attention") != (shape.window is not None):
            raise ModelRefused(name, "its sliding window is not told to the attention function")
    told = sum(shape.window is not None for shape in shapes)
    window = untold_window(model.config.get_text_config(), told, position_limit(model, tokenizer))
    if window is not None:
        raise ModelRefused(name, f"its sliding window of {window} is not told to the attention function")


def _probe(loaded: LoadedModel) -> None:
    """Two sequences over scattered blocks, in chunks and packed together; the logits must be the model's own."""
    spec = loaded.spec
    length = PROBE_TOKENS
    small = [window for window in spec.windows if window <= PROBE_WINDOW_AT_MOST]
    if small:
        length = max(length, max(small) + 8)
    length = min(length, spec.max_model_len)
    if length < 3:
        return
    # Not all the same token, and none outside the vocabulary; which ones does not matter.
    ids = (torch.arange(length, device=spec.device) * 7 + 3) % max(spec.vocab_size - 1, 1)
    sequences = [ids, ids.flip(0)[: max(2, length // 3)]]
    wanted = torch.cat([_own_logits(loaded, sequence) for sequence in sequences])
    got = _paged_logits(loaded, sequences)
    tolerance = {torch.float32: 2e-4 if spec.device.type == "cpu" else 5e-3, torch.float16: 5e-2}.get(spec.dtype, 0.15)
    spread = float(wanted.std()) or 1.0
    # In half precision single logits wander; what is wrong in kind is off everywhere.
    off = float((got - wanted).abs().mean()) / spread
    if not off <= tolerance:
        raise ModelRefused(
            spec.name, f"paged attention gives other logits than its own attention (off by {off:.2g} deviations)"
        )


def _own_logits(loaded: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    """ids [T] -> logits [T, vocab] by the model's own attention, in float32."""
    model = loaded.model
    positions = torch.arange(len(ids), device=ids.device)
    # Soft caps and the like are complete only in `eager`; SDPA of some models refuses them.
    model.set_attn_implementation("eager")
    try:
        logits: torch.Tensor = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    except Exception as error:
        raise ModelRefused(loaded.spec.name, f"its own forward pass fails: {_one_line(error)}") from error
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return logits.float()


def _paged_logits(loaded: LoadedModel, sequences: list[torch.Tensor]) -> torch.Tensor:
    """Logits of two sequences [T0 + T1, vocab], float32: half of the first, the rest with the second, and decodes."""
    spec = loaded.spec
    block_size = 4
    blocks = [-(-len(ids) // block_size) for ids in sequences]
    scattered = list(range(sum(blocks)))[::-1]
    tables = [scattered[: blocks[0]], scattered[blocks[0] :]]
    loaded.use_cache(
        allocate_cache(
            sum(blocks), spec.num_layers, spec.num_kv_heads, block_size, spec.head_dim, spec.dtype, spec.device
        )
    )
    first, second = map(len, sequences)
    half = max(1, first // 2)
    steps = [
        [(0, 0, half)],
        [(0, half, first - 1), (1, 0, second - 1)],
        [(0, first - 1, first), (1, second - 1, second)],
    ]
    parts: list[list[torch.Tensor]] = [[], []]
    for step in steps:
        chunks = [(i, start, end) for i, start, end in step if end > start]
        lengths = [end - start for _, start, end in chunks]
        batch = AttentionBatch.build(
            lengths, [end for *_, end in chunks], [tables[i] for i, *_ in chunks], block_size, spec.device
        )
        ids = torch.cat([sequences[i][start:end] for i, start, end in chunks])
        positions = torch.cat([torch.arange(start, end, device=spec.device) for _, start, end in chunks])
        logits = loaded.forward(ids, positions, batch, None).float()
        for (i, *_), part in zip(chunks, torch.split(logits, lengths), strict=True):
            parts[i].append(part)
    return torch.cat([*parts[0], *parts[1]])


def _unknown_spec(model: PreTrainedModel, name: str) -> ModelSpec:
    return ModelSpec(name, 0, 0, 0, 0, 0, 0, frozenset(), model.dtype, model.device)


def _vocab_size(model: PreTrainedModel) -> int:
    """Ids from 0 that the model can be given: those its config names, but no more than the embedding has rows."""
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    named = int(model.config.get_text_config().vocab_size)
    return named if rows is None else min(named, int(rows))


def _spec(model: PreTrainedModel, name: str, paged: PagedAttention, tokenizer: Any | None) -> ModelSpec:
    shape = paged.shapes[0]
    return ModelSpec(
        name=name,
        num_layers=len(paged.shapes),
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=_vocab_size(model),
        max_model_len=position_limit(model, tokenizer),
        eos_token_ids=end_token_ids(model, tokenizer),
        dtype=model.dtype,
        device=model.device,
        windows=frozenset(shape.window for shape in paged.shapes if shape.window is not None),
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"
