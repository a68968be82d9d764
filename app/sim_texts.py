"""What is typed for a workload, as the parts of a WorkloadSpec. Every error names the option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vtop.engine.errors import BadValue
from vtop.engine.workload_gen import (
    Bursts,
    ClosedLoop,
    Fixed,
    Lengths,
    Lognormal,
    OpenArrivals,
    Poisson,
    Prefixes,
    Ramp,
    Uniform,
)


def numbers(option: str, text: str, kind: Callable[[str], Any] = float, sep: str = ",") -> list[Any]:
    """Numbers separated by `sep`. Raises BadValue."""
    try:
        return [kind(part) for part in text.split(sep) if part.strip()]
    except ValueError:
        raise BadValue(option, text, f"give numbers separated by {sep!r}") from None


def lengths(option: str, text: str) -> Lengths:
    """`128`, `32-512` or `lognormal:MEDIAN:SIGMA` (with `:LOW:HIGH`). Raises BadValue."""
    remedy = "give a number, LOW-HIGH, or lognormal:MEDIAN:SIGMA, optionally with :LOW:HIGH"
    try:
        if text.startswith("lognormal:"):
            median, sigma, *limits = text.split(":")[1:]
            return Lognormal(float(median), float(sigma), *(int(limit) for limit in limits))
        low, dash, high = text.partition("-")
        return Uniform(int(low), int(high)) if dash else Fixed(int(text))
    except BadValue as error:
        raise BadValue(option, text, f"{error.field}: {error.remedy}") from None
    except (ValueError, TypeError):
        raise BadValue(option, text, remedy) from None


def mix(option: str, text: str, kind: Callable[[str], Any], *, none: bool = False) -> list[tuple[Any, float]]:
    """`value=share,value=share`; a single value needs no share. Raises BadValue."""
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        value, sign, share = part.rpartition("=")
        if not sign:
            value, share = part, "1"
        try:
            found.append((None if none and value == "none" else kind(value), float(share)))
        except ValueError:
            raise BadValue(option, part, "give VALUE=SHARE, separated by commas") from None
    if not found:
        raise BadValue(option, text, "give VALUE=SHARE, separated by commas")
    return found


def arrivals(option: str, text: str, rate: float) -> OpenArrivals | ClosedLoop:
    """`poisson`, `bursts:ON:OFF`, `ramp:START:END:SECONDS` or `closed:CLIENTS:THINK`. Raises BadValue."""
    name, *parts = text.split(":")
    try:
        values = [float(part) for part in parts]
        match name, len(values):
            case "poisson", 0:
                return Poisson(rate)
            case "bursts", 2:
                return Bursts(rate, *values)
            case "ramp", 3:
                return Ramp(*values)
            case "closed", 1 | 2:
                return ClosedLoop(int(values[0]), *values[1:])
    except BadValue as error:
        raise BadValue(option if error.field != "rate" else "--rate", error.value, error.remedy) from None
    except ValueError:
        pass
    raise BadValue(option, text, "give poisson, bursts:ON:OFF, ramp:START:END:SECONDS or closed:CLIENTS[:THINK]")


def prefixes(option: str, text: str) -> Prefixes:
    """`COUNTxTOKENS`, as in 4x256, optionally with `@SHARE`. Raises BadValue."""
    sizes, _, share = text.partition("@")
    count, x, tokens = sizes.partition("x")
    try:
        if x:
            return Prefixes(int(count), int(tokens), float(share) if share else 1.0)
    except BadValue as error:
        raise BadValue(option, text, f"{error.field}: {error.remedy}") from None
    except ValueError:
        pass
    raise BadValue(option, text, "give COUNTxTOKENS, as in 4x256, optionally with @SHARE")


def writable(option: str, path: Path) -> Path:
    """The path of a file to write, whose folder exists. Raises BadValue."""
    if not path.parent.is_dir():
        raise BadValue(option, str(path), "there is no such folder; make it first")
    if path.is_dir():
        raise BadValue(option, str(path), "this is a folder; give a file")
    return path
