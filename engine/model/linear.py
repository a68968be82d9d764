"""Make a loaded transformers model's layers run on our CPU kernels, and put everything back when asked.

Works on any decoder built of `nn.Linear`: modules keep their class and weights (tied ones stay tied, nothing is
copied) and get a `forward` of their own. Layers of one input (q/k/v, gate/up) are computed together, a SwiGLU with its
activation, RMS norms and rotary embeddings in one pass each. A module is recognised by its parts and then by what it
computes: where ours gives anything else on a test input, it is left alone.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vtop.kernels.cpu.linear import LinearTask, RMSNorm, Scratch, rotate, supports, supports_rows

Forward = Callable[..., Any]

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of linear layers that siblings call one after the other with the same input."""
NATIVE_BF16_ROWS = 16
"""Rows up to which our bfloat16 kernel is used where the processor multiplies bfloat16 itself, as torch then does."""
FLOAT32_WORK = 96_000
"""Rows times columns of x up to which our float32 kernel is faster than torch's, which keeps more of a wide x in reach:
on two cores with AVX2 2.1 to 1.6 times at 32 rows of 576, 0.97 at 64 rows of 1536."""
SMALL_WEIGHT = 1 << 14
"""Elements of a lone weight below which torch's own call is the cheaper one."""
ROTARY = "apply_rotary_pos_emb"
# Mean error of logits, in their standard deviations: bfloat16 models wander by hundredths, wrong ones by about 1.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.15}
PART_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03}
TEST_TOKENS = 9


class Packing:
    """What `pack_model` did to a model. `linears`, `groups`, `norms`, `rotary`, `gates`: how many of each."""

    def __init__(self) -> None:
        self.linears = self.groups = self.norms = self.rotary = self.gates = 0
        self._changed: list[nn.Module] = []

    def __bool__(self) -> bool:
        return bool(self._changed)

    def set(self, module: nn.Module, forward: Forward) -> None:
        """Give the module a forward of its own."""
        module.__dict__["forward"] = forward
        self._changed.append(module)

    def undo(self) -> None:
        """Give every module its class's forward back. Calling it twice is harmless."""
        for module in self._changed:
            module.__dict__.pop("forward", None)
        self._changed.clear()


def pack_model(model: Any) -> Packing:
    """Let the layers of `model`, a transformers decoder on cpu in eval mode, run on our kernels where there are any.

    Results are those of the plain model within rounding, which a forward pass over a few tokens proves; a model for
    which it does not hold, or that cannot be run on token ids alone, stays as it is (the packing is then empty). Its
    weights must not be replaced (moved, cast) before `undo`.
    """
    if model.device.type != "cpu" or not any(map(_packable, model.modules())):
        return Packing()
    try:
        with torch.inference_mode():
            wanted = _logits(model)
            for glue in (True, False):
                packing = _pack(model, glue)
                try:
                    if _close(_logits(model), wanted, TOLERANCE[model.dtype]):
                        return packing
                except Exception:  # our forward met arguments that it does not know
                    pass
                packing.undo()
    except Exception:  # the model's own forward fails; whoever serves it will say why
        pass
    return Packing()


def _pack(model: nn.Module, glue: bool) -> Packing:
    """All linear layers, and with `glue` what lies between them."""
    packing, scratch = Packing(), Scratch()
    native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    done: set[int] = set()
    try:
        for parent in model.modules():
            if glue and _pack_gate(parent, packing, scratch, native):
                done.update(map(id, parent.children()))
            for names in GROUPS:
                members: list[Any] = [getattr(parent, name, None) for name in names]
                if all(_packable(m) and id(m) not in done for m in members) and _same_input(members):
                    _pack_group(members, packing, scratch, native)
                    done.update(map(id, members))
            if glue:
                _pack_norm(parent, packing)
                _pack_rotary(parent, packing)
        module: Any
        for module in model.modules():
            if _packable(module) and id(module) not in done and module.weight.numel() >= SMALL_WEIGHT:
                packing.set(module, _single(module, packing, scratch, native))
                done.add(id(module))
    except BaseException:
        packing.undo()
        raise
    return packing


