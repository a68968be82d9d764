"""Conformance: recorded decisions of other engines' schedulers against our presets.

A file of cases is YAML; its schema is written at its head. Cases of kind `steps` with semantics v0, v1 or both are run;
tables and other engines' cases count as skipped, and so does what `conform_skips.toml` lists with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtop.engine.conform.case import run_case
from vtop.engine.conform.setup import CaseError, CaseSetup
from vtop.engine.errors import BadValue, VtopError
from vtop.engine.user_files import read_toml, read_yaml

SKIPS = Path(__file__).with_name("skips.toml")
SKIPPABLE = ("quirk", "error")


class BadCaseFile(VtopError):
    """A file of cases cannot be used; one line says why."""


@dataclass(frozen=True, slots=True)
class FailedStep:
    """One step of one case that did not go as recorded."""

    case: str
    variant: str
    step: int
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.case} [{self.variant}] step {self.step}: expected {self.expected}; got {self.got}"


@dataclass(slots=True)
class ConformReport:
    """Cases by outcome. `skipped` says why, by id."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: list[FailedStep] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed

    def lines(self) -> list[str]:
        """One line per failing step, and the counts."""
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return [*map(str, self.failures), counts]


def run_file(path: Path) -> ConformReport:
    """Run the cases of a file. Raises BadCaseFile when it cannot be read or holds no cases."""
    try:
        content = read_yaml("cases", path, "a YAML file of cases")
    except BadValue as error:
        raise BadCaseFile(f"{path}: {error.remedy}") from error
    cases = content.get("scenarios") if isinstance(content, Mapping) else None
    if not isinstance(cases, list):
        raise BadCaseFile(f"{path}: no list of `scenarios`")
    for number, case in enumerate(cases, 1):
        if not isinstance(case, Mapping) or not isinstance(case.get("id"), str):
            raise BadCaseFile(f"{path}: scenario {number} has no id")
    return run_cases(cases)


def run_cases(cases: list[Mapping[str, Any]]) -> ConformReport:
    """Run cases that are read already."""
    report = ConformReport()
    listed = _listed_skips()
    for case in cases:
        name = case["id"]
        reason = _why_skip(case, listed)
        if reason is not None:
            report.skipped[name] = reason
            continue
        failures = [failure for setup in _variants(case) for failure in _run(case, *setup)]
        report.failures += failures
        (report.failed if failures else report.passed).append(name)
    return report


def _why_skip(case: Mapping[str, Any], listed: Mapping[str, str]) -> str | None:
    if case.get("kind") != "steps":
        return f"a table of kind {case.get('kind')}"
    if case.get("semantics") not in ("v0", "v1", "both"):
        return f"semantics of {case.get('semantics')}"
    reason = listed.get(case["id"])
    if reason is not None and not any(tag in SKIPPABLE for tag in case.get("tags", ())):
        return None  # only quirks and errors of the original may be left out
    return reason


def _variants(case: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """(semantics, chunked) under which a case holds."""
    semantics = ("v0", "v1") if case["semantics"] == "both" else (case["semantics"],)
    chunked = case.get("config", {}).get("chunked", False)
    if chunked != "either":
        return [(s, bool(chunked)) for s in semantics]
    # V0 chunked is left out: it admits beside a preemption, so cases about that hold for V0 without chunking only
    return [(s, c) for s in semantics for c in ((False,) if s == "v0" else (False, True))]


def _run(case: Mapping[str, Any], semantics: str, chunked: bool) -> list[FailedStep]:
    variant = semantics + (" chunked" if chunked else "")
    try:
        setup = CaseSetup(semantics, str(case.get("engine", "")), case["config"], case["requests"], chunked)
        failed = run_case(setup, case["steps"], only_v1=case["semantics"] == "v1")
    except (CaseError, KeyError, TypeError, ValueError, AttributeError) as error:
        failed = [(0, "a case that can be run", f"{type(error).__name__}: {_line(error)}")]
    return [FailedStep(case["id"], variant, *failure) for failure in failed]


def _listed_skips() -> dict[str, str]:
    return dict(read_toml("cases", SKIPS).get("skip", {}))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
