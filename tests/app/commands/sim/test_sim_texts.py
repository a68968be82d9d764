"""What is typed for a workload: taken, or told in one line."""

from __future__ import annotations

import pytest

from vtop.app.commands.sim import texts as sim_texts
from vtop.engine.errors import BadValue
from vtop.engine.workload.distributions import ClosedLoop, Fixed, Lognormal


@pytest.mark.parametrize(
    ("text", "value"), [("1/16", 0.0625), ("2", 2.0), ("0.5", 0.5), ("1e3", 1000.0), ("3/4", 0.75)]
)
def test_a_ratio(text: str, value: float) -> None:
    assert sim_texts.ratio("--scale-length", text) == value


@pytest.mark.parametrize(
    "text",
    ["1e400", "1e99999999", "1e9", "0", "-1", "nan", "inf", "inf/inf", "1/0", "1/1e400", "1/2/3", "x", "", "9" * 5000],
)
def test_what_is_no_ratio(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        sim_texts.ratio("--scale-length", text)
    assert caught.value.field == "--scale-length" and "1/16" in caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "closed:inf", "closed:nan", "closed:4.7", "closed:-1", "closed:0", "closed:1e400", "closed:2:inf",
        "closed:2:-1",
        "bursts:inf:1", "bursts:1e-320:1", "bursts:0:1", "ramp:1:1e200:3", "ramp:0:0:3", "ramp:1:2:nan", "closed", "",
    ],
)  # fmt: skip
def test_what_are_no_arrivals(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        sim_texts.arrivals("--arrivals", text, 4.0)
    assert caught.value.field == "--arrivals" and "\n" not in str(caught.value)


def test_clients_of_a_closed_loop() -> None:
    assert sim_texts.arrivals("--arrivals", "closed:8:1.5", 4.0) == ClosedLoop(8, 1.5)
    with pytest.raises(BadValue, match="--rate"):
        sim_texts.arrivals("--arrivals", "poisson", 1e-300)


@pytest.mark.parametrize(
    "text",
    [
        "10000001", "1-10000001", "lognormal:1e9:1", "lognormal:5:1:1:100000000", "9" * 5000, "1e3", "lognormal:inf:1",
        "lognormal:5:nan", "lognormal:5:1:x", "lognormal:5:1:1:2:3", "0", "-5", "", "nan",
    ],
)  # fmt: skip
def test_what_are_no_lengths(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        sim_texts.lengths("--prompt-tokens", text)
    assert caught.value.field == "--prompt-tokens" and "\n" not in str(caught.value)


def test_lengths_of_less_than_tokens() -> None:
    assert sim_texts.lengths("--turns", "7", 10) == Fixed(7)
    assert sim_texts.lengths("--turns", "lognormal:2:1", 10) == Lognormal(2, 1, high=10)
    for text in ("11", "2-11", "lognormal:11:1", "lognormal:2:1:1:11"):
        with pytest.raises(BadValue, match="at most 10"):
            sim_texts.lengths("--turns", text, 10)


@pytest.mark.parametrize("text", ["4x10000001", "10000001x4", "4x4@nan", "4x4@inf", "4xinf", "0x4", "4"])
def test_what_are_no_prefixes(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        sim_texts.prefixes("--prefixes", text)
    assert caught.value.field == "--prefixes"


@pytest.mark.parametrize("text", ["1=nan", "1=inf", "1=1e308,2=1e308", "1=-1", f"{2**60}=1", "x=1", ""])
def test_what_is_no_mix(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        sim_texts.mix("--priorities", text, int)
    assert caught.value.field == "--priorities"


def test_how_many_requests() -> None:
    assert sim_texts.requests("--requests", 10_000_000) == 10_000_000
    for value in (0, -1, 10_000_001, 10**30):
        with pytest.raises(BadValue, match="--requests"):
            sim_texts.requests("--requests", value)
    sim_texts.check_total("--requests", 10_000_000, Fixed(5000), Fixed(5000))
    with pytest.raises(BadValue, match="tokens"):
        sim_texts.check_total("--requests", 10_000_000, Fixed(10_000_000), Fixed(1))
