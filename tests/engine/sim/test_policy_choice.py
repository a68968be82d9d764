"""Lists of policies as they are typed: commas, colons, quotes, files."""

from __future__ import annotations

import pytest

from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue
from vtop.engine.sim.policy_choice import parse_policies


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('fair:group_weights="a=2,b=1",fcfs', [("fair", "a=2,b=1"), ("fcfs", None)]),
        ('"fair:group_weights=a=2,b=1"', None),  # all of it would be a name
        ('fair:"group_weights=a:x=2,b=1"', [("fair", "a:x=2,b=1")]),
        ('fair:group_weights="say ""a""=2"', [("fair", 'say "a"=2')]),
        ('fair:group_weights=""', [("fair", "")]),
        (' fair : group_weights = "a=2,b=1" , sjf ', [("fair ", "a=2,b=1"), ("sjf", None)]),
        ('"my, own.py:Mine"+fcfs:group_weights="a=2"', [("my, own.py:Mine+fcfs", "a=2")]),
        ("a.py:A+b.py:B:group_weights=a=2", [("a.py:A+b.py:B", "a=2")]),
        ("x:y=1/a.py:A,fcfs", [("x:y=1/a.py:A", None), ("fcfs", None)]),
    ],
)
def test_quotes_keep_commas_and_colons_together(text: str, expected: list[tuple[str, str | None]] | None) -> None:
    if expected is None:
        with pytest.raises(BadValue, match="in quotes"):
            parse_policies(text)
        return
    found = [(c.options["scheduling_policy"], c.options.get("group_weights")) for c in parse_policies(text)]
    assert found == expected


def test_a_label_is_what_was_typed() -> None:
    [one, two] = parse_policies('fair:group_weights="a=2,b=1",fair')
    assert (one.label, two.label) == ('fair:group_weights="a=2,b=1"', "fair")
    assert one.apply(EngineConfig()).group_weights == "a=2,b=1"
