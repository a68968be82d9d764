"""Conformance: recorded decisions of other engines' schedulers against our presets.

A file of cases is YAML; its schema is written at its head. Cases of kind `steps` with semantics v0, v1 or both are run;
tables and other engines' cases count as skipped, and so does what `skips.toml` lists with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtop.engine.conform.case import CaseRun
from vtop.engine.conform.faithful_v0 import PresetStopped
from vtop.engine.conform.setup import CaseError, CaseSetup
from vtop.engine.errors import BadValue, VtopError
from vtop.engine.user_files import read_toml, read_yaml

SKIPS = Path(__file__).with_name("skips.toml")
SKIPPABLE = ("quirk", "error")
_EMPTY: dict[str, Any] = {
    "cached": {},
    "preempted": [],
    "swapped_out": [],
    "swapped_in": [],
    "swapped": [],
    "ignored": [],
    "finished": {},
    "copies": 0,
}
"""What a key that is left out means; other keys are checked when they are there."""

_UNORDERED = ("preempted", "resumed", "swapped_out", "swapped_in", "ignored")
_KEYS = {"run", "order", "waiting", "running", "resumed", "free", "free_cpu", "free_after", "blocks", "ids", *_EMPTY}
_ID_KEYS = {"tables", "swap_out", "swap_in", "copies"}

Difference = tuple[str, str]


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
        failed = _run_case(setup, case["steps"], only_v1=case["semantics"] == "v1")
    except (CaseError, KeyError, TypeError, ValueError, AttributeError) as error:
        failed = [(0, "a case that can be run", f"{type(error).__name__}: {_line(error)}")]
    return [FailedStep(case["id"], variant, *failure) for failure in failed]


def _listed_skips() -> dict[str, str]:
    return dict(read_toml("cases", SKIPS).get("skip", {}))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _run_case(setup: CaseSetup, steps: list[Mapping[str, Any]], *, only_v1: bool) -> list[tuple[int, str, str]]:
    """(step from 1, expected, got) of each step that differs; an error of the case itself ends it."""
    failed: list[tuple[int, str, str]] = []
    run: CaseRun | None = None
    for number, step in enumerate(steps, 1):
        expect = step.get("expect", {})
        try:
            run = run or CaseRun(setup)
            seen = run.step(step.get("do", {}))
        except PresetStopped as stopped:
            if "error" not in expect:
                failed.append((number, "no error", f"{stopped.kind}: {stopped}"))
            elif (expect["error"] == "internal_assertion") != (stopped.kind == "internal_assertion"):
                failed.append((number, f"error {expect['error']}", f"error {stopped.kind}"))
            return failed
        except Exception as error:  # whatever goes wrong, the other cases are still run
            failed.append((number, "a step", f"{type(error).__name__}: {error}"))
            return failed
        wrong = _differences(expect, seen.values, seen.ids, only_v1=only_v1)
        if wrong:
            failed.append((number, "; ".join(w[0] for w in wrong), "; ".join(w[1] for w in wrong)))
    return failed


def _differences(
    expect: Mapping[str, Any], seen: Mapping[str, Any], ids: Mapping[str, Any], *, only_v1: bool
) -> list[Difference]:
    """(expected, got) of everything that differs. A key that is not known differs too, so none is ever passed over."""
    found: list[Difference] = []
    if "error" in expect:
        return [(f"error {expect['error']}", "no error")]
    wanted = {**_EMPTY, **expect}
    if "run" in expect:
        wanted.setdefault("blocks", {})
    if "free" in expect:
        wanted.setdefault("free_after", expect["free"])
    if only_v1:  # cases for both engines do not tell it
        wanted.setdefault("resumed", [])
    for key, value in wanted.items():
        if key not in _KEYS:
            found.append((f"{key} {value}", f"{key} is not known to this runner"))
        elif key == "ids":
            found += _id_differences(value, ids)
        else:
            got = _comparable(key, seen[key], value, seen)
            if got != _sorted(key, value):
                found.append((f"{key} {_short(value)}", f"{key} {_short(got)}"))
    return found


def _comparable(key: str, got: Any, wanted: Any, seen: Mapping[str, Any]) -> Any:
    if key == "finished":  # who was aborted is told only where the case says so
        named = wanted if isinstance(wanted, Mapping) else {}
        return {**got, **{name: "abort" for name in seen["aborted"] if name in named}}
    return _sorted(key, got)


def _sorted(key: str, value: Any) -> Any:
    return sorted(value) if key in _UNORDERED else value


def _id_differences(wanted: Mapping[str, Any], ids: Mapping[str, Any]) -> list[Difference]:
    found = []
    for key, value in wanted.items():
        if key not in _ID_KEYS:
            found.append((f"ids.{key} {value}", f"ids.{key} is not known to this runner"))
        elif ids[key] != value:
            found.append((f"ids.{key} {_short(value)}", f"ids.{key} {_short(ids[key])}"))
    return found


def _short(value: Any) -> str:
    return str(value).replace("'", "")
