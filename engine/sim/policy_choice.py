"""Policies to compare, as they are typed: `fcfs,priority:aging_rate=1,fair:group_weights="a=2,b=1"`.

Commas part the policies, colons their options. Between double quotes both are plain text, as in CSV: `""` is a quote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from vtop.engine.config import EngineConfig, check_option
from vtop.engine.errors import BadValue
from vtop.engine.policy_spec import FILE_MARK
from vtop.engine.sched.live import from_text

_NOT_OF_A_POLICY = {
    "scheduling_policy": "the name before the first colon is the policy",
    "seed": "all policies get the same requests; give --seed or --seeds",
}
_FILE_END = FILE_MARK.removesuffix(":")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with options of its own, as in priority:aging_rate=1; `label` is how it was typed."""

    label: str
    options: dict[str, Any]

    def apply(self, config: EngineConfig, given: Mapping[str, Any] | None = None) -> EngineConfig:
        """The configuration with this policy. Raises BadValue.

        `given` is what `config` was made of: with it, a preset among the options sets what nobody gave.
        """
        return replace(config, **self.options) if given is None else EngineConfig(**{**given, **self.options})


def parse_policies(text: str) -> list[PolicyChoice]:
    """`a,b+c,a:option=value:option="value,value"`. Raises BadValue."""
    if text.count('"') % 2:
        raise BadValue("--policies", text, 'a " is not closed; inside of quotes write "" for one')
    choices: list[PolicyChoice] = []
    for label in filter(None, (part.strip() for part in _split(text, ","))):
        parts = [_unquoted(part) for part in _split(label, ":")]
        # the colon of FILE.py:Class begins no option
        names = max((at for at, part in enumerate(parts[:-1]) if part.endswith(_FILE_END)), default=-1) + 2
        name = ":".join(parts[:names])
        if "=" in name and FILE_MARK not in name:
            remedy = 'begin with a policy; a value that holds commas goes in quotes, as in fair:group_weights="a=2,b=1"'
            raise BadValue("--policies", label, remedy)
        options: dict[str, Any] = {"scheduling_policy": name}
        for setting in parts[names:]:
            key, value = _option_of(setting)
            options[key] = value
        if any(choice.label == label for choice in choices):
            # the same run again would count as another seed, and make an interval of no width
            raise BadValue("--policies", text, f"{label} is given twice; leave one out")
        choices.append(PolicyChoice(label, options))
    if not choices:
        raise BadValue("--policies", text, "give names of policies, as in fcfs,priority,fair")
    return choices


def _option_of(setting: str) -> tuple[str, Any]:
    key, sign, value = setting.partition("=")
    key = key.strip().replace("-", "_")
    if not sign:
        raise BadValue("--policies", setting, "give NAME:option=value, as in priority:aging_rate=1")
    known = [f.name for f in fields(EngineConfig)]
    if key not in known:
        close = get_close_matches(key, known, n=1)
        nearest = f"; did you mean {close[0]}?" if close else ""
        raise BadValue("--policies", setting, f"there is no option {key}{nearest}")
    if key in _NOT_OF_A_POLICY:
        raise BadValue("--policies", setting, _NOT_OF_A_POLICY[key])
    found = from_text(key, value.strip())
    try:
        check_option(key, found)
    except BadValue as error:
        raise BadValue("--policies", setting, error.remedy) from None
    return key, found


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that no quotes hold; the quotes stay."""
    parts, quoted = [""], False
    for character in text:
        quoted ^= character == '"'
        if character == separator and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _unquoted(text: str) -> str:
    pieces = text.split('"')  # every other one was in quotes; nothing between two of these is a doubled quote
    last = len(pieces) - 1
    return "".join('"' if not piece and at % 2 == 0 and 0 < at < last else piece for at, piece in enumerate(pieces))
