"""Checks of a scenario: small expressions over the runs of its variants.

    fcfs.ttft_mean["s*"] >= 50 * skip.ttft_mean["s*"]      a measure, of requests whose id matches, or "group:B"
    fcfs.at(1.5).waiting == 9 and fcfs.at(1.5).available >= 32  the engine at a time
    whole.gaps_over(0.1)["d*"] == 24                       gaps between tokens above so many seconds
    abs(a.end / b.end - 1) < 0.05                          arithmetic, abs, min and max

Measures are those of measures.py and RUN; nothing else can be reached from an expression. A check is a comparison, or
and, or, not of some. One that looks at NaN (nothing was measured) is unknown: it does not hold, nor does its `not`.
"""

from __future__ import annotations

import ast
import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vtop.engine.errors import BadValue
from vtop.engine.scenarios.run import MEASURES, PART_MEASURES, ScenarioRun

Value = float | str | bool | None
"""None: a truth that is not known."""
Kind = Literal["number", "text", "truth"]

MOST_LETTERS = 2000
MOST_LEVELS = 50  # of nesting; a sum of so many terms is that deep

_FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {  # and how many arguments they take
    "abs": (abs, 1, 1), "min": (min, 2, MOST_LETTERS), "max": (max, 2, MOST_LETTERS),
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: _close(a, b),
    ast.NotEq: lambda a, b: not _close(a, b),
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: _ratio(a, b),
}
SNAPSHOT = ("waiting", "running", "swapped", "free", "cached", "available", "used", "head", "host_free")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A check that was evaluated. `sides` are the values that its comparisons saw, in words."""

    text: str
    expression: str
    holds: bool
    sides: str


def times_asked(expressions: Iterable[str]) -> list[float]:
    """The times at which `.at(t)` looks, in order."""
    found = set()
    for expression in expressions:
        for node in ast.walk(_parsed(expression)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at":
                found.add(float(ast.literal_eval(node.args[0])))
    return sorted(found)


def check_names(source: str, variants: Sequence[str], text: str, expression: str) -> None:
    """Raise BadValue unless the expression of a check in file `source` can be evaluated, names included."""
    _Checker(source, variants, f"checks.{text}", expression).check()


class _Checker:
    """Finds out what kind of value every part of one expression has."""

    def __init__(self, source: str, variants: Sequence[str], where: str, expression: str) -> None:
        self.source = source
        self.variants = variants
        self.where = where
        self.expression = expression

    def check(self) -> None:
        if len(self.expression) > MOST_LETTERS:
            raise self._bad(f"has {len(self.expression):,} letters; give at most {MOST_LETTERS:,}, in several checks")
        deep = f"is nested too deeply; give at most {MOST_LEVELS} levels"
        try:
            tree = _parsed(self.expression)
        except SyntaxError as error:
            raise self._bad(error.msg) from None
        except ValueError as error:
            raise self._bad(str(error)) from None
        except (RecursionError, MemoryError):
            raise self._bad(deep) from None
        if _levels(tree) > MOST_LEVELS:
            raise self._bad(deep)
        self._need(tree.body, "truth")

    def _bad(self, remedy: str) -> BadValue:
        return BadValue(self.where, self.expression, f"{self.source}: {remedy}")

    def _need(self, node: ast.expr, kind: Kind) -> None:
        found = self._kind(node)
        if found != kind:
            wanted = {"truth": "a comparison, as in a.end < b.end", "number": "a number", "text": "a text"}[kind]
            raise self._bad(f"{_source(node)} is a {found}; give {wanted}")

    def _kind(self, node: ast.expr) -> Kind:
        match node:
            case ast.BoolOp(values=values):
                for value in values:
                    self._need(value, "truth")
                return "truth"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._need(operand, "truth")
                return "truth"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._need(operand, "number")
                return "number"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                self._need(left, "number")
                self._need(right, "number")
                return "number"
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
                self._compared([left, *others], ops)
                return "truth"
            case ast.Constant(value=str()):
                return "text"
            case ast.Constant(value=int() | float()):
                self._constant(node)
                return "number"
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                self._call(node, name, args)
                return "number"
            case ast.Subscript(value=value, slice=ast.Constant(value=str() as which)):
                self._selected(value, which)
                return "number"
            case ast.Attribute(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="at"), args=[time], keywords=[]),
                attr=attr,
            ):
                self._known(name, self.variants, "variant")
                self._known(attr, SNAPSHOT, "value of a moment")
                self._constant(time, "give at() a number of seconds")
                return "text" if attr == "head" else "number"
            case _:
                self._measure(node)
                return "number"

    def _measure(self, node: ast.expr) -> str:
        """The name of the measure, or gaps_over."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="gaps_over"), args=[limit], keywords=[]):
                self._known(name, self.variants, "variant")
                self._constant(limit, "give gaps_over() a number of seconds")
                return "gaps_over"
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                self._known(name, self.variants, "variant")
                self._known(attr, MEASURES, "measure")
                return attr
        raise self._bad(f"{_source(node)} is not understood in a check")

    def _selected(self, node: ast.expr, which: str) -> None:
        name = self._measure(node)
        if which != "*" and name != "gaps_over" and name not in PART_MEASURES:
            raise self._bad(f"{name} is of the whole run; leave out [{which!r}]")

    def _compared(self, parts: list[ast.expr], ops: list[ast.cmpop]) -> None:
        kinds = [self._kind(part) for part in parts]
        for part, kind in zip(parts, kinds, strict=True):
            if kind == "truth":
                raise self._bad(f"{_source(part)} is a comparison already; join two with and")
        if "text" in kinds and ("number" in kinds or not all(isinstance(op, (ast.Eq, ast.NotEq)) for op in ops)):
            raise self._bad("a text can only be compared with a text, by == or !=")

    def _constant(self, node: ast.expr, remedy: str = "give a number") -> None:
        """A finite number, and not one of the truths, which Python counts among them."""
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**63:
            raise self._bad(f"{_source(node)}: {remedy}")

    def _call(self, node: ast.expr, name: str, args: list[ast.expr]) -> None:
        _, fewest, most = _FUNCTIONS[name]
        if not fewest <= len(args) <= most:
            raise self._bad(f"{_source(node)}: give {name} {fewest} {'value' if most == 1 else 'values or more'}")
        for argument in args:
            self._need(argument, "number")

    def _known(self, name: str, names: Iterable[str], what: str) -> None:
        names = list(names)
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            nearest = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
            raise BadValue(self.where, name, f"{self.source}: no such {what}{nearest}")


