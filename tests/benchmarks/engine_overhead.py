"""Share of a step spent outside the model: schedule, prepare, sample, commit and events, per model and batch size.

    python tests/benchmarks/engine_overhead.py [--models tiny smollm2] [--sequences 1 16 64] [--steps 60]

All sequences decode (greedy, prompt of 32 tokens, end token ignored), Frames are folded as the app does. Medians over
steps; `share` is 1 - model / whole step, `rest` what lies between the timed parts (publishing the Frame, folding it).
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

from vtop.engine.config import EngineConfig
from vtop.engine.engine import LLMEngine
from vtop.engine.events import StepTimes
from vtop.engine.request import SamplingParams
from vtop.engine.state.fold import EngineState

PROMPT_TOKENS = 32
WARM_UP = 10


def measure(engine: LLMEngine, sequences: int, steps: int) -> dict[str, float]:
    """Median milliseconds of the parts of a step in which `sequences` sequences decode."""
    state = EngineState(engine.meta)
    engine.on_frame(state.apply)
    params = SamplingParams(temperature=0, max_tokens=steps + WARM_UP + 20, ignore_eos=True)
    for i in range(sequences):
        engine.add_request(f"r{i}", [5 + (i * 7 + j) % 900 for j in range(PROMPT_TOKENS)], params)
    rows: list[dict[str, float]] = []
    while len(rows) < steps + WARM_UP:
        began = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - began
        times = state.last_step.times
        if times is None or state.last_step.prefill_tokens or len(state.running) < sequences:
            continue
        parts = {name: getattr(times, name) for name in StepTimes.__struct_fields__}
        rows.append({**parts, "rest": whole - sum(parts.values()), "step": whole})
    engine.abort_request([f"r{i}" for i in range(sequences)])
    engine.step()
    engine.close()
    return {name: 1e3 * statistics.median(row[name] for row in rows[WARM_UP:]) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    table = Table("model", "seqs", title="milliseconds per decode step (medians)")
    columns = [*StepTimes.__struct_fields__, "rest", "step"]
    for name in [*columns, "outside the model", "tokens/s"]:
        table.add_column(name, justify="right")
    for model in options.models:
        for sequences in options.sequences:
            config = EngineConfig(model=model, num_gpu_blocks_override=sequences * 16, max_num_seqs=sequences)
            row = measure(LLMEngine.from_config(config), sequences, options.steps)
            share = 1 - row["model"] / row["step"]
            cells = [f"{row[name]:.2f}" for name in columns]
            table.add_row(model, str(sequences), *cells, f"{share:.1%}", f"{sequences / row['step'] * 1e3:.0f}")
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
