"""Cards: a device with a model on it, as a cost model. Fitted ones, rooflines by data sheet, and files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from vtop.engine.errors import BadValue
from vtop.engine.fields import MOST_BLOCKS
from vtop.engine.sim.cost_model import CostModel, HingeCost, Roofline
from vtop.engine.sim.shapes import ModelShape, model_shape
from vtop.engine.user_files import read_toml

Made = TypeVar("Made", HingeCost, ModelShape)


@dataclass(frozen=True, slots=True)
class Card:
    """`memory` is of all GPUs together, in bytes; None when blocks must be given."""

    name: str
    device: str
    shape: ModelShape
    cost: CostModel
    memory: float | None = None

    def blocks(self, block_size: int, utilization: float) -> int | None:
        """KV blocks that fit beside the weights; None when the memory is not known."""
        if self.memory is None:
            return None
        room = self.memory * utilization - self.shape.weight_bytes
        blocks = int(room // (self.shape.kv_bytes_per_token * block_size))
        if blocks < 1:
            remedy = f"{self.shape.name} leaves no room for KV; give more gpus or a smaller model"
            raise BadValue("card", self.name, remedy)
        if blocks > MOST_BLOCKS:
            remedy = (
                f"{blocks:,} blocks fit beside {self.shape.name}, at most {MOST_BLOCKS:,} are simulated; give fewer"
            )
            raise BadValue("num_gpu_blocks_override", None, remedy)
        return blocks


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A data sheet: dense bf16 FLOP per second, bytes per second, bytes."""

    device: str
    flops: float
    bandwidth: float
    memory: float


SHEETS = {
    "a100": _Sheet("A100 80GB", 312e12, 2.039e12, 80e9),
    "h100": _Sheet("H100", 989e12, 3.35e12, 80e9),
    "h200": _Sheet("H200", 989e12, 4.8e12, 141e9),
    "b200": _Sheet("B200", 2250e12, 8.0e12, 180e9),
    "l40s": _Sheet("L40S", 362e12, 0.864e12, 48e9),
}

# Fitted to a published layer profile of Llama-3.1-8B in bf16: 2.1 % and 1.9 % mean error on held-out random steps.
_FITTED = {
    "rtx4090": (
        "RTX 4090",
        HingeCost(
            c0=0.01703, ct=3.748e-05, ch=5.183e-05, knee=192, cd=2.506e-06, ck=1.461e-07, ca=3.738e-09,
            swap_s_per_block=8.4e-05, cow_s_per_block=4e-06,
        ),
        24e9,
    ),
    "rtxpro6000": (
        "RTX PRO 6000",
        HingeCost(
            c0=0.0111, ct=1.852e-05, ch=1.754e-05, knee=256, cd=2.9e-06, ck=9.28e-08, ca=1.4e-09,
            swap_s_per_block=8.4e-05, cow_s_per_block=4e-06,
        ),
        96e9,
    ),
}  # fmt: skip

DEFAULT_CARD = "rtx4090"
DEFAULT_SHAPE = "llama-8b"
MOST_GPUS = 1024


def card_names() -> tuple[str, ...]:
    return (*_FITTED, *SHEETS)


def find_card(name: str, shape: str | None = None, gpus: int = 1, block_size: int = 16) -> Card:
    """By name, or from a file that `card_text` made. `shape` and `gpus` are of rooflines only. Raises BadValue."""
    if not 1 <= gpus <= MOST_GPUS:
        raise BadValue("gpus", gpus, f"give 1 to {MOST_GPUS:,}")
    key = name.lower().replace(" ", "").replace("_", "")
    if key in _FITTED:
        device, cost, memory = _FITTED[key]
        if gpus != 1 or (shape is not None and model_shape(shape).name != DEFAULT_SHAPE):
            rooflines = ", ".join(SHEETS)
            raise BadValue("card", name, f"was fitted with one GPU and {DEFAULT_SHAPE}; for others choose {rooflines}")
        return Card(key, device, model_shape(DEFAULT_SHAPE), cost, memory)
    if key in SHEETS:
        sheet, model = SHEETS[key], model_shape(shape or DEFAULT_SHAPE)
        device = sheet.device if gpus == 1 else f"{gpus} x {sheet.device}"
        roofline = Roofline(model, sheet.flops, sheet.bandwidth, gpus, block_size)
        return Card(key, device, model, roofline, sheet.memory * gpus)
    if os.path.isfile(name):  # unlike Path's, false for a name that is too long
        return load_card(Path(name))
    close = difflib.get_close_matches(key, card_names(), n=1)
    nearest = f"; did you mean {close[0]}?" if close else ""
    raise BadValue("card", name, f"give a file of `vtop calibrate` or one of {', '.join(card_names())}{nearest}")


