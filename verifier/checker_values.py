"""Normal forms as a certificate writes them: evaluated at a point, and as text up to the names of bound variables.

Part of the independent checker: nothing here is shared with the prover.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["Env", "Point", "Rejected", "canonical", "evaluated", "holds", "size_at", "tree_of"]

Env = Mapping[str, int]
_FUNCTIONS: dict[str, Callable[..., float]] = {
    **{n: getattr(math, n) for n in ("exp", "sqrt", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh")},
    **{n: getattr(math, n) for n in ("cosh", "log", "asinh", "acosh", "atanh", "floor", "ceil", "pow", "fmod")},
    "round": round, "ramp": lambda v: max(v, 0.0), "positive": lambda v: float(v > 0), "infinity": lambda: math.inf,
    "zero": lambda v: float(abs(v) < 1e-9), "at": lambda d, i, n: float(d == i), "cast_int": math.trunc,
    "truncdiv": lambda a, b: math.trunc(a / b), "floormod": lambda a, b: a - b * math.floor(a / b),
    "truncmod": math.fmod, "isnan": lambda v: float(v != v), "isinf": lambda v: float(math.isinf(v)),
}  # fmt: skip


class Rejected(Exception):
    """The certificate does not hold; says why."""


@dataclass(frozen=True)
class Point:
    sizes: dict[str, int]
    reals: dict[str, float]
    arrays: dict[str, np.ndarray]


@lru_cache(maxsize=65536)
def tree_of(text: str) -> ast.expr:
    """A size, parsed; only sums, products, integers, names and ``floor(a, b)`` are let through."""
    tree = ast.parse(text, mode="eval").body
    for node in ast.walk(tree):
        fine = isinstance(node, ast.Name | ast.Add | ast.Mult | ast.USub | ast.Load)
        fine = fine or (isinstance(node, ast.Constant) and type(node.value) is int)
        fine = fine or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult))
        fine = fine or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub))
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "floor"
        if not fine and not (call and len(node.args) == 2 and not node.keywords):  # type: ignore[attr-defined]
            raise Rejected(f"not a size: {text[:80]}")
    return tree


@lru_cache(maxsize=65536)
def _code(text: str) -> Any:
    return compile(ast.Expression(tree_of(text)), "<size>", "eval")


def size_at(text: str, env: Env) -> int:
    return int(
        eval(_code(text), {"__builtins__": {}, "floor": lambda a, b: a // b}, dict(env))
    )  # the tree is whitelisted


def holds(condition: list[str], env: Env) -> bool:
    value = size_at(condition[1], env)
    return value >= 0 if condition[0] == "ge" else (value == 0) == (condition[0] == "eq")


def _assignments(bound: list[str], guards: list[list[str]], env: dict[str, int]) -> Iterator[dict[str, int]]:
    """Every assignment to the bound variables that satisfies the guards."""
    if not bound:
        if all(holds(g, env) for g in guards):
            yield env
        return
    for name in bound:
        low, high = -math.inf, math.inf
        for kind, size in guards:
            free = {n.id for n in ast.walk(tree_of(size)) if isinstance(n, ast.Name)} - {"floor"}
            if kind == "ne" or name not in free or not free <= env.keys() | {name} or "floor" in size:
                continue
            at = [size_at(size, {**env, name: v}) for v in (0, 1, 2)]
            slope = at[1] - at[0]
            if slope == 0 or at[2] - at[1] != slope:
                continue
            if slope > 0 or kind == "eq":
                low = max(low, math.ceil(Fraction(-at[0], slope)))
            if slope < 0 or kind == "eq":
                high = min(high, math.floor(Fraction(-at[0], slope)))
        if low > -math.inf and high < math.inf:
            rest = [n for n in bound if n != name]
            for value in range(int(low), int(high) + 1):
                yield from _assignments(rest, guards, {**env, name: value})
            return
    raise Rejected(f"a sum over {bound} is not bounded")


def evaluated(value: list[dict[str, Any]], env: dict[str, int], data: Point) -> float:
    total = 0.0
    for m in value:
        for inner in _assignments(m["bound"], m["guards"], env):
            product = float(Fraction(m["c"]))
            for factor, power in m["factors"]:
                product *= _factor(factor, inner, data) ** float(Fraction(power))
            total += product
    return total


def _factor(factor: list[Any], env: dict[str, int], data: Point) -> float:
    match factor:
        case ["element", name, index]:
            array = data.arrays[name.removeprefix("?")]
            place = tuple(size_at(i, env) for i in index)
            if any(not 0 <= p < s for p, s in zip(place, array.shape, strict=True)):
                raise Rejected(f"an element of {name} is read outside its bounds")
            return float(array[place])
        case ["size", text]:
            return data.reals[text] if text in data.reals else float(size_at(text.removeprefix("1*"), {**env}))
        case ["apply", name, args]:
            return float(_FUNCTIONS[name](*(evaluated(a, env, data) for a in args)))
        case ["sum", inner]:
            return evaluated(inner, env, data)
        case ["extreme", kind, branches]:
            found = [evaluated(v, e, data) for b, g, v in branches for e in _assignments(b, g, env)]
            return math.prod(found) if kind == "prod" else max(found, default=-math.inf)
    raise Rejected("an unknown factor")


def canonical(m: dict[str, Any]) -> str:
    """Text that does not depend on the names of bound variables: the least under all renamings."""
    inner = list(dict.fromkeys(re.findall(r"\bv__\d+\b", json.dumps([m["guards"], m["factors"]]))))
    outer = [n for n in inner if n in m["bound"]]
    local = {n: f"c{i}" for i, n in enumerate(n for n in inner if n not in m["bound"])}
    orders = itertools.islice(itertools.permutations(range(len(outer))), 120)
    return min(_text(m, local | {n: f"b{order[i]}" for i, n in enumerate(outer)}) for order in orders)


def _text(m: dict[str, Any], names: Mapping[str, str]) -> str:
    guards = sorted(f"{kind} {_sorted_terms(size, names)}" for kind, size in m["guards"])
    factors = sorted(f"{_factor_text(f, names)}^{power}" for f, power in m["factors"])
    return f"{len(m['bound'])}[{' & '.join(guards)}]({' '.join(factors)})"


def _value_text(value: list[dict[str, Any]], names: Mapping[str, str]) -> str:
    return " + ".join(sorted(f"{m['c']}*{_text(m, names)}" for m in value))


def _factor_text(factor: list[Any], names: Mapping[str, str]) -> str:
    match factor:
        case ["element", name, index]:
            return f"{name}[{', '.join(_sorted_terms(i, names) for i in index)}]"
        case ["size", text]:
            return f"<{_sorted_terms(text, names)}>"
        case ["apply", name, args]:
            return f"{name}({'; '.join(_value_text(a, names) for a in args)})"
        case ["sum", inner]:
            return f"({_value_text(inner, names)})"
    rows = [{"bound": b, "guards": g, "factors": [[["sum", v], "1"]]} for b, g, v in factor[2]]
    return f"{factor[1]}{{{' | '.join(sorted(_text(r, names) for r in rows))}}}"


def _sorted_terms(text: str, names: Mapping[str, str]) -> str:
    """A sum of products with its terms and factors in alphabetical order (quotients stay as they are)."""
    text = re.sub(r"\bv__\d+\b", lambda n: names.get(n.group(), n.group()), text)
    if "floor" in text:
        return text
    return " + ".join(sorted("*".join(sorted(term.split("*"))) for term in text.split(" + ")))
