"""What is wrong with a command line, in words of the command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from vtop.engine.errors import BadValue


def stray(command: Sequence[str], tokens: Sequence[str], given: Sequence[str], commands: Sequence[str]) -> BadValue:
    """Of what was `given`, `tokens` are left over after `command` (empty: none was named)."""
    first = tokens[0]
    if command:
        name = " ".join(("vtop", *command))
        remedy = f"`{name}` takes no such value; quote what belongs together, or see `{name} --help`"
        return BadValue("value", first, remedy)
    if first in commands:
        return BadValue("command", first, f"it comes before its options: vtop {first} ...")
    if first != given[0]:
        return BadValue("value", first, "no option takes it; quote what belongs together, or see `vtop --help`")
    close = difflib.get_close_matches(first, commands, 1, 0.5)
    remedy = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(commands)}; see `vtop --help`"
    return BadValue("command", first, remedy)
