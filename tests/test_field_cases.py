"""Ids such as E046 or T004 in tests name reported troubles, each a case of the table tests/data/field-cases.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

TESTS = Path(__file__).parent
TABLE = TESTS / "data" / "field-cases.yaml"
ID = re.compile(r"\b[ET]\d{3}\b")
NOT_A_CASE = re.compile(r"# (?:ruff: )?noqa:.*")  # rules of the linter are numbered alike


def test_every_case_that_a_test_names_is_in_the_table() -> None:
    ids = [case["id"] for case in yaml.safe_load(TABLE.read_text(encoding="utf-8"))["cases"]]
    assert len(set(ids)) == len(ids) and all(ID.fullmatch(each) for each in ids)
    named = {
        (each, str(path.relative_to(TESTS)))
        for path in TESTS.rglob("*.py")
        for each in ID.findall(NOT_A_CASE.sub("", path.read_text(encoding="utf-8")))
    }
    assert len({each for each, _ in named}) > 50
    assert [pair for pair in sorted(named) if pair[0] not in ids] == []
