"""Checks of a scenario: small expressions over the runs of its variants.

    fcfs.ttft_mean["s*"] >= 50 * skip.ttft_mean["s*"]      a measure, of requests whose id matches, or "group:B"
    fcfs.at(1.5).waiting == 9 and fcfs.at(1.5).free >= 32  the engine at a time
    whole.gaps_over(0.1)["d*"] == 24                       gaps between tokens above so many seconds
    abs(a.end / b.end - 1) < 0.05                          arithmetic, abs, min and max

Measures are those of measures.py and RUN; nothing else can be reached from an expression.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtop.engine.errors import BadValue

if TYPE_CHECKING:
    from vtop.engine.scenario import Scenario
    from vtop.engine.scenario_run import ScenarioRun

Value = float | str | bool

_FUNCTIONS: dict[str, Callable[..., float]] = {"abs": abs, "min": min, "max": max}
_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: lambda a, b: _close(a, b),
    ast.NotEq: lambda a, b: not _close(a, b),
    ast.Lt: lambda a, b: a < b,  # type: ignore[operator]
    ast.LtE: lambda a, b: a <= b,  # type: ignore[operator]
    ast.Gt: lambda a, b: a > b,  # type: ignore[operator]
    ast.GtE: lambda a, b: a >= b,  # type: ignore[operator]
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b if b else float("inf"),
}
SNAPSHOT = ("waiting", "running", "swapped", "free", "used", "head", "host_free")


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
        for node in ast.walk(ast.parse(expression, mode="eval")):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at":
                found.add(float(ast.literal_eval(node.args[0])))
    return sorted(found)


def check_names(scenario: Scenario, text: str, expression: str) -> None:
    """Raise BadValue unless the expression can be evaluated, names of variants and measures included."""
    from vtop.engine.scenario_run import MEASURES

    where = f"checks.{text}"
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise BadValue(where, expression, f"{scenario.source}: {error.msg}") from None
    variants = {v.name for v in scenario.variants}

    def visit(node: ast.AST) -> None:
        match node:
            case ast.Expression(body=body):
                visit(body)
            case ast.BoolOp(values=values):
                for value in values:
                    visit(value)
            case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
                visit(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                visit(left)
                visit(right)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
                for part in (left, *others):
                    visit(part)
            case ast.Constant(value=value) if isinstance(value, (int, float, str)):
                pass
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                for argument in args:
                    visit(argument)
            case ast.Subscript(value=value, slice=ast.Constant(value=str())):
                visit(value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="gaps_over"), args=[ast.Constant()]):
                known(name, variants, "variant")
            case ast.Attribute(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="at"), args=[at]), attr=a
            ):
                known(name, variants, "variant")
                known(a, SNAPSHOT, "value of a moment")
                if not isinstance(at, ast.Constant) or not isinstance(at.value, (int, float)):
                    raise BadValue(where, expression, f"{scenario.source}: give at() a number of seconds")
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                known(name, variants, "variant")
                known(attr, MEASURES, "measure")
            case _:
                shown = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
                raise BadValue(where, expression, f"{scenario.source}: {shown} is not understood in a check")

    def known(name: str, names: Iterable[str], what: str) -> None:
        names = list(names)
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            nearest = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
            raise BadValue(where, name, f"{scenario.source}: no such {what}{nearest}")

    visit(tree)


def evaluate(text: str, expression: str, runs: dict[str, ScenarioRun]) -> Verdict:
    """Evaluate a check that `check_names` accepted."""
    seen: list[str] = []

    def value(node: ast.AST) -> Value:
        match node:
            case ast.Expression(body=body):
                return value(body)
            case ast.BoolOp(op=op, values=values):
                results = [bool(value(v)) for v in values]
                return all(results) if isinstance(op, ast.And) else any(results)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not value(operand)
            case ast.UnaryOp(operand=operand):
                return -_number(value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return _ARITHMETIC[type(op)](_number(value(left)), _number(value(right)))
            case ast.Compare(left=left, ops=ops, comparators=others):
                found = [value(part) for part in (left, *others)]
                told = [f"{_SIGNS[type(op)]} {_shown(v)}" for op, v in zip(ops, found[1:], strict=True)]
                seen.append(" ".join([_shown(found[0]), *told]))
                return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, found[:-1], found[1:], strict=True))
            case ast.Constant(value=constant):
                return constant if isinstance(constant, str) else float(constant)  # type: ignore[arg-type]
            case ast.Call(func=ast.Name(id=name), args=args):
                return _FUNCTIONS[name](*(_number(value(part)) for part in args))
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

    holds = bool(value(ast.parse(expression, mode="eval")))
    return Verdict(text, expression, holds, ", ".join(seen))


_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def _close(a: Value, b: Value) -> bool:
    """Equal, but for the rounding of a division."""
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))


def _number(value: Value) -> float:
    return value if isinstance(value, (int, float)) else float("nan")


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
