"""A template at operand types: what it means, of what type it is, and how to evaluate many calls of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from superopt.discovery.config import OperatorVocabulary, Template
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarExpression,
    ScalarReduction,
    TensorComprehension,
    subexpressions,
)
from superopt.rules.rule import CLASSES
from superopt.rules.typing import complete, operator_of
from superopt.verifier.exact.sampling import SizeSample

__all__ = ["TypedTemplate", "batched", "concrete", "obligations_of", "size_at", "typed", "variants"]

BATCH_AXIS = "@b"


@dataclass(frozen=True, eq=False)
class TypedTemplate:
    """A template at operand types: meanings of its applications, types of its outputs."""

    term: Term
    holes: tuple[str, ...]
    meanings: Mapping[OperatorTerm, tuple[TensorComprehension, ...]]
    outputs: tuple[TensorType, ...]
    several: bool


def typed(
    template: Template,
    root: Term,
    types: tuple[TensorType, ...],
    theme: OperatorVocabulary,
    points: Sequence[SizeSample],
) -> TypedTemplate | None:
    """The template at these operand types, or ``None`` where it is not well-formed or has no elements at a point."""
    if not theme.broadcast and not _alike(template, types):
        return None
    meanings: dict[OperatorTerm, tuple[TensorComprehension, ...]] = {}
    outputs: tuple[TensorType, ...] = ()
    several = False
    try:
        for term, meaning, outputs in _applications(template, root, types, theme):
            if not all(_accepts(o, points) for o in meaning.obligations):
                return None
            meanings[term] = meaning.outputs
            record = operator_of(term)
            several = len(record.outputs) > 1 or record.outputs[-1].endswith("*")
            for kind, point in product(outputs, points):
                if any(n < 1 for n in concrete(kind, point)):
                    return None
    except (IllTypedOperator, ZeroDivisionError, KeyError):
        return None
    return TypedTemplate(root, template.holes, meanings, outputs, several)


def _applications(
    template: Template, root: Term, types: tuple[TensorType, ...], theme: OperatorVocabulary
) -> Iterator[tuple[OperatorTerm, OperatorSemantics, tuple[TensorType, ...]]]:
    known_tensor_types: dict[Term, TensorType] = {
        VariableTerm(h): t for h, t in zip(template.holes, types, strict=True)
    }
    for name, scheme in theme.leaves.items():
        known_tensor_types.setdefault(VariableTerm(name), TensorType(DType(CLASSES[scheme.dtype]), scheme.shape))
    for term in postorder(root):
        if isinstance(term, OperatorTerm):
            meaning, outputs = operator_of(term).apply(
                [None if a is None else known_tensor_types[a] for a in term.args], complete(term)
            )
            known_tensor_types[term] = outputs[0]
            yield term, meaning, outputs


def obligations_of(
    template: Template, types: tuple[TensorType, ...], theme: OperatorVocabulary
) -> list[IndexCondition]:
    """Inequalities of sizes that the template needs at these operand types; none where it cannot be applied."""
    conditions: list[IndexCondition] = []
    try:
        for _, meaning, _ in _applications(template, template.term, types, theme):
            conditions += meaning.obligations
    except (IllTypedOperator, ZeroDivisionError, KeyError):
        return []
    return [] if any(c.kind == "eq" for c in conditions) else conditions


def _alike(template: Template, types: tuple[TensorType, ...]) -> bool:
    """Operands of an elementwise operator have one shape, scalars apart."""
    if not isinstance(template.term, OperatorTerm) or operator_of(template.term).family != "elementwise":
        return True
    return len({t.shape for t in types if t.shape}) <= 1


def _accepts(condition: IndexCondition, points: Sequence[SizeSample]) -> bool:
    """Equalities of sizes must hold identically; inequalities (a window fits) at the points that are looked at."""
    if condition.kind == "eq":
        return False
    return all(IndexCondition(condition.kind, substitute(condition.size, p.sizes)).known is True for p in points)


def variants(template: Template, types: tuple[TensorType, ...]) -> list[Term]:
    """The template's term; a Split without sizes once for every order of its axis' two summands."""
    term = template.term
    if not template.split or not isinstance(term, OperatorTerm) or not types or types[0].shape is None:
        return [term]
    attributes = dict(term.attributes)
    axis = attributes["axis"]
    if not isinstance(axis, int) or axis >= len(types[0].shape):
        return []
    parts = _summands(types[0].shape[axis])
    return [
        OperatorTerm(term.op, term.args, tuple(sorted({**attributes, "split": tuple(p)}.items())))
        for p in ([parts] if len(parts) != 2 or parts[0] == parts[1] else [parts, parts[::-1]])
        if len(parts) == 2
    ]


def _summands(size: Dim) -> list[AttributeValue]:
    if not isinstance(size, SizePolynomial):
        return []
    found: list[AttributeValue] = []
    for monomial, coefficient in size.terms:
        if coefficient < 1 or coefficient > 2:
            return []
        found += [SizePolynomial.make({monomial: 1})] * coefficient
    return found


def size_at(size: Dim, point: SizeSample) -> int:
    number = substitute(size, point.sizes)
    if isinstance(number, SizePolynomial):
        raise KeyError(str(number))
    return number


def concrete(kind: TensorType, point: SizeSample) -> tuple[int, ...]:
    return tuple(size_at(d, point) for d in kind.shape or ())


def batched(comprehension: TensorComprehension, count: int) -> TensorComprehension:
    """The same for ``count`` operands of each kind at once, along a new first axis of everything."""
    scalars: dict[int, ScalarExpression] = {}
    for part in subexpressions(comprehension.body):
        match part:
            case ElementRead(operand, index, outside):
                inner = tuple(scalars[id(i)] if isinstance(i, ScalarExpression) else i for i in index)
                scalars[id(part)] = ElementRead(operand, (sym(BATCH_AXIS), *inner), outside)
            case ScalarCall(function, args):
                scalars[id(part)] = ScalarCall(function, tuple(scalars[id(a)] for a in args))
            case ScalarReduction(kind, variable, extent, body):
                scalars[id(part)] = ScalarReduction(kind, variable, extent, scalars[id(body)])
            case ScalarConditional(conditions, then, otherwise):
                scalars[id(part)] = ScalarConditional(conditions, scalars[id(then)], scalars[id(otherwise)])
            case _:
                scalars[id(part)] = part
    return TensorComprehension((((BATCH_AXIS, count),), *comprehension.axes), scalars[id(comprehension.body)])
