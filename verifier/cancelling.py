"""Which two inputs of a graph cancel in one of its sums, read off the graph.

What is lost where two terms of a sum of three cancel is in the digits of the third: it shows only if that is small. So
pairs are looked for, in the order of the sums, and their signs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from superopt.ir.graph import Graph, Node, attribute_key

__all__ = ["Pair", "cancelling"]

_TERMS = 8  # of a sum that is followed; a longer one is a term of nothing
_SUMS = frozenset({"Add", "Sub", "Sum"})


@dataclass(frozen=True)
class Pair:
    """Two inputs whose terms cancel where the inputs are equal, or where they are ``opposite``."""

    first: str
    second: str
    opposite: bool


@dataclass(frozen=True)
class _Term:
    source: str
    negative: bool = False
    path: tuple[object, ...] = ()  # what was done to the input on the way


def cancelling(graph: Graph, inputs: Collection[str]) -> tuple[Pair, ...]:
    """Pairs of these inputs, each once, the innermost sums first."""
    terms: dict[str, tuple[_Term, ...]] = {name: (_Term(name),) for name in inputs}
    found: dict[Pair, None] = {}
    for node in graph.nodes:
        operands = [terms[name] for name in node.inputs if name in terms]
        if not operands or len(node.outputs) != 1:
            continue
        if node.op in _SUMS and not node.domain:
            operands = [_negated(t) if node.op == "Sub" and i else t for i, t in enumerate(_of(node, terms))]
            found.update(dict.fromkeys(_pairs(operands)))
            together = tuple(term for operand in operands for term in operand)
        elif node.op == "Neg":
            together = _negated(operands[0])
        elif len(operands) == 1:
            done = (node.domain, node.op, tuple(n for n in node.inputs if n not in terms), _attributes(node))
            together = tuple(replace(term, path=(*term.path, done)) for term in operands[0])
        else:
            continue
        if len(together) <= _TERMS:
            terms[node.outputs[0]] = together
    return tuple(found)


def _of(node: Node, terms: dict[str, tuple[_Term, ...]]) -> list[tuple[_Term, ...]]:
    return [terms.get(name, ()) for name in node.inputs]


def _attributes(node: Node) -> tuple[object, ...]:
    return tuple((name, attribute_key(value)) for name, value in sorted(node.attributes.items()))


def _negated(terms: tuple[_Term, ...]) -> tuple[_Term, ...]:
    return tuple(replace(term, negative=not term.negative) for term in terms)


def _pairs(operands: list[tuple[_Term, ...]]) -> Iterator[Pair]:
    for one, other in combinations(operands, 2):
        for a in one:
            for b in other:
                if a.path == b.path and a.source != b.source:
                    first, second = sorted((a.source, b.source))
                    yield Pair(first, second, a.negative == b.negative)