def _packable(module: Any) -> bool:
    return type(module) is nn.Linear and "forward" not in module.__dict__ and supports(module.weight)


def _same_input(members: list[Any]) -> bool:
    return len({(m.in_features, m.weight.dtype) for m in members}) == 1


def _most_rows(weight: torch.Tensor, native: bool) -> int:
    if weight.dtype == torch.float32:
        return FLOAT32_WORK // weight.shape[1]
    return NATIVE_BF16_ROWS if native else 1 << 62


def _single(module: nn.Linear, packing: Packing, scratch: Scratch, native: bool) -> Forward:
    task = LinearTask([module.weight.detach()], [_bias(module)], scratch)
    plain, dtype, size = _plain(module), module.weight.dtype, module.in_features
    most = _most_rows(module.weight, native) * size
    packing.linears += 1

    def forward(input: torch.Tensor) -> Any:  # nn.Linear's name for it
        if input.dtype is not dtype or input.numel() > most or torch.is_grad_enabled():
            return plain(input)
        return task(input)[0]

    return forward


def _pack_group(members: list[nn.Linear], packing: Packing, scratch: Scratch, native: bool) -> None:
    """Whoever is called first computes the results of all; the others find theirs, if their input is the same one."""
    task = LinearTask([m.weight.detach() for m in members], [_bias(m) for m in members], scratch)
    most = _most_rows(members[0].weight, native) * members[0].in_features
    dtype = members[0].weight.dtype
    kept: dict[int, torch.Tensor] = {}
    seen: list[torch.Tensor] = []

    def make(which: int, plain: Forward) -> Forward:
        def forward(input: torch.Tensor) -> Any:
            if seen and seen[0] is input and which in kept:
                result = kept.pop(which)
                if not kept:
                    seen.clear()
                return result
            if input.dtype is not dtype or input.numel() > most or torch.is_grad_enabled():
                return plain(input)
            results = task(input)
            seen[:] = [input]
            kept.clear()
            kept.update((i, result) for i, result in enumerate(results) if i != which)
            return results[which]

        return forward

    for which, member in enumerate(members):
        packing.set(member, make(which, _plain(member)))
        packing.linears += 1
    packing.groups += 1


