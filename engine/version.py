"""The version, in one place that imports nothing heavy."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("vtop-llm")
except PackageNotFoundError:  # run from a folder that was never installed
    VERSION = "0+unknown"