def _parsed(expression: str) -> ast.Expression:
    with warnings.catch_warnings():  # of odd escapes and the like, which are errors of the file and told as such
        warnings.simplefilter("ignore")
        return ast.parse(expression.strip(), mode="eval")


def _levels(tree: ast.AST) -> int:
    """How deep a tree is, found without recursion."""
    deepest, left = 0, [(tree, 0)]
    while left:
        node, level = left.pop()
        deepest = max(deepest, level)
        left += [(child, level + 1) for child in ast.iter_child_nodes(node)]
    return deepest


def _source(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."


def evaluate(text: str, expression: str, runs: dict[str, ScenarioRun]) -> Verdict:
    """Evaluate a check that `check_names` accepted."""
    seen: list[str] = []

    def value(node: ast.AST) -> Value:
        match node:
            case ast.Expression(body=body):
                return value(body)
            case ast.BoolOp(op=op, values=values):
                decides = not isinstance(op, ast.And)  # one such value is enough
                results = [value(v) for v in values]
                return decides if decides in results else None if None in results else not decides
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = value(operand)
                return None if truth is None else not truth
            case ast.UnaryOp(operand=operand):
                return -_number(value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return _ARITHMETIC[type(op)](_number(value(left)), _number(value(right)))
            case ast.Compare(left=left, ops=ops, comparators=others):
                found = [value(part) for part in (left, *others)]
                told = [f"{_SIGNS[type(op)]} {_shown(v)}" for op, v in zip(ops, found[1:], strict=True)]
                seen.append(" ".join([_shown(found[0]), *told]))
                if any(isinstance(v, float) and math.isnan(v) for v in found):
                    return None
                return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, found[:-1], found[1:], strict=True))
            case ast.Constant(value=constant):
                return constant if isinstance(constant, str) else float(constant)  # type: ignore[arg-type]
            case ast.Call(func=ast.Name(id=name), args=args):
                given = [_number(value(part)) for part in args]
                return math.nan if any(map(math.isnan, given)) else _FUNCTIONS[name][0](*given)
            case ast.Subscript(value=inner, slice=ast.Constant(value=str() as which)):
                return chosen(inner, which)
            case ast.Attribute(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=[at]), attr=attr):
                return runs[name].moment(float(ast.literal_eval(at)), attr)
            case _:
                return chosen(node, "*")

    def chosen(node: ast.AST, which: str) -> float:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                return runs[name].measure(attr, which)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=[limit]):
                return float(runs[name].gaps_over(float(ast.literal_eval(limit)), which))
        raise TypeError(f"{ast.dump(node)} was accepted by check_names")

    return Verdict(text, expression, value(_parsed(expression)) is True, ", ".join(seen))


_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def _close(a: float | str, b: float | str) -> bool:
    """Equal, but for the rounding of a division."""
    if isinstance(a, str) or isinstance(b, str) or math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.copysign(math.inf, a) if a else math.nan


def _number(value: Value) -> float:
    return value if isinstance(value, (int, float)) else math.nan


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
