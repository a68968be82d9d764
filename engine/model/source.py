"""Where models come from: names, folders, files, the hub, and our own cache. Imports no torch.

The cache is the platform's cache folder, `vtop/models/<name>`; `VTOP_MODELS` names another place. A model is put
together in a folder of its own beside it and renamed when it is whole, so a broken download leaves nothing behind and
two processes cannot mix their files.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

from vtop.engine.errors import BadValue, ModelRefused
from vtop.engine.model.gguf import HUB_ID as SMOLLM2_HUB_ID
from vtop.engine.model.gguf import fetch_wheel
from vtop.engine.user_files import read_json, typed_path, user_folder

Progress = Callable[[str, int, int | None], None]
"""progress(stage, done, total): what is being done, and how far in its own units; total None is unknown."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """A progress that tells nobody."""


class SourceKind(StrEnum):
    FOLDER = "folder"
    GGUF = "gguf"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What to load. location: a folder, a .gguf file or a hub id, by `kind`. name: for people."""

    name: str
    kind: SourceKind
    location: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of `vtop models`. `size` is in bytes on disk, 0 when not installed."""

    name: str
    location: str
    size: int
    installed: bool
    removable: bool


def resolve(name: str, *, progress: Progress = no_progress) -> ModelSource:
    """Find what `--model name` means, fetching `smollm2` when it is not here yet.

    Raises BadValue or ModelRefused with a remedy. A hub id is not looked up here; loading does that.
    """
    if name == "tiny":
        return ModelSource("tiny", SourceKind.FOLDER, str(_tiny_folder()))
    if name == "smollm2":
        return _smollm2(progress)
    path = typed_path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise BadValue("model", name, "no such file")
        return ModelSource(path.stem, SourceKind.GGUF, str(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            ggufs = sorted(path.glob("*.gguf"))
            if len(ggufs) == 1:
                return ModelSource(path.name, SourceKind.GGUF, str(ggufs[0]))
            raise BadValue("model", name, "the folder has no config.json; give the folder of a transformers model")
        return ModelSource(path.resolve().name, SourceKind.FOLDER, str(path))
    if _looks_local(name):
        raise BadValue("model", name, "no such folder; give tiny, smollm2, a folder, a .gguf file or a hub id")
    return ModelSource(name, SourceKind.HUB, name)


def models_folder() -> Path:
    """Where fetched models are kept. Raises BadValue when there is no such place."""
    override = os.environ.get("VTOP_MODELS")
    if override:
        return typed_path(override)
    folder = user_folder("cache")
    if folder is None:
        raise BadValue("VTOP_MODELS", None, "this user has no home folder; name a folder to keep models in")
    return folder / "models"


def list_models() -> list[ModelEntry]:
    """The models that have a name of their own, and what was pulled from the hub."""
    tiny = _tiny_path()
    entries = [ModelEntry("tiny", str(tiny), _size(tiny), (tiny / "config.json").is_file(), removable=False)]
    try:
        smollm2 = models_folder() / "smollm2"
    except BadValue:  # no place for others
        return entries
    here = (smollm2 / "config.json").is_file()
    entries.append(ModelEntry("smollm2", str(smollm2), _size(smollm2), here, removable=here))
    for hub_id in _pulled():
        folder = models_folder() / _folder_name(hub_id)
        entries.append(ModelEntry(hub_id, str(folder), _size(folder), installed=True, removable=True))
    return entries


def pull(name: str, *, progress: Progress = no_progress) -> ModelEntry:
    """Fetch a model into our cache: `smollm2` or a hub id. Raises BadValue when it cannot be had."""
    source = resolve(name, progress=progress)
    if source.kind is SourceKind.HUB:
        if name not in _pulled():
            folder = models_folder() / _folder_name(name)
            with building(folder) as work:
                _snapshot(name, work, progress, timeout=30.0)
                (work / _ORIGIN).write_text(json.dumps({"hub_id": name}))
    elif name not in ("tiny", "smollm2"):
        raise BadValue("model", name, "it is on this machine already; only smollm2 and hub ids can be pulled")
    return next(entry for entry in list_models() if entry.name == name)


def remove(name: str) -> int:
    """Delete a fetched model from our cache; returns the bytes given back. Raises BadValue for anything else."""
    if name == "tiny":
        raise BadValue("model", name, "the bundled model belongs to the program and stays")
    entry = next((entry for entry in list_models() if entry.name == name and entry.removable), None)
    if entry is None:
        removable = [entry.name for entry in list_models() if entry.removable]
        raise BadValue("model", name, f"not in the cache; there is {', '.join(removable) or 'nothing to remove'}")
    shutil.rmtree(entry.location)
    return entry.size


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A fresh folder beside `target` that becomes it when the block ends well; a second one throws its own away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{target.name}-*"):  # of a process that was killed
        if time.time() - left.stat().st_mtime > 86400:
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield work
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():  # something broken is in the way
                shutil.rmtree(target, ignore_errors=True)
                work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


_ORIGIN = "vtop-origin.json"


def _smollm2(progress: Progress) -> ModelSource:
    folder = models_folder() / "smollm2"
    if not (folder / "config.json").is_file():
        with building(folder) as work:
            try:
                _snapshot(SMOLLM2_HUB_ID, work, progress, timeout=5.0)
            except BadValue as unreachable:
                shutil.rmtree(work)
                work.mkdir()
                fetch_wheel(work, progress, why=unreachable.remedy)
    return ModelSource("smollm2", SourceKind.FOLDER, str(folder))


def _snapshot(hub_id: str, folder: Path, progress: Progress, timeout: float) -> None:
    """Download what a model needs from the hub, file by file; progress is in bytes. Any failure is a BadValue."""
    stage = f"fetching {hub_id} from the hub"
    progress(stage, 0, None)
    try:
        from huggingface_hub import HfApi, hf_hub_download

        # A short question first: a download waits and retries for half a minute when there is no network.
        info = HfApi(endpoint=_endpoint()).model_info(hub_id, files_metadata=True, timeout=timeout)
        files = {file.rfilename: file.size or 0 for file in info.siblings or () if _needed(file.rfilename)}
        if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
            raise FileNotFoundError("it has no config.json with safetensors weights")
        done = 0
        with _quiet_hub():
            for name, size in files.items():
                progress(stage, done, sum(files.values()))
                hf_hub_download(hub_id, name, local_dir=folder, endpoint=_endpoint(), revision=info.sha)
                done += size
        progress(stage, done, done)
    except Exception as error:  # the clients have many error types, and all mean: not from here
        text = " ".join(str(error).split())[:120] or type(error).__name__
        remedy = f"cannot be fetched from the hub ({text}); check the name and the network"
        raise BadValue("model", hub_id, remedy) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _needed(name: str) -> bool:
    """Files at the top of a repository that loading reads: not other formats, nor the same weights once more."""
    if "/" in name or name.startswith("consolidated"):
        return False
    return name.endswith((".json", ".safetensors", ".model", ".txt", ".jinja")) or name.startswith("LICENSE")


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """No progress bars of the hub's client meanwhile: they would be drawn over the app."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def hub_reachable(timeout: float = 5.0) -> bool:
    """Whether the hub answers at all. Its own client would retry for half a minute before it says no."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    try:
        from huggingface_hub.utils import get_session

        get_session().head(_endpoint(), timeout=timeout)
    except Exception:  # whatever it is, nothing can be fetched
        return False
    return True


def pulled_folder(hub_id: str) -> Path | None:
    """Where a pulled hub model lies, if it was pulled."""
    folder = models_folder() / _folder_name(hub_id)
    return folder if (folder / _ORIGIN).is_file() else None


def _pulled() -> list[str]:
    ids: list[str] = []
    for origin in sorted(models_folder().glob(f"*/{_ORIGIN}")):
        try:
            ids.append(str(read_json("models", origin)["hub_id"]))
        except (BadValue, KeyError, TypeError):
            continue
    return ids


def _folder_name(hub_id: str) -> str:
    return "hub--" + hub_id.replace("/", "--")


def _looks_local(name: str) -> bool:
    return not name or name.startswith((".", "/", "~", os.sep)) or name.count("/") != 1 or name.endswith("/")


def _tiny_path() -> Path:
    return Path(str(resources.files("vtop.engine.model"))) / "tiny"


def _tiny_folder() -> Path:
    folder = _tiny_path()
    if not (folder / "config.json").is_file():
        raise ModelRefused("tiny", "the bundled model is missing from this installation; reinstall, or give smollm2")
    return folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
