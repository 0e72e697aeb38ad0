"""Why a rule that holds with one leading axis holds with more of them: shown on the meanings of its operators, as data.

With ``r`` leading axes a rule is the rule with one, of size ``lead_0 · … · lead_{r-1}``, if every application reads its
operands at the leading position of the element that it computes, and says the same there. For each number of axes the
terms are written down without what leads, and compared with the terms for one axis. Nothing of this is the prover's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
)
from superopt.rules import Rule
from superopt.rules.typing import instances, types_of
from superopt.verifier.certificates.normal_forms import CertificateRejected

__all__ = ["require_uniform"]


def require_uniform(rule: Rule, numbers: Iterable[int]) -> None:
    """Show that with each of these numbers of leading axes a rule is what it is with one.

    Raises:
        CertificateRejected: it is not, or that is not seen.
    """
    if named := sorted(n for n in (*rule.sizes, *rule.attribute_atoms) if re.fullmatch(r"lead_\d+", n)):
        raise CertificateRejected(f"the rule has names of leading axes: {', '.join(named)}")
    one = _without_leading(rule, 1)
    for number in numbers:
        if _without_leading(rule, number) != one:
            raise CertificateRejected(f"with {number} leading axes the rule says more, or less, than with one")


def _without_leading(rule: Rule, number: int) -> list[object]:
    """Both sides as a list of terms, with their meanings at any one leading position.

    Raises:
        CertificateRejected: a meaning depends on the leading axes in another way.
    """
    (instance,) = instances(rule, (number,))
    typed = types_of(instance)
    sizes = tuple(sym(f"lead_{n}") for n in range(number))
    position: dict[Term, int] = {}
    written: list[object] = []
    for term in postorder(*instance.lhs, *instance.rhs):
        position[term] = len(position)
        described: object
        if isinstance(term, OperatorTerm):
            operands = tuple(a is not None and _leads(typed.types[a][0], sizes) for a in term.args)
            meaning = typed.meanings[term]
            outputs = zip(meaning.outputs, typed.types[term], strict=True)
            described = (
                term.op, [None if a is None else position[a] for a in term.args],
                [_Element.of(made, _leads(kind, sizes), operands, sizes).described(made) for made, kind in outputs],
                _Element({}, (), operands, sizes).conditions(meaning.obligations),
            )  # fmt: skip
        else:
            described = term.name if isinstance(term, VariableTerm) else (position[term.term], term.index)
        written.append((described, [_stripped(kind, sizes) for kind in typed.types[term]]))
    return [*written, [[position[t] for t in side] for side in (instance.lhs, instance.rhs)]]


def _leads(kind: TensorType, sizes: tuple[Dim, ...]) -> bool:
    return (kind.shape or ())[: len(sizes)] == sizes


def _stripped(kind: TensorType, sizes: tuple[Dim, ...]) -> tuple[object, ...]:
    """An element type, whether the leading axes are there, and the sizes of the others."""
    leads = _leads(kind, sizes)
    plain = _Element({}, (), (), sizes)
    return kind.dtype, leads, [plain.size(d) for d in (kind.shape or ())[len(sizes) if leads else 0 :]]


@dataclass(frozen=True)
class _Element:
    """How an output's element is written down.

    Attributes:
        names: of its positions but the leading ones, counted from the first of those.
        leading: its leading positions.
        operands: of each operand, whether it has the leading axes.
        sizes: of the leading axes.
    """

    names: Mapping[str, Dim]
    leading: tuple[Dim, ...]
    operands: tuple[bool, ...]
    sizes: tuple[Dim, ...]

    @classmethod
    def of(cls, made: TensorComprehension, leads: bool, operands: tuple[bool, ...], sizes: tuple[Dim, ...]) -> _Element:
        """Of an output.

        Raises:
            CertificateRejected: it does not have the leading axes where it should.
        """
        count = len(sizes) if leads else 0
        first = made.axes[:count]
        if any(len(axis) != 1 or axis[0][1] != size for axis, size in zip(first, sizes, strict=False)):
            raise CertificateRejected("an operator's output has other axes where the leading ones should be")
        rest = [name for axis in made.axes[count:] for name, _ in axis]
        names: dict[str, Dim] = {name: sym(f"position_{n}") for n, name in enumerate(rest)}
        return cls(names, tuple(sym(axis[0][0]) for axis in first), operands, sizes)

    def described(self, made: TensorComprehension) -> object:
        """An output without its leading axes."""
        axes = made.axes[len(self.leading) :]
        return [[self.size(extent) for _, extent in axis] for axis in axes], self.scalar(made.body)

    def size(self, size: Dim) -> Dim:
        """A size or a position.

        Raises:
            CertificateRejected: it depends on the leading axes.
        """
        if symbols(size) & {n for s in (*self.sizes, *self.leading) for n in symbols(s)}:
            raise CertificateRejected(f"an operator depends on the leading axes by {size}")
        return substitute(size, self.names)

    def conditions(self, conditions: Iterable[IndexCondition]) -> list[tuple[str, Dim]]:
        """Conditions on sizes and positions."""
        return [(c.kind, self.size(c.size)) for c in conditions]

    def scalar(self, value: ScalarExpression) -> object:
        """An element's value."""
        match value:
            case ScalarConstant(known):
                return "number", known
            case SizeExpression(size):
                return "size", self.size(size)
            case ElementRead(operand, index, outside):
                return "read", operand, self.read(operand, index), None if outside is None else outside.value
            case ScalarCall(function, args):
                return function, [self.scalar(a) for a in args]
            case ScalarReduction(kind, variable, extent, body):
                return kind, variable, self.size(extent), self.scalar(body)
            case ScalarConditional(conditions, then, otherwise):
                return "where", self.conditions(conditions), self.scalar(then), self.scalar(otherwise)
        raise CertificateRejected(f"an element of unknown kind: {value}")

    def read(self, operand: int, index: tuple[Dim | ScalarExpression, ...]) -> list[object]:
        """Where an operand is read, besides its leading position.

        Raises:
            CertificateRejected: that is not the leading position at which the output is asked for.
        """
        count = len(self.sizes) if self.operands[operand] else 0
        if count and index[:count] != self.leading:
            raise CertificateRejected("an operator reads an operand at another leading position than its own")
        return [self.scalar(i) if isinstance(i, ScalarExpression) else self.size(i) for i in index[count:]]
