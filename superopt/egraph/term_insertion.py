"""Adding the terms of a rule to an e-graph: which applications, over what, written out once for each rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from superopt.egraph.egraph import ABSENT, EGraph, is_multi
from superopt.egraph.matching import Match, evaluate
from superopt.ir.terms import App, Attributes, AttributeValue, Project, Term, Var, postorder
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped

__all__ = ["Recipe", "instantiate", "recipe_of"]

_REMEMBERED = 512  # bindings of a rule whose attributes are remembered


@dataclass(eq=False)
class Recipe:
    """Terms in order, operands first, by number.

    Attributes:
        variables: name, for each variable; they come first.
        rest: for each other term, its own number, the application (``None`` for a projection), numbers of the operands
            (:data:`ABSENT`: none), and the output that a projection selects.
        roots: numbers of the terms that are wanted.
        tuples: numbers of applications with several outputs, of which the first is meant where they stand as a value.
    """

    variables: tuple[str, ...]
    rest: tuple[tuple[App | None, tuple[int, ...], int], ...]
    roots: tuple[int, ...]
    tuples: frozenset[int]
    _known: dict[int, tuple[Mapping[str, AttributeValue], tuple[Attributes, ...]]] = field(default_factory=dict)

    def attributes(self, graph: EGraph, sizes: Mapping[str, AttributeValue]) -> tuple[Attributes, ...]:
        """The attributes of every application under a binding; patterns give equal bindings as one object.

        Raises:
            IllTyped: an operator is not known, or an element type was never bound.
        """
        found = self._known.get(id(sizes))
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            made = tuple(() if app is None else _attributes(graph, app, sizes) for app, _, _ in self.rest)
            found = self._known[id(sizes)] = (sizes, made)  # holding the binding keeps its id from being reused
        return found[1]


@lru_cache(maxsize=1 << 14)
def recipe_of(targets: tuple[Term, ...]) -> Recipe:
    """The recipe of terms."""
    ordered = list(postorder(*targets))
    variables = [t for t in ordered if isinstance(t, Var)]
    number: dict[Term, int] = {t: i for i, t in enumerate(variables)}
    rest: list[tuple[App | None, tuple[int, ...], int]] = []
    for term in ordered:
        if isinstance(term, Project):
            rest.append((None, (number[term.term],), term.index))
        elif isinstance(term, App):
            args = [ABSENT if a is None else number[a] for a in term.args]
            while args and args[-1] == ABSENT:
                args.pop()
            rest.append((term, tuple(args), 0))
        else:
            continue
        number[term] = len(number)
    tuples = frozenset(
        n for t, n in number.items() if isinstance(t, App) and t.op in REGISTRY and is_multi(REGISTRY[t.op])
    )
    return Recipe(tuple(v.name for v in variables), tuple(rest), tuple(number[t] for t in targets), tuples)


def instantiate(graph: EGraph, recipe: Recipe, match: Match) -> list[int]:
    """Add a recipe's terms to the graph under a match and give their classes.

    Raises:
        IllTyped: an application is not typed; applications below it may have been added.
    """
    classes = [graph.find(match.tensors[name]) for name in recipe.variables]
    attributes = recipe.attributes(graph, match.sizes)
    for (app, numbers, index), values in zip(recipe.rest, attributes, strict=True):
        if app is None:
            classes.append(graph.project(classes[numbers[0]], index))
            continue
        args = tuple([
            ABSENT if n == ABSENT else _single(graph, classes[n]) if n in recipe.tuples else classes[n] for n in numbers
        ])  # fmt: skip
        classes.append(graph.add(app.op, values, args))
    return [_single(graph, classes[n]) for n in recipe.roots]


def _single(graph: EGraph, identity: int) -> int:
    return graph.project(identity, 0) if isinstance(graph.type(identity), tuple) else identity


def _attributes(graph: EGraph, term: App, sizes: Mapping[str, AttributeValue]) -> Attributes:
    """The attributes of a rule's application under a binding; a generator gets the matched element type."""
    record = graph.operators.get(term.op)
    if record is None:
        raise IllTyped(f"{term.op} is not an operator superopt knows")
    values = {name: evaluate(value, sizes) for name, value in term.attributes}
    if "dtype" in record.attributes and "dtype" not in values:
        if "dtype:f" not in sizes:
            raise IllTyped("the element type of a constant is not known here")
        values["dtype"] = sizes["dtype:f"]
    for name, kind in record.attributes.items():
        if kind == "float" and isinstance(value := values.get(name), int):
            values[name] = float(value)
    return tuple(sorted(values.items()))
