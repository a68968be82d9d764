"""What a recorded step expects against what our step did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def differences(
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
