"""What a scheduling policy is called: names joined by `+`, from the most to the least significant.

Kept apart from the policies, so that the options can be checked without importing or loading any of them.
"""

from __future__ import annotations

import math

from vtop.engine.errors import BadValue

OPTION = "scheduling_policy"
POLICY_NAMES = ("fcfs", "priority", "fair", "deadline", "sjf", "mlfq")
FILE_MARK = ".py:"
NOT_FROM_DATA = (
    "it names a file of code; such a policy comes from the command line or the settings only, as --scheduling-policy"
)
LIGHTEST, HEAVIEST = 1e-6, 1e6  # weights with which counters of service stay finite


def parse_spec(spec: object) -> tuple[str, ...]:
    """The names in a policy, e.g. ("priority", "fair"); a user's own is FILE.py:Class. Raises BadValue.

    A file is not looked at here. Its path cannot hold a `+`.
    """
    if not isinstance(spec, str) or not spec.strip():
        raise BadValue(OPTION, spec, f"choose among {', '.join(POLICY_NAMES)}, or give FILE.py:Class")
    names = tuple(name.strip() for name in spec.split("+"))
    for name in names:
        if name in POLICY_NAMES:
            continue
        path, mark, class_name = name.rpartition(FILE_MARK)
        if not mark or not path or not class_name.isidentifier():
            raise BadValue(OPTION, spec, f"{name!r}: choose among {', '.join(POLICY_NAMES)}, or give FILE.py:Class")
    if len(set(names)) < len(names):
        raise BadValue(OPTION, spec, "name each policy once")
    if "fcfs" in names[:-1]:
        raise BadValue(OPTION, spec, "put fcfs last: it leaves nothing for the ones after it to decide")
    return names


def parse_weights(text: str) -> dict[str, float]:
    """Weights of groups from "a=2,b=0.5"; groups not named weigh 1. Raises BadValue."""
    weights: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        group, _, number = entry.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not group or not LIGHTEST <= weight <= HEAVIEST:
            remedy = f"write group=weight with a weight from {LIGHTEST:g} to {HEAVIEST:g}, above 0, as in a=2,b=1"
            raise BadValue("group_weights", text, f"{entry!r}: {remedy}")
        if group in weights:
            raise BadValue("group_weights", text, f"group {group!r} is named twice")
        weights[group] = weight
    return weights
