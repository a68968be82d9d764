"""The person's folders on this platform. There may be none: a user id without an entry and without HOME has no home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def user_folder(kind: Literal["config", "log", "cache"]) -> Path | None:
    """Where vtop's files of that kind belong, made or not; None when the platform knows no such place."""
    import platformdirs

    try:
        match kind:
            case "config":
                return Path(platformdirs.user_config_dir("vtop", appauthor=False))
            case "log":
                return Path(platformdirs.user_log_dir("vtop", appauthor=False))
            case "cache":
                return Path(platformdirs.user_cache_dir("vtop", appauthor=False))
    except (RuntimeError, KeyError):  # no home
        return None


def typed_path(text: str) -> Path:
    """A path as a person types it, with ~; where nobody knows the home that it means, it stays as it is."""
    return Path(os.path.expanduser(text))
