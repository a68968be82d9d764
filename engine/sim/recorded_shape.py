"""The sizes of a model that a recording names, as far as they can be known from the recording."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from vtop.engine.errors import BadValue
from vtop.engine.events import Meta
from vtop.engine.sim.shapes import ModelShape, model_shape

_OWN = {"tiny": Path(__file__).parents[1] / "model" / "tiny"}
_BYTES = {"float32": 4}
_BLOCK = re.compile(r"blocks of ([\d.]+) (B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def recorded_shape(meta: Meta) -> ModelShape:
    """By the model's name; of an unknown one only the longest sequence and the size of its K/V are right."""
    size = _BYTES.get(meta.dtype, 2)
    try:
        shape = model_shape(str(_OWN.get(meta.model, meta.model)))
    except BadValue:
        found = _BLOCK.search(meta.kv_note)
        block = float(found[1]) * _UNITS[found[2]] if found else 2**20
        values = max(1, round(block / (2 * size * meta.block_size)))
        shape = ModelShape(meta.model, values, 1, values, 1, 1, values, meta.max_model_len)
    return replace(shape, name=meta.model, max_model_len=meta.max_model_len, bytes_per_value=size)
