"""What is typed for a workload, as the parts of a WorkloadSpec. Every error names the option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from vtop.engine.errors import BadValue
from vtop.engine.workload.distributions import (
    Bursts,
    ClosedLoop,
    Fixed,
    Lengths,
    Lognormal,
    OpenArrivals,
    Poisson,
    Ramp,
    Uniform,
)
from vtop.engine.workload.generate import Prefixes
from vtop.engine.workload.jobs import MOST_SCALE

MOST_TOKENS = 10_000_000  # of a prompt or an output
MOST_TURNS = 1_000  # of a session; every prompt repeats the turns before
MOST_REQUESTS = 10_000_000
MOST_TOTAL = 10**11  # tokens of a whole workload: weeks of computing
LEAST_TIME, MOST_TIME = 1e-6, 1e9  # seconds, and requests per second
MOST_SHARE = 1e9


def numbers(option: str, text: str, kind: Callable[[str], Any] = float, sep: str = ",") -> list[Any]:
    """Numbers separated by `sep`. Raises BadValue."""
    try:
        return [kind(part) for part in text.split(sep) if part.strip()]
    except ValueError:
        raise BadValue(option, text, f"give numbers separated by {sep!r}") from None


def ratio(option: str, text: str) -> float:
    """A number or a fraction, as in 1/16: above 0, at most MOST_SCALE. Raises BadValue."""
    above, slash, below = text.partition("/")
    try:  # floats, since a fraction of whole numbers may have any number of digits
        value = float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        raise BadValue(option, text, "give a number or a fraction, as in 1/16") from None
    if not 0 < value <= MOST_SCALE:
        raise BadValue(option, text, f"give more than 0 and at most {MOST_SCALE:,}, as in 1/16")
    return value


def requests(option: str, value: int) -> int:
    """A number of requests. Raises BadValue."""
    if not 1 <= value <= MOST_REQUESTS:
        raise BadValue(option, value, f"give 1 to {MOST_REQUESTS:,}")
    return value


def check_total(option: str, count: int, *tokens: Lengths) -> None:
    """Raise BadValue when so many requests with these lengths are more tokens than anybody can wait for."""
    total = count * sum(length.mean for length in tokens)
    if total > MOST_TOTAL:
        raise BadValue(option, count, f"makes about {total:.1e} tokens; give at most {MOST_TOTAL:.0e} in all")


def lengths(option: str, text: str, most: int = MOST_TOKENS) -> Lengths:
    """`128`, `32-512` or `lognormal:MEDIAN:SIGMA` (with `:LOW:HIGH`), nothing above `most`. Raises BadValue."""
    remedy = "give a number, LOW-HIGH, or lognormal:MEDIAN:SIGMA, optionally with :LOW:HIGH"
    try:
        if text.startswith("lognormal:"):
            median, sigma, *limits = text.split(":")[1:]
            drawn = Lognormal(float(median), float(sigma), *(int(limit) for limit in limits))
            if len(limits) < 2:  # no high was given
                drawn = replace(drawn, high=min(drawn.high, most))
            made, highest = cast(Lengths, drawn), max(drawn.median, drawn.high)
        else:
            low, dash, high = text.partition("-")
            made = Uniform(int(low), int(high)) if dash else Fixed(int(text))
            highest = int(high) if dash else int(text)
    except BadValue as error:
        raise BadValue(option, text, f"{error.field}: {error.remedy}") from None
    except (ValueError, TypeError, OverflowError):
        raise BadValue(option, text, remedy) from None
    if highest > most:
        raise BadValue(option, text, f"give at most {most:,}")
    return made


def as_number(text: str) -> float:
    """A number as it was written, a whole one as an int. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        return float(text)


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
        if not 0 <= found[-1][1] <= MOST_SHARE:
            raise BadValue(option, part, f"give a share from 0 to {MOST_SHARE:,.0f}")
        value_read = found[-1][0]
        if isinstance(value_read, (int, float)) and not abs(value_read) <= 2**53:  # true for NaN
            raise BadValue(option, part, "give numbers of at most 53 bits before the point")
    if not found:
        raise BadValue(option, text, "give VALUE=SHARE, separated by commas")
    return found


def arrivals(option: str, text: str, rate: float) -> OpenArrivals | ClosedLoop:
    """`poisson`, `bursts:ON:OFF`, `ramp:START:END:SECONDS` or `closed:CLIENTS:THINK`. Raises BadValue."""
    name, *parts = text.split(":")
    try:
        values = [float(part) for part in parts]
        for value in values:
            if value and not (value < 0 or LEAST_TIME <= value <= MOST_TIME):
                raise BadValue(option, text, f"{value:g}: give 0, or numbers from {LEAST_TIME:g} to {MOST_TIME:g}")
        if rate < LEAST_TIME:
            raise BadValue("--rate", rate, f"give at least {LEAST_TIME:g} requests per second")
        match name, len(values):
            case "poisson", 0:
                return Poisson(rate)
            case "bursts", 2:
                return Bursts(rate, *values)
            case "ramp", 3:
                return Ramp(*values)
            case "closed", 1 | 2:
                if not values[0].is_integer():
                    raise BadValue(option, text, "give a whole number of clients, as in closed:8:1.5")
                return ClosedLoop(int(values[0]), *values[1:])
    except BadValue as error:
        if error.field in (option, "--rate"):
            raise
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
            found = Prefixes(int(count), int(tokens), float(share) if share else 1.0)
            if max(found.count, found.tokens) > MOST_TOKENS:
                raise BadValue("COUNTxTOKENS", sizes, f"give at most {MOST_TOKENS:,} of each")
            return found
    except BadValue as error:
        raise BadValue(option, text, f"{error.field}: {error.remedy}") from None
    except ValueError:
        pass
    raise BadValue(option, text, "give COUNTxTOKENS, as in 4x256, optionally with @SHARE")
