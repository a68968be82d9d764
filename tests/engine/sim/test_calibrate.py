"""Calibration: coefficients that are known come back, noise and outliers or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vtop.app.commands.calibrate import calibrate as calibrate_file
from vtop.engine import events as ev
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.events.journal import Recorder, Recording
from vtop.engine.sim.calibrate import HELD_OUT_EVERY, Kind, StepSample, calibrate, fit, nonnegative, step_samples
from vtop.engine.sim.cards import Card, find_card
from vtop.engine.sim.cost_model import HingeCost, StepLoad
from vtop.engine.sim.shapes import model_shape
from vtop.engine.sim.simulator import Simulation, build
from vtop.engine.workload.jobs import Job, Workload

TRUE = HingeCost(
    c0=0.017, ct=3.7e-5, ch=5.2e-5, knee=192, cd=2.0e-4, ck=1.5e-6, ca=4e-7, swap_s_per_block=1e-3, cow_s_per_block=0.0
)


def _record(path: Path, jobs: int = 40, **options: object) -> Path:
    """A simulated run as a recording: requests of many lengths, one at a time at first, then many."""
    rng = random.Random(5)
    made, at = [], 0.0
    for i in range(jobs):
        at += rng.expovariate(0.5 if i < jobs // 3 else 20.0)
        made.append(Job(f"r{i}", at, rng.choice((20, 70, 150, 300, 500)), rng.randint(4, 60)))
    values = {"num_gpu_blocks_override": 400, "max_num_seqs": 12, "max_num_batched_tokens": 512, **options}
    config = EngineConfig(**values)  # type: ignore[arg-type]
    engine = build(Simulation(Workload("made", tuple(made)), config, Card("t", "test", model_shape("llama-8b"), TRUE)))
    recorder = Recorder(path, engine.meta)
    engine.on_frame(recorder.write)
    while engine.has_unfinished_requests():
        engine.step()
    recorder.close()
    return path


def _samples(path: Path) -> list[StepSample]:
    return step_samples(Recording(path))


def _noisy(samples: list[StepSample], noise: Callable[[int], float]) -> list[StepSample]:
    return [StepSample(s.load, s.seconds * noise(i), s.swap_seconds) for i, s in enumerate(samples)]


def test_loads_of_a_recording_are_those_of_the_plans(tmp_path: Path) -> None:
    """The virtual clock moved by exactly TRUE.seconds(load): any error of the tracker would show."""
    for name, options in (
        ("plain", {}),
        ("preempting", {"num_gpu_blocks_override": 50}),
        ("swapping", {"num_gpu_blocks_override": 50, "preemption_mode": "swap"}),
        ("v1", {"num_gpu_blocks_override": 50, "preset": "vllm-v1"}),
    ):
        samples = _samples(_record(tmp_path / name, **options))
        assert len(samples) > 100
        for sample in samples:
            load = sample.load
            whole = TRUE.seconds(StepLoad(load.tokens, load.decodes, load.context, load.area, copied=load.copied))
            assert sample.seconds == pytest.approx(whole, rel=1e-6), name
        assert (sum(s.load.swapped for s in samples) > 0) == (name == "swapping")


def test_known_coefficients_come_back(tmp_path: Path) -> None:
    found = calibrate(_samples(_record(tmp_path / "r", num_gpu_blocks_override=60, preemption_mode="swap")))
    assert found.held_out.mape < 0.002
    cost = found.cost
    assert cost.knee == TRUE.knee
    for name in ("c0", "ct", "ch", "cd", "ck", "ca", "swap_s_per_block"):
        assert getattr(cost, name) == pytest.approx(getattr(TRUE, name), rel=0.03), name


def test_noise_and_outliers(tmp_path: Path) -> None:
    """A fifth of the steps take 2 … 5 times as long, and all vary by 10 %: times stay within a few percent."""
    clean = _samples(_record(tmp_path / "r"))
    rng = random.Random(1)
    noisy = _noisy(clean, lambda i: rng.lognormvariate(0, 0.1) * (rng.uniform(2, 5) if rng.random() < 0.2 else 1.0))
    cost = fit(noisy)
    wrong = [abs(cost.seconds(s.load) / s.seconds - 1) for s in clean]
    assert sum(wrong) / len(wrong) < 0.08


def test_held_out_steps_are_of_every_kind(tmp_path: Path) -> None:
    samples = _samples(_record(tmp_path / "r"))
    found = calibrate(samples)
    assert set(found.by_kind) == set(Kind)
    assert found.fitted + found.held_out.steps == len(samples)
    for kind, errors in found.by_kind.items():
        assert errors.steps == sum(s.kind is kind for s in samples) // HELD_OUT_EVERY


def _loads(*loads: StepLoad) -> list[StepSample]:
    return [StepSample(load, TRUE.seconds(load), 0.0) for load in loads]


DECODES = _loads(*(StepLoad(d, d, d * c) for d in (1, 4, 8) for c in range(100, 800, 50)))


@pytest.mark.parametrize(
    ("samples", "missing"),
    [
        (DECODES[:10], "30 steps"),
        (_loads(*(StepLoad(4, 4, 400 + i * 20) for i in range(40))), "batch sizes"),
        (_loads(*(StepLoad(d, d, 100) for d in (1, 2, 3) for _ in range(20))), "contexts of different lengths"),
        (DECODES, "prompt chunks"),
        (DECODES + _loads(*(StepLoad(512, 0, 0, 512 * 256.0, 512) for _ in range(5))), "prompt chunks"),
    ],
)
def test_what_is_missing_is_told(samples: list[StepSample], missing: str) -> None:
    with pytest.raises(BadValue, match=missing):
        calibrate(samples, "some.vtop.jsonl.gz")


def test_nonnegative_least_squares() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        rows, wanted = rng.normal(size=(30, 6)) * 10.0 ** rng.integers(-6, 6, size=6), rng.normal(size=30)
        x = nonnegative(rows, wanted)
        gradient = rows.T @ (wanted - rows @ x) / np.linalg.norm(rows, axis=0)
        assert (x >= 0).all()
        assert (gradient <= 1e-8).all(), "no coefficient would be better if larger"
        assert np.abs(gradient[x > 0]).max(initial=0.0) <= 1e-8, "nor those above 0 if smaller"
    exact = np.array([0.5, 0.0, 2.0, 0.0, 1.0, 3.0])
    assert nonnegative(rows, rows @ exact) == pytest.approx(exact)
    assert nonnegative(np.zeros((5, 2)), np.ones(5)) == pytest.approx(np.zeros(2))


def test_failed_steps_are_no_samples(tmp_path: Path) -> None:
    path = _record(tmp_path / "r", jobs=3)
    recording = Recording(path)
    recorder = Recorder(tmp_path / "failed", recording.meta)
    for frame in recording.frames():
        frame.events.append(ev.StepFailed("execute", "gone", []))
        recorder.write(frame)
    recorder.close()
    assert _samples(path) and not _samples(tmp_path / "failed")


def test_the_command_writes_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _record(tmp_path / "run.vtop.jsonl.gz")
    assert calibrate_file(path, console=Console(width=100)) == 0
    assert "decode only" in capsys.readouterr().out
    card = find_card(str(tmp_path / "run.toml"))
    assert card.name == "run" and card.shape.name == "llama-8b"
    load = StepLoad(300, 10, 4000, 290 * 145.0, 290)
    assert card.cost.seconds(load) == pytest.approx(TRUE.seconds(load), rel=0.01)
    with pytest.raises(BadValue, match="--output"):
        calibrate_file(path, tmp_path / "none" / "card.toml")
