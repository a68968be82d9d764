"""What the app is told about the run it shows, beside the Frames; and in what the engine differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtop.app.options import options
from vtop.engine.apply import PER_SECOND, SECONDS
from vtop.engine.commands import SetOption
from vtop.engine.config import EngineConfig
from vtop.engine.presets.base import LIVE
from vtop.engine.sched.live import LIVE_OPTIONS
from vtop.engine.state.fold import EngineState

_STRETCHED = frozenset((*SECONDS, *PER_SECOND))
_MACHINE = frozenset(
    {
        "model", "device", "dtype", "seed", "cpu_threads", "attention_backend", "gpu_memory_utilization",
        "kv_cache_memory", "swap_space", "max_model_len", "num_gpu_blocks_override", "num_host_blocks_override",
        "max_num_batched_tokens", "preset_quirks", "cpu_pack_weights", "enforce_eager", "compile",
    }
)  # fmt: skip
"""Options that say where the engine runs, or that are compared by what became of them."""


@dataclass(frozen=True, slots=True)
class Look:
    """A scenario's name with its variant, its title, and what it says to look at. All of it may be anybody's text."""

    name: str
    title: str
    text: str
    expects: EngineConfig | None = None  # its options; the engine may have others


@dataclass(frozen=True, slots=True)
class Playing:
    """`look`: the scenario that is played. `time_scale`: virtual seconds per real one at most (0: no bound) in a
    simulation, None for a real engine."""

    look: Look | None = None
    time_scale: float | None = None

    @property
    def clock(self) -> str:
        """What kind of time the header shows; empty for a real engine."""
        if self.time_scale is None:
            return ""
        return f"virtual \u00d7{self.time_scale:g}" if self.time_scale else "virtual \u00d7max"


@dataclass(frozen=True, slots=True)
class Difference:
    """`here` and `expected` are values of `name`; `live`: it can be set while the engine runs."""

    name: str
    here: Any
    expected: Any
    live: bool


def differences(expected: EngineConfig, state: EngineState) -> list[Difference]:
    """Everything that matters to the scheduler and differs, blocks first."""
    now = state.options
    settable = LIVE_OPTIONS if now.get("preset", "sensible") == "sensible" else LIVE
    found = []
    if expected.num_gpu_blocks_override is not None:
        found.append(Difference("blocks", state.num_blocks, expected.num_gpu_blocks_override, True))
    budget = expected.token_budget(state.meta.max_model_len)
    here = state.token_budget
    found.append(Difference("max_num_batched_tokens", here, budget, "max_num_batched_tokens" in settable))
    if expected.num_host_blocks_override is not None:
        found.append(Difference("host blocks", len(state.host_ref_count), expected.num_host_blocks_override, False))
    for name, option in options().items():
        if option.section == "engine" and name not in _MACHINE and name in now:
            found.append(Difference(name, now[name], getattr(expected, name), name in settable))
    return [difference for difference in found if difference.here != difference.expected]


def differences_text(found: list[Difference], *, setting: bool = False) -> str:
    """The differences in a sentence; with `setting`, only those that stay."""
    live = [] if setting else [difference_text(d) for d in found if d.live]
    fixed = [difference_text(d) for d in found if not d.live]
    parts = []
    if live:
        parts.append(f"expects {', '.join(live)}")
    if fixed:
        parts.append(f"cannot be set while it runs: {', '.join(fixed)}")
    return "; ".join(parts)


def difference_text(difference: Difference) -> str:
    """`admission first-chunk (here reserve-full-prompt)`."""
    return f"{difference.name} {_shown(difference.expected)} (here {_shown(difference.here)})"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def options_to_set(found: list[Difference]) -> tuple[int | None, tuple[SetOption, ...]]:
    """(blocks of the pool or None, options) that make the engine as expected, as far as it can be."""
    blocks = next((d.expected for d in found if d.name == "blocks"), None)
    named: Mapping[str, Any] = {d.name: d.expected for d in found if d.live and d.name != "blocks"}
    return blocks, tuple(SetOption(name, value) for name, value in named.items())


def unlike(look: Look, state: EngineState | None, virtual: bool) -> str:
    """In what the engine is not, now, as the scenario expects; empty when in nothing. Not cleaned."""
    if look.expects is None or state is None:
        return ""
    found = differences(look.expects, state)
    if not virtual:  # times were stretched with those of the jobs
        found = [d for d in found if d.name not in _STRETCHED or d.here is None or d.expected is None]
    return f"differs: {', '.join(map(difference_text, found))}" if found else ""
