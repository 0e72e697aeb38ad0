"""Which inputs of a graph are the terms of one of its sums, read off the graph.

Where such a sum cancels as a whole, and no part of it does, each order in which the terms are added up rounds alike.
What is lost besides is lost by a result that does something to each term first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from superopt.ir.graph import Graph, Node, attribute_key

__all__ = ["sums"]

_TERMS = 8  # of a sum that is followed; a longer one is a term of nothing
_SUMS = frozenset({"Add", "Sub", "Sum"})


@dataclass(frozen=True)
class _Term:
    source: str
    negative: bool = False
    path: tuple[object, ...] = ()  # what was done to the input on the way


def sums(graph: Graph, inputs: Collection[str]) -> tuple[dict[str, bool], ...]:
    """Of each sum of three or more of these inputs, all different, which are subtracted; the outermost first."""
    terms: dict[str, tuple[_Term, ...]] = {name: (_Term(name),) for name in inputs}
    found: list[dict[str, bool]] = []
    for node in graph.nodes:
        operands = [terms[name] for name in node.inputs if name in terms]
        if not operands or len(node.outputs) != 1:
            continue
        if node.op in _SUMS and not node.domain:
            read = (terms.get(name, ()) for name in node.inputs)
            together = tuple(t for i, ts in enumerate(read) for t in (_negated(ts) if node.op == "Sub" and i else ts))
            signs = {term.source: term.negative for term in together}
            if len({term.path for term in together}) == 1 and 2 < len(signs) == len(together) and signs not in found:
                found.insert(0, signs)
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


def _attributes(node: Node) -> tuple[object, ...]:
    return tuple((name, attribute_key(value)) for name, value in sorted(node.attributes.items()))


def _negated(terms: tuple[_Term, ...]) -> tuple[_Term, ...]:
    return tuple(replace(term, negative=not term.negative) for term in terms)
