"""The simulator: a workload, a configuration and a card; the engine's own scheduler on a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from vtop.engine.clock import ManualClock
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue, Deadlock
from vtop.engine.events import Frame, Note
from vtop.engine.executor import EngineFacts
from vtop.engine.fields import MOST_BLOCKS
from vtop.engine.output.length import LengthOutput
from vtop.engine.sim.cards import Card
from vtop.engine.sim.virtual_executor import VirtualExecutor
from vtop.engine.state.ledger import Ledger
from vtop.engine.state.measures import Limits, Measures, measures
from vtop.engine.workload.engine import WorkloadEngine
from vtop.engine.workload.jobs import Workload

DEFAULT_SWAP_SPACE = 4.0  # GiB, when the preemption mode may swap
PROGRESS_EVERY = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Simulation:
    """What to simulate. `until` ends it after so many virtual seconds, whatever is left."""

    workload: Workload
    config: EngineConfig
    card: Card
    until: float | None = None
    keep_gaps: bool = False
    keep_spans: bool = False


@dataclass(slots=True)
class SimResult:
    """A simulated run. `wall` is real seconds."""

    ledger: Ledger
    wall: float

    @property
    def notes(self) -> list[Note]:
        """Warnings and errors of the engine, such as a user's policy that fails."""
        return self.ledger.notes

    def measures(self, limits: Limits | None = None, low_first: bool | None = None) -> Measures:
        return measures(self.ledger, limits, low_first)


def build(simulation: Simulation, time_scale: float | None = None) -> WorkloadEngine:
    """The engine of a simulation, ready to be stepped. Raises BadValue when pools or lengths do not fit."""
    config, card = simulation.config, simulation.card
    num_blocks = device_blocks(config, card)
    host = host_blocks(config, card)
    clock = ManualClock()
    executor = VirtualExecutor(card.cost, clock, num_blocks, host, config.seed)
    facts = EngineFacts(
        model=card.shape.name,
        device=f"virtual {card.device}",
        dtype="bfloat16",
        backend="cost model",
        max_model_len=config.max_model_len or card.shape.max_model_len,
        vocab_size=None,
        kv_note=f"{num_blocks} blocks of {config.block_size} tokens",
        num_host_blocks=host,
    )
    return WorkloadEngine(
        executor,
        replace(config, num_gpu_blocks_override=num_blocks),
        simulation.workload,
        time_scale=time_scale,
        until=simulation.until,
        clock=clock,
        outputs=LengthOutput(),
        facts=facts,
    )


def device_blocks(config: EngineConfig, card: Card) -> int:
    """Blocks of the device pool: as many as were asked for, or as fit on the card. Raises BadValue."""
    num_blocks = config.num_gpu_blocks_override or card.blocks(config.block_size, config.gpu_memory_utilization)
    if num_blocks is None:
        remedy = f"card {card.name} does not say how much memory there is; give a number of blocks"
        raise BadValue("num_gpu_blocks_override", None, remedy)
    return num_blocks


def host_blocks(config: EngineConfig, card: Card) -> int:
    """Blocks of the host pool; none when nobody would be swapped."""
    if config.num_host_blocks_override is not None:
        return config.num_host_blocks_override
    if config.preemption_mode == "recompute":
        return 0
    space = DEFAULT_SWAP_SPACE if config.swap_space is None else config.swap_space
    blocks = int(space * 2**30 // (card.shape.kv_bytes_per_token * config.block_size))
    if blocks > MOST_BLOCKS:
        remedy = f"holds {blocks:,} blocks, at most {MOST_BLOCKS:,} are simulated; give less"
        raise BadValue("swap_space", space, remedy)
    return blocks


def ended(ledger: Ledger) -> int:
    """Requests of the workload that are over, refused ones too."""
    return ledger.totals.finished.total() + ledger.totals.refused


def simulate(
    simulation: Simulation,
    progress: Callable[[int, int], None] | None = None,
    on_frame: Callable[[Frame], None] | None = None,
) -> SimResult:
    """Run to the end. `progress(requests ended, requests of the workload)` is called a few times per second.

    A deadlock ends the run with an error among the notes of the result: what was measured so far is kept.
    """
    engine = build(simulation)
    ledger = Ledger(engine.meta, keep_gaps=simulation.keep_gaps, keep_spans=simulation.keep_spans)
    engine.on_frame(ledger.apply)
    if on_frame is not None:
        engine.on_frame(on_frame)
    total = len(simulation.workload.jobs)
    started = told = time.monotonic()
    until = simulation.until
    while engine.has_unfinished_requests() and (until is None or engine.elapsed < until):
        try:
            engine.step()
        except Deadlock as error:
            engine.note(Note("error", str(error)))
            break
        if progress is not None and (now := time.monotonic()) - told >= PROGRESS_EVERY:
            told = now
            progress(ended(ledger), total)
    engine.flush()
    if progress is not None:
        progress(ended(ledger), total)
    return SimResult(ledger, time.monotonic() - started)