def _pack_gate(parent: nn.Module, packing: Packing, scratch: Scratch, native: bool) -> bool:
    """An MLP that is down(silu(gate(x)) * up(x)): gate, up and activation become one kernel."""
    gate, up, down = (getattr(parent, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    if not (isinstance(gate, nn.Linear) and isinstance(up, nn.Linear) and isinstance(down, nn.Linear)):
        return False
    if "forward" in parent.__dict__ or not all(map(_packable, (gate, up, down))) or not _same_input([gate, up]):
        return False
    if any(child._forward_hooks or child._forward_pre_hooks for child in parent.children()):
        return False  # whoever put them there wants them called
    if gate.bias is not None or up.bias is not None or gate.weight.shape != up.weight.shape:
        return False
    both = LinearTask([gate.weight.detach(), up.weight.detach()], [None, None], scratch, gated=True)
    plain, dtype = _plain(parent), gate.weight.dtype
    most = _most_rows(gate.weight, native) * gate.in_features
    down_only = Packing()
    down_forward = _single(down, down_only, scratch, native)

    def forward(x: torch.Tensor) -> Any:
        if x.dtype is not dtype or x.numel() > most or torch.is_grad_enabled():
            return plain(x)
        return down_forward(both(x)[0])

    x = torch.randn(2, gate.in_features, generator=_generator()).to(dtype)
    if not _same(lambda: plain(x), lambda: forward(x), dtype):
        return False
    packing.set(parent, forward)
    packing.set(down, down_forward)
    packing.linears += 3
    packing.gates += 1
    return True


def _pack_norm(module: nn.Module, packing: Packing) -> None:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or "forward" in module.__dict__:
        return
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
        return
    size, dtype = weight.shape[0], weight.dtype
    if weight.device.type != "cpu" or not supports_rows(size, dtype):
        return
    plain = _plain(module)
    x = torch.randn(3, size, generator=_generator()).to(dtype)
    for scale in (weight.detach().float(), 1 + weight.detach().float()):
        ours = RMSNorm(scale, epsilon)
        if _same(lambda: plain(x), lambda ours=ours: ours(x), dtype):
            packing.set(module, _norm(plain, ours, dtype))
            packing.norms += 1
            return


def _norm(plain: Forward, ours: RMSNorm, dtype: torch.dtype) -> Forward:
    def forward(x: torch.Tensor) -> Any:
        if x.dtype is not dtype or torch.is_grad_enabled():
            return plain(x)
        return ours(x)

    return forward


def _pack_rotary(module: nn.Module, packing: Packing) -> None:
    """Attention whose forward calls `apply_rotary_pos_emb`: the same code, with ours under that name."""
    if "forward" in module.__dict__:
        return
    function: Any = inspect.unwrap(type(module).forward)
    size = getattr(module, "head_dim", None)
    if not isinstance(function, types.FunctionType) or ROTARY not in function.__code__.co_names:
        return
    original = function.__globals__.get(ROTARY)
    weight = next(module.parameters(), None)
    if original is None or weight is None or not isinstance(size, int) or size % 2:
        return
    if not supports_rows(size // 2, weight.dtype):
        return
    generator = _generator()
    q, k = (torch.randn(1, heads, 3, size, generator=generator).to(weight.dtype) for heads in (4, 2))
    cos, sin = (torch.randn(1, 3, size, generator=generator).to(weight.dtype) for _ in range(2))
    ours = _rotary(original)
    if not _same(lambda: torch.cat(original(q, k, cos, sin), 1), lambda: torch.cat(ours(q, k, cos, sin), 1), q.dtype):
        return
    names = {**function.__globals__, ROTARY: ours}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    packing.set(module, types.MethodType(copy, module))
    packing.rotary += 1


def _rotary(original: Forward) -> Forward:
    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any, **others: Any) -> Any:
        if rest or others or torch.is_grad_enabled() or not (_rotates(q, cos) and _rotates(k, cos) and q.dim() == 4):
            return original(q, k, cos, sin, *rest, **others)
        cos, sin = cos.contiguous(), sin.contiguous()
        return rotate(q, cos, sin), rotate(k, cos, sin)

    return apply


def _rotates(x: torch.Tensor, cos: torch.Tensor) -> bool:
    return (
        x.dtype is cos.dtype
        and x.shape[0] == 1
        and x.shape[-1] == cos.shape[-1]
        and cos.dim() == 3
        and cos.shape[:2] == (1, x.shape[2])
        and x.stride(-1) == 1
    )


def _plain(module: nn.Module) -> Forward:
    forward: Forward = types.MethodType(type(module).forward, module)
    return forward


def _bias(module: nn.Linear) -> torch.Tensor | None:
    return None if module.bias is None else module.bias.detach()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)  # the global one belongs to the user


def _same(plain: Forward, ours: Forward, dtype: torch.dtype) -> bool:
    """Whether two ways to compute a part agree; one that raises does not."""
    try:
        return _close(ours(), plain(), PART_TOLERANCE[dtype])
    except Exception:
        return False


def _close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    spread = float(wanted.float().std()) or 1.0
    return float((got.float() - wanted.float()).abs().mean()) <= tolerance * spread


def _logits(model: Any) -> torch.Tensor:
    count = min(TEST_TOKENS, getattr(model.config.get_text_config(), "max_position_embeddings", None) or TEST_TOKENS)
    vocab = int(model.config.get_text_config().vocab_size)
    ids = (torch.arange(count) * 7 + 3) % max(vocab - 1, 1)
    positions = torch.arange(count)
    logits: torch.Tensor = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits
    return logits
