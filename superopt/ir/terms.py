"""Terms: operator applications without names, the form in which rules and the e-graph speak.

A term's attributes are *canonical*: every default filled in, axes counted from the front, and the inputs that
ONNX reads at compile time (the shape of Reshape, the axes of Unsqueeze …) written as attributes. Which they are is
the operator's record in ``superopt.ops``. Values of attributes may be symbolic (``SizePolynomial``) or name an
attribute variable (``sym("s")`` stands for a whole attribute, e.g. ``strides=s``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from superopt.ir.size_polynomial import SizePolynomial

__all__ = [
    "OperatorTerm", "AttributeValue", "Attributes", "OutputTerm", "Term", "VariableTerm", "children", "computed",
    "format_term", "format_value", "is_open", "postorder", "rebuilt", "remade", "replaced", "variables",
]  # fmt: skip

_Value = TypeVar("_Value")

AttributeValue = int | float | str | SizePolynomial | tuple["AttributeValue", ...]
Attributes = tuple[tuple[str, AttributeValue], ...]


def is_open(value: AttributeValue) -> bool:
    """Whether an attribute is, or holds, a size that is known when the model runs, not before."""
    return any(map(is_open, value)) if isinstance(value, tuple) else isinstance(value, SizePolynomial)


@dataclass(frozen=True)
class VariableTerm:
    """A tensor variable of a rule, or a leaf value of a graph."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class OperatorTerm:
    """An operator applied to terms; ``attributes`` is sorted by name. Absent optional arguments are ``None``.

    An operator with several outputs yields a tuple, and :class:`OutputTerm` selects from it.
    """

    op: str
    args: tuple[Term | None, ...]
    attributes: tuple[tuple[str, AttributeValue], ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args, self.attributes))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}  # it is another in another process

    def attribute(self, name: str) -> AttributeValue:
        """The attribute's value.

        Raises:
            KeyError: the term has no such attribute.
        """
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    def __str__(self) -> str:
        return format_term(self)


@dataclass(frozen=True)
class OutputTerm:
    """Output ``index`` of an operator with several outputs."""

    term: OperatorTerm
    index: int

    @cached_property
    def _hash(self) -> int:
        return hash((self.term, self.index))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}  # it is another in another process

    def __str__(self) -> str:
        return format_term(self)


Term = VariableTerm | OperatorTerm | OutputTerm


def children(term: Term) -> tuple[Term, ...]:
    """The direct subterms, left to right."""
    if isinstance(term, OperatorTerm):
        return tuple(a for a in term.args if a is not None)
    return (term.term,) if isinstance(term, OutputTerm) else ()


def postorder(*roots: Term) -> Iterator[Term]:
    """Every distinct subterm, operands before operators; iterative, so depth is not limited."""
    done: set[Term] = set()
    stack: list[tuple[Term, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        term, expanded = stack.pop()
        if term in done:
            continue
        if expanded or isinstance(term, VariableTerm):
            done.add(term)
            yield term
        elif isinstance(term, OutputTerm):
            stack += [(term, True), (term.term, False)]
        else:
            stack.append((term, True))
            stack += [(a, False) for a in reversed(term.args) if a is not None]


def computed(
    roots: Iterable[Term],
    given: Mapping[str, _Value],
    compute: Callable[[OperatorTerm, list[_Value | None]], Sequence[_Value]],
) -> dict[Term, _Value]:
    """The value of every subterm; each application computed once.

    Args:
        roots: terms.
        given: values of their variables.
        compute: the outputs of an application from its operands (``None``: absent).
    """
    found: dict[Term, _Value] = {}
    outputs: dict[OperatorTerm, Sequence[_Value]] = {}
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            found[term] = given[term.name]
        elif isinstance(term, OutputTerm):
            found[term] = outputs[term.term][term.index]
        else:
            operands = [None if a is None else found[a] for a in term.args]
            outputs[term] = compute(term, operands)
            found[term] = outputs[term][0]
    return found


def rebuilt(
    roots: Sequence[Term],
    value: Callable[[OperatorTerm, str, AttributeValue], AttributeValue],
    leaf: Callable[[VariableTerm], Term] = lambda term: term,
) -> tuple[Term, ...]:
    """The roots with other attribute values and leaves; shared subterms stay shared; iterative.

    Args:
        roots: terms.
        value: the new value of an attribute, from the application as it was, the attribute's name and its value.
        leaf: what takes a variable's place.
    """
    made: dict[Term, Term] = {}
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            made[term] = leaf(term)
        elif isinstance(term, OperatorTerm):
            made[term] = remade(term, made, tuple((k, value(term, k, v)) for k, v in term.attributes))
        else:
            made[term] = remade(term, made)
    return tuple(made[t] for t in roots)


def remade(
    term: Term, made: Mapping[Term, Term], attributes: tuple[tuple[str, AttributeValue], ...] | None = None
) -> Term:
    """One step of a walk in postorder: the term over what its operands were made into.

    Args:
        term: a variable stays what it is.
        made: by operand.
        attributes: of an application, if they are not to stay what they are.
    """
    if isinstance(term, VariableTerm):
        return term
    if isinstance(term, OutputTerm):
        inner = made[term.term]
        assert isinstance(inner, OperatorTerm)
        return OutputTerm(inner, term.index)
    args = tuple(None if a is None else made[a] for a in term.args)
    return OperatorTerm(term.op, args, term.attributes if attributes is None else attributes)


def replaced(root: Term, old: Term, new: Term) -> Term:
    """A term with another in the place of one inside it."""
    made: dict[Term, Term] = {}
    for term in postorder(root):
        made[term] = new if term == old else remade(term, made)
    return made[root]


def variables(*roots: Term) -> tuple[str, ...]:
    """Names of the tensor variables, in order of first occurrence."""
    return tuple(dict.fromkeys(t.name for t in postorder(*roots) if isinstance(t, VariableTerm)))


def format_value(value: AttributeValue) -> str:
    """An attribute value as rules write it: ``2``, ``0.5``, ``"same"``, ``m + 1``, ``[1, n]``."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def format_term(
    term: Term,
    value: Callable[[AttributeValue], str] = format_value,
    short: Callable[[OperatorTerm], str | None] = lambda app: None,
) -> str:
    """``Op(args, attribute=value)[output]``; an absent optional argument is ``_``. Parsed by ``superopt.rules``.

    Args:
        term: any term.
        value: the text of an attribute's value.
        short: the text of an application that has one of its own.
    """
    text: dict[Term, str] = {}
    for sub in postorder(term):
        if isinstance(sub, VariableTerm):
            text[sub] = sub.name
        elif isinstance(sub, OutputTerm):
            text[sub] = f"{text[sub.term]}[{sub.index}]"
        elif (own := short(sub)) is not None:
            text[sub] = own
        else:
            parts = ["_" if a is None else text[a] for a in sub.args]
            parts += [f"{k}={value(v)}" for k, v in sub.attributes]
            text[sub] = f"{sub.op}({', '.join(parts)})"
    return text[term]
