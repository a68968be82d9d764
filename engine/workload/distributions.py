"""What a generated workload is drawn from: when requests arrive, and how long they are. Raises BadValue."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from vtop.engine.errors import BadValue

# --- arrivals --------------------------------------------------------------------------------------------------


class OpenArrivals(Protocol):
    """Arrivals that do not wait for answers, as a rate over time."""

    def time(self, mass: float) -> float:
        """Seconds from the start by which `mass` requests are expected; infinite when the rate ends before."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """`rate` requests a second, independent of each other."""

    rate: float

    def __post_init__(self) -> None:
        check_positive("rate", self.rate, "requests a second")

    def time(self, mass: float) -> float:
        return mass / self.rate


@dataclass(frozen=True, slots=True)
class Bursts:
    """`rate` requests a second for `on` seconds, then `quiet_rate` for `off` seconds, over and over."""

    rate: float
    on: float
    off: float
    quiet_rate: float = 0.0

    def __post_init__(self) -> None:
        check_positive("rate", self.rate, "requests a second")
        check_positive("on", self.on, "seconds")
        check_positive("off", self.off, "seconds")
        check_not_negative("quiet_rate", self.quiet_rate, "requests a second")

    def time(self, mass: float) -> float:
        loud, quiet = self.rate * self.on, self.quiet_rate * self.off
        cycles, rest = divmod(mass, loud + quiet)
        inside = rest / self.rate if rest <= loud else self.on + (rest - loud) / self.quiet_rate
        return cycles * (self.on + self.off) + inside


@dataclass(frozen=True, slots=True)
class Ramp:
    """From `start` to `end` requests a second in `seconds`, and on at `end`."""

    start: float
    end: float
    seconds: float

    def __post_init__(self) -> None:
        check_not_negative("start", self.start, "requests a second")
        check_not_negative("end", self.end, "requests a second")
        check_positive("seconds", self.seconds, "seconds")
        if self.start == self.end == 0:
            raise BadValue("end", self.end, "start or end must be more than 0, or nothing arrives")

    def time(self, mass: float) -> float:
        over = mass - (self.start + self.end) / 2 * self.seconds
        if over > 0:
            return self.seconds + over / self.end if self.end else math.inf
        slope = (self.end - self.start) / self.seconds
        # start·t + slope·t²/2 = mass, in the form that stands slope 0; rounding may take the root below 0 at the end
        return 2 * mass / (self.start + math.sqrt(max(0.0, self.start**2 + 2 * slope * mass))) if mass else 0.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`clients` that each send the next request `think` seconds (on average) after the end of the one before."""

    clients: int
    think: float = 0.0

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_not_negative("think", self.think, "seconds")


# --- lengths ---------------------------------------------------------------------------------------------------


class Lengths(Protocol):
    """A distribution of numbers of tokens (or turns)."""

    @property
    def mean(self) -> float:
        """What is drawn on average."""
        ...

    def draw(self, rng: random.Random) -> int:
        """One of them, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `value`."""

    value: int

    def __post_init__(self) -> None:
        check_count("value", self.value)

    @property
    def mean(self) -> float:
        return float(self.value)

    def draw(self, rng: random.Random) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """From `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _range(self.low, self.high)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Half are below `median`; `sigma` is the deviation of the logarithm. Cut to `low` and `high`."""

    median: float
    sigma: float
    low: int = 1
    high: int = 1_000_000

    def __post_init__(self) -> None:
        check_positive("median", self.median, "tokens")
        check_not_negative("sigma", self.sigma, "of the logarithm")
        _range(self.low, self.high)

    @property
    def mean(self) -> float:
        """Rounded and cut as what is drawn: low + the sum of P(drawn > k), in strides where k is large."""
        found, k = float(self.low), self.low
        while k < self.high:
            stride = min(self.high - k, max(1, k // 1000))
            found += stride * self._exceeds(k + stride / 2)
            k += stride
        return found

    def _exceeds(self, value: float) -> float:
        above = math.log(value / self.median)
        if not self.sigma:
            return float(above < 0)
        return 0.5 * math.erfc(above / (self.sigma * math.sqrt(2)))

    def draw(self, rng: random.Random) -> int:
        exponent = min(700.0, math.log(self.median) + self.sigma * rng.gauss())
        return min(self.high, max(self.low, round(math.exp(exponent))))


# --- checks ----------------------------------------------------------------------------------------------------


def check_positive(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise BadValue(name, value, f"use more than 0 ({unit})")


def check_not_negative(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise BadValue(name, value, f"use 0 or more ({unit})")


def check_count(name: str, value: int) -> None:
    if value < 1:
        raise BadValue(name, value, "use 1 or more")


def _range(low: int, high: int) -> None:
    check_count("low", low)
    if high < low:
        raise BadValue("high", high, f"use at least low ({low})")
