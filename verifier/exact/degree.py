"""The degree of what a term computes, as a rational function of the elements of its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.ops.meaning import Call, Meaning, Read, Reduce, Scalar, Where, subexpressions

__all__ = ["error_bound"]

Degree = tuple[int, int]  # of numerator and denominator


def _add(a: Degree, b: Degree) -> Degree:
    return max(a[0] + b[1], b[0] + a[1]), a[1] + b[1]


def _of(scalar: Scalar, operands: Sequence[Degree]) -> Degree:
    """Upper bounds, bottom-up; a function that is not rational counts as one more unknown of its arguments."""
    known: dict[int, Degree] = {}
    for part in subexpressions(scalar):
        match part:
            case Read(operand, _, _):
                degree = operands[operand]
            case Reduce(kind, _, extent, body):
                n, d = known[id(body)]
                times = extent if isinstance(extent, int) else 1
                degree = (n * times, d * times) if kind == "prod" else (n + (times - 1) * d, times * d)
            case Where(_, then, otherwise):
                a, b = known[id(then)], known[id(otherwise)]
                degree = max(a[0], b[0]), max(a[1], b[1])
            case Call(function, args):
                parts = [known[id(a)] for a in args]
                degree = _called(function, parts)
            case _:
                degree = (0, 0)
        known[id(part)] = degree
    return known[id(scalar)]


def _called(function: str, parts: Sequence[Degree]) -> Degree:
    match function:
        case "add":
            return _add(parts[0], parts[1])
        case "mul":
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        case "inv":
            return parts[0][1], parts[0][0]
        case "max" | "min" | "select" | "abs" | "sign":
            return max(n for n, _ in parts), max(d for _, d in parts)
    return sum(n for n, _ in parts) + 1, sum(d for _, d in parts)


def error_bound(lhs: Sequence[Term], rhs: Sequence[Term], meanings: Mapping[App, Meaning], choices: int) -> float:
    """Schwartz–Zippel: the probability that two different sides agree at random elements.

    Args:
        lhs: ground terms.
        rhs: the terms they are compared with.
        meanings: of every application in them.
        choices: the number of values that an element is drawn from.
    """
    found: dict[Term, Degree] = {}
    outputs: dict[App, list[Degree]] = {}
    for term in postorder(*lhs, *rhs):
        if isinstance(term, Var):
            found[term] = (1, 0)
        elif isinstance(term, Project):
            found[term] = outputs[term.term][term.index]
        else:
            operands = [(0, 0) if a is None else found[a] for a in term.args]
            outputs[term] = [_of(c.body, operands) for c in meanings[term].outputs]
            found[term] = outputs[term][0]
    pairs = (_add(found[a], found[b])[0] for a, b in zip(lhs, rhs, strict=True))
    return min(1.0, max(pairs, default=0) / choices)
