"""What lies in the packages is installed with them: code by the list of packages, data by the patterns beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
FOLDERS = ("app", "engine", "kernels", "themes")


def test_every_file_of_the_packages_is_installed() -> None:
    installed: set[Path] = set()
    for package in SETTINGS["packages"]:
        folder = ROOT.joinpath(*package.split(".")[1:])
        installed.update(folder.glob("*.py"))
        for pattern in SETTINGS["package-data"].get(package, ()):
            installed.update(folder.glob(pattern))
    there = {
        path
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert len(there) > 200
    assert sorted(str(path.relative_to(ROOT)) for path in there - installed) == []