def scaled(card: Card, factor: float) -> Card:
    """The same card with every forward pass `factor` times as long."""
    cost = card.cost
    if isinstance(cost, (HingeCost, Roofline)):
        return replace(card, cost=replace(cost, scale=cost.scale * factor))
    raise TypeError(f"{type(cost).__name__} cannot be scaled")


def card_text(card: Card, notes: list[str] | None = None) -> str:
    """A fitted card as TOML, with `notes` as comments. Raises TypeError for a roofline."""
    if not isinstance(card.cost, HingeCost):
        raise TypeError("only fitted cards are written to files")
    shape = card.shape
    lines = [f"# {note}" for note in notes or []]
    lines += [f"name = {_text(card.name)}", f"device = {_text(card.device)}", "", "[cost]"]
    lines += [f"{f.name} = {getattr(card.cost, f.name)!r}" for f in fields(HingeCost)]
    lines += ["", "[shape]"]
    lines += [
        f"{f.name} = {_text(value) if isinstance(value := getattr(shape, f.name), str) else repr(value)}"
        for f in fields(ModelShape)
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def load_card(path: Path) -> Card:
    """Read what `card_text` wrote. Raises BadValue naming file and key."""
    data = read_toml("card", path, "a TOML file as `vtop calibrate` writes it")
    for key, value in data.items():
        if key not in _TOP:
            raise BadValue(key, value, f"{path} has an unknown key{_nearest(key, _TOP)}")
        if not isinstance(value, _TOP[key]):
            raise BadValue(key, value, f"{path}: give {'a text' if _TOP[key] is str else f'a table [{key}]'}")
    cost = _made(data, "cost", HingeCost, path)
    shape = _made(data, "shape", ModelShape, path) if "shape" in data else model_shape(DEFAULT_SHAPE)
    return Card(data.get("name", path.stem), data.get("device", "unknown"), shape, cost)


_TOP: dict[str, type] = {"name": str, "device": str, "cost": dict, "shape": dict}
_REQUIRED = {
    "cost": ("c0", "ct"),
    "shape": ("name", "parameters", "layers", "hidden", "heads", "kv_heads", "head_dim", "max_model_len"),
}
_WORDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("a text", (str,)), "int": ("a whole number", (int,)), "float": ("a number", (int, float)),
}  # fmt: skip


def _made(data: dict[str, Any], section: str, kind: type[Made], path: Path) -> Made:
    """One section of a file, as what its keys are the fields of."""
    values = data.get(section)
    if not isinstance(values, dict):
        raise BadValue("card", str(path), f"has no [{section}]; `vtop calibrate` writes such files")
    types = {f.name: str(f.type) for f in fields(kind)}
    for key, value in values.items():
        if key not in types:
            raise BadValue(f"{section}.{key}", value, f"{path} has an unknown key{_nearest(key, types)}")
        words, wanted = _WORDS[types[key]]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise BadValue(f"{section}.{key}", value, f"{path}: give {words}")
    for name in _REQUIRED[section]:
        if name not in values:
            raise BadValue("card", str(path), f"[{section}] has no {name}")
    try:
        return kind(**values)
    except BadValue as error:
        raise BadValue(f"{section}.{error.field}", error.value, f"{path}: {error.remedy}") from None


def _nearest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
